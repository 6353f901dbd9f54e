"""Repeat an experiment of the documents behind this library, and say whether its claims hold.

Writes figure.png and result.json (each claim, what was measured, whether it held or the run cannot tell) to a
directory. Quick by default, on embedded data; --full is on the data of the document, at length, and goes on where it
stopped when it is interrupted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrule.cli import options
from bayesrule.cli.terminal import say, show_json, show_table
from bayesrule.files import write_atomically
from bayesrule.models import choose_device
from bayesrule.naming import unknown

if TYPE_CHECKING:
    from bayesrule.experiments import Result, Setting

EPILOG = """examples:
  bayesrule reproduce
  bayesrule reproduce path-derivative
  bayesrule reproduce kl-weights --full --jobs 2 --data-dir data --out results/kl-weights"""

VERDICTS = {True: "held", False: "NOT held", None: "undecided"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="the experiment; none lists them")
    parser.add_argument("--full", action="store_true", help="on the document's data and at its length")
    options.jobs(parser)
    options.where_data(parser)
    options.seed(parser)
    options.device(parser)
    options.about_output(parser, "where the result goes (results/NAME)")


def run(args: argparse.Namespace) -> None:
    """Run, draw, write."""
    from bayesrule import experiments  # matplotlib takes a while
    from bayesrule.report import provenance

    known = experiments.EXPERIMENTS
    if args.name is None:
        show_table(["experiment", "what"], [[name, experiments.about(name)] for name in known])
        return
    if args.name not in known:
        raise unknown("experiment", args.name, known)
    folder = Path(args.out or f"results/{args.name}{'-full' if args.full else ''}")
    setting = _setting(args, folder / "trials")
    began = time.perf_counter()
    result = known[args.name](setting)
    plain = {
        "experiment": args.name,
        "claims": [vars(claim) for claim in result.claims],
        "notes": list(result.notes),
        **provenance(args.command, setting.seed),
        "full": args.full,
        "device": setting.device,
        "seconds": round(time.perf_counter() - began, 1),
        "data": result.data,
    }
    write_atomically(folder / "figure.png", experiments.png(result))
    write_atomically(folder / "result.json", json.dumps(plain, indent=1))
    if args.json:
        show_json(plain)
    else:
        _show(result)
    say(f"wrote {folder / 'result.json'} and {folder / 'figure.png'}")


def _setting(args: argparse.Namespace, cache: Path) -> Setting:
    """What was asked for on the command line."""
    from bayesrule.experiments import Setting

    given = options.given(args)
    device = given.get("device", "cpu")
    choose_device(device)  # an error now if there is none
    return Setting(args.full, given.get("seed", 0), given.get("data_dir"), args.jobs, cache, say, device)


def _show(result: Result) -> None:
    """Each claim with its verdict and what was measured, for people."""
    for claim in result.claims:
        print(f"{VERDICTS[claim.held]:9}  {claim.says} ({claim.source})")
        print(f"           {claim.measured}")
    for note in result.notes:
        print(note)
