"""Score a trained run on data with targets.

On the file that the run was trained on, only the rows that were held out then count; on any other, and on that file
when it was changed since, all rows that have a target.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bayesrule.cli import options
from bayesrule.cli.results import publish
from bayesrule.cli.runs import Run, refuse
from bayesrule.cli.terminal import say
from bayesrule.report import Comparison, examine

EPILOG = """examples:
  bayesrule evaluate runs/houses new.csv
  bayesrule evaluate runs/digits-swag digits --json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.run_and_data(parser)
    options.about_output(parser, "write scores.json and report.html here")


def run(args: argparse.Namespace) -> None:
    """Load, predict, score."""
    folder, out = Path(args.run), None
    if args.out:
        out = Path(args.out)
        refuse(out)
    run = Run.read(folder)
    posterior = run.posterior(folder, getattr(args, "device", None))
    split, notes = run.test(args.data, getattr(args, "data_dir", None), getattr(args, "sep", None))
    if split.classes != run.classes:
        raise ValueError(f"DATA must have the classes of the run, {', '.join(run.classes)}, got those of {split.name}")
    say(f"{split.what}: scored on {len(split.test[1])} examples")
    for note in notes:
        say(note)
    entry = examine(run.settings.method, posterior, split, seed=run.settings.seed, schema=run.schema)
    publish(Comparison(split, [entry], args.command, run.settings.seed, run.schema, notes), out, args.json)
