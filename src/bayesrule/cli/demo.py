"""Every method on scikit-learn's handwritten digits, in a few minutes: start here."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bayesrule.cli import compare, options
from bayesrule.cli.options import RunSettings
from bayesrule.cli.results import publish
from bayesrule.cli.runs import refuse
from bayesrule.cli.terminal import say
from bayesrule.methods import AVAILABLE

EPILOG = ""
LOOK = """
What to look at:
  accuracy   all are about as often right; the difference is in what they say of their mistakes
  NLL, ECE   lower is better: confidence that can be trusted
             (the ECE in brackets is what a perfectly calibrated method would have by chance)
  OOD AUROC  higher is better: scrambled digits, which are no digits, look less certain than real ones
  (baseline) simple models that any method has to beat
  training   what it costs, as a multiple of map, one ordinary network
Then open {page} in a browser: the least certain digits are the ones that people argue about.
Your own data: bayesrule fit FILE.csv --target COLUMN"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.about_output(parser, "where scores.json and report.html go (demo)")
    options.seed(parser)
    options.about_training(parser)


def run(args: argparse.Namespace) -> None:
    """Compare all methods on digits. A second demo replaces the first."""
    folder = Path(args.out or "demo")
    if not _earlier_demo(folder):
        refuse(folder)
    each = compare.per_method(RunSettings(data="digits", **options.given(args)), list(AVAILABLE))
    publish(compare.comparison(each, args.command, None), folder, args.json)
    say(LOOK.format(page=folder / "report.html"))


def _earlier_demo(folder: Path) -> bool:
    try:
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    return str(scores.get("command", "")).startswith("bayesrule demo")
