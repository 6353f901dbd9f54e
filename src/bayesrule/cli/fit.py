"""Train one method and evaluate it on held-out examples.

Writes run.json, posterior.safetensors, scores.json and report.html to a directory, for predict and evaluate.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bayesrule import processes
from bayesrule.cli import fields, options, sources
from bayesrule.cli.guarantees import check_recalibration, promised, recalibrated_once, told_apart
from bayesrule.cli.options import RunSettings
from bayesrule.cli.results import publish
from bayesrule.cli.runs import Run, refuse
from bayesrule.cli.terminal import say
from bayesrule.data import Schema, Split
from bayesrule.methods import Method
from bayesrule.models import choose_device
from bayesrule.posteriors import DistanceAware, Posterior
from bayesrule.report import Comparison, Worth, examine, examine_baselines, worth
from bayesrule.training import Folder

EPILOG = """examples:
  bayesrule fit digits --method swag
  bayesrule fit houses.csv --target price --out runs/houses
  bayesrule fit houses.csv --target price --guarantee 0.9 --groups town
  bayesrule fit --resume --out runs/houses
  bayesrule fit houses.csv --target price --method laplace --influence
  torchrun --nproc-per-node 2 -m bayesrule fit digits --method ivon"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.about_data(parser, optional=True)
    options.method(parser)
    options.about_training(parser)
    options.early_stopping(parser)
    options.guarantee(parser)
    options.recalibrate(parser)
    options.distance_aware(parser, "a posterior that knows less the further an input is from its training examples")
    options.about_output(parser, "where the run goes (runs/DATA-METHOD)")
    help = "put the most influential and the most suspicious training examples into the report"
    parser.add_argument("--influence", action="store_true", help=help)
    parser.add_argument("--resume", action="store_true", help="continue the run in --out, with its own settings")


@processes.joined()
def run(args: argparse.Namespace) -> None:
    """Train, evaluate, report; of many processes the first one writes."""
    saved = method = None
    if args.resume:
        saved = _saved(args)
        settings = saved.settings
    else:
        settings = RunSettings.of(args)
        method = fields.method(settings.method, settings.set)
    if args.influence and settings.weights is not None:
        raise ValueError("--influence does not know weights of rows: leave --weights or --influence out")
    folder = Folder(args.out or f"runs/{sources.name_of(settings.data)}-{settings.method}", claimed=True)
    if processes.rank():
        _train(args, settings, saved, method, folder)
        return
    with folder.held():  # from the look at what is there until all is written
        if saved is None:
            refuse(folder.path)
        _train(args, settings, saved, method, folder)


def _train(
    args: argparse.Namespace, settings: RunSettings, saved: Run | None, method: Method | None, folder: Folder
) -> None:
    first = processes.rank() == 0
    source = sources.read(settings, saved.schema if saved else None)
    split, schema, _ = source
    settings, reason = sources.settled(settings, split)
    check_recalibration(settings, split.kind)
    notes = [*sources.describe(split, schema, settings.for_what), *reason]
    for note in notes:
        say(note)
    run = saved or Run.of(settings, source, args.command)
    # All processes read what is continued; a new run is written by the first.
    where = folder if first or saved else None
    try:
        posterior = run.train(split, where, method)
    except (KeyboardInterrupt, SystemExit):
        say(f"stopped; continue with: bayesrule fit --resume --out {folder.path}")
        raise
    if not first:
        return
    if settings.distance_aware and not isinstance(posterior, DistanceAware):
        posterior = DistanceAware.around(posterior, split.train, settings.seed)
        posterior.save(folder.posterior)
    unseen, split = told_apart(split, settings)
    if unseen is not None:
        posterior = recalibrated_once(posterior, unseen, settings, folder)
    if split.calibration is not None:
        posterior, why = promised(posterior, split, settings, folder)
        notes += why
    entry = examine(settings.method, posterior, split, seed=settings.seed, schema=schema)
    baselines = examine_baselines(split, settings.seed)
    for sentence in (*entry.choices, *entry.promises):
        say(sentence)
    known = _worth(posterior, split, schema) if args.influence else None
    comparison = Comparison(split, [entry], run.command, settings.seed, schema, notes, baselines=baselines, worth=known)
    publish(comparison, folder.path, args.json)


def _worth(posterior: Posterior, split: Split, schema: Schema | None) -> Worth | None:
    """Which training examples matter; a sentence if the posterior cannot tell."""
    from bayesrule.gp import influence

    try:
        # first order: a fit may have held some of these rows out, which the exact formula would take for trained on
        return worth(influence(posterior, split.train, first_order=True), split, schema)
    except (TypeError, ValueError, MemoryError) as error:
        say(f"no influence of training examples: {error}")
        return None


def _saved(args: argparse.Namespace) -> Run:
    """The run to continue; an error if other settings than its own are asked for, but for the device."""
    if args.out is None:
        raise ValueError("--resume must know where the run is: give its directory, --out DIR")
    saved = Run.read(Path(args.out))
    asked = options.given(args)
    device = asked.pop("device", saved.settings.device)  # files are device-free: a run may go on on another one
    for name, value in asked.items():
        if (own := getattr(saved.settings, name)) != value:
            raise ValueError(
                f"--resume keeps the settings of {args.out}: {name} is {own} there, not {value}; leave it out"
            )
    if saved.schema is not None and not saved.knows(saved.settings.data):
        raise ValueError(
            f"--resume needs the table that the run in {args.out} was started on, but {saved.settings.data} is not, "
            "byte for byte, that one any more: put the old file back, or start a new run with another --out"
        )
    choose_device(device)
    return replace(saved, settings=replace(saved.settings, device=device))
