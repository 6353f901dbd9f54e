"""Train several methods on the same data, side by side.

Prints a leaderboard and writes scores.json and report.html; each method's run is kept in a directory of its own for
predict and evaluate.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bayesrule.cli import fields, options, sources
from bayesrule.cli.loaded import load_run
from bayesrule.cli.options import RunSettings
from bayesrule.cli.results import publish
from bayesrule.cli.runs import Run, refuse
from bayesrule.cli.terminal import say
from bayesrule.data import Batch, shifts
from bayesrule.evaluate import under_shift
from bayesrule.evaluate.score import Predictor
from bayesrule.methods import AVAILABLE, check_stoppable, check_weighted
from bayesrule.posteriors import DistanceAware, Posterior
from bayesrule.report import Comparison, beside, examine, examine_baselines
from bayesrule.training import Folder

EPILOG = """examples:
  bayesrule compare moons
  bayesrule compare digits --methods map,ensemble --shift rotation,fog
  bayesrule compare mnist --ood notmnist --distance-aware
  bayesrule compare houses.csv --target price --methods map,ensemble,swag --set swag.rank=10"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.about_data(parser)
    parser.add_argument("--methods", metavar="A,B,…", help="see: bayesrule methods (all but samplers)")
    help = "a run of bayesrule fit on the same data, such as one of a sampler: how far does each method agree with it?"
    parser.add_argument("--reference", metavar="RUN", help=help)
    parser.add_argument(
        "--shift", default="", metavar="A,B", help="scores on the way from home: rotation, fog, noise, …"
    )
    help = "out-of-distribution inputs: those of another named set, or the rows of a table with the columns of DATA"
    parser.add_argument("--ood", metavar="OTHER", help=help)
    options.about_training(parser)
    options.early_stopping(parser)
    options.distance_aware(parser, "beside each method the same, knowing less the further from the training examples")
    options.about_output(parser, "where the runs and the report go (runs/DATA-compare)")


def run(args: argparse.Namespace) -> None:
    """Train, evaluate, report."""
    settings = RunSettings.of(args)
    names = args.methods.split(",") if args.methods else every_method()
    each = per_method(settings, names)
    folder = Path(args.out or f"runs/{sources.name_of(settings.data)}-compare")
    with Folder(folder).held():
        refuse(folder)
        for one in each:
            refuse(folder / one.method)
        reference = None if args.reference is None else _reference(Path(args.reference), settings)
        found = comparison(each, args.command, folder, reference, tuple(filter(None, args.shift.split(","))), args.ood)
        publish(found, folder, args.json)


def every_method() -> list[str]:
    """All but samplers, which take long, and which a comparison has where they are asked for."""
    return [name for name, method in AVAILABLE.items() if not method.sampler]


def _reference(folder: Path, settings: RunSettings) -> Posterior:
    """The posterior of a run on the data of the comparison."""
    found = load_run(folder)
    for name in ("data", "target", "split", "seed", "test"):
        theirs, ours = getattr(found.run.settings, name), getattr(settings, name)
        if theirs != ours:
            raise ValueError(f"--reference must be a run on the same data, but its {name} is {theirs!r}, not {ours!r}")
    return found.posterior


def per_method(settings: RunSettings, names: Sequence[str]) -> list[RunSettings]:
    """The settings of each method."""
    each = []
    for name in dict.fromkeys(names):
        mine = fields.own(name, names, settings.set)
        method = fields.method(name, mine)  # an error now, before another method has been trained
        if settings.weights is not None:
            check_weighted(method)
        if settings.early_stopping is not None:
            check_stoppable(method)
        each.append(replace(settings, method=name, set=mine))
    return each


def comparison(
    each: Sequence[RunSettings],
    command: str,
    folder: Path | None,
    reference: Posterior | None = None,
    shift: Sequence[str] = (),
    ood: str | None = None,
) -> Comparison:
    """All methods trained on the same data; their runs are kept if there is a directory for them.

    ``shift``: on the way from home by each of these. ``ood``: strangers are from there.
    """
    source = sources.read(each[0])
    for name in shift:  # an error now, before anything is trained
        shifts.choose(name, source.split.image_shape).at(Batch(*source.split.test), 0)
    if ood is not None:
        source = source._replace(split=sources.with_strangers(source, ood, each[0]))
    split, schema, _ = source
    notes = sources.describe(split, schema)
    for note in notes:
        say(note)
    entries = []
    known: dict[str, Predictor] = {}
    for settings in each:
        run = Run.of(settings, source, command)
        method = fields.method(settings.method, settings.set)
        own = None if folder is None else Folder(folder / settings.method, claimed=True)
        posterior = run.train(split, own, method)
        named: dict[str, Posterior] = {settings.method: posterior}
        if settings.distance_aware:
            named[f"{settings.method}, distance-aware"] = DistanceAware.around(posterior, split.train, settings.seed)
        for name, one in named.items():
            known[name] = one
            entry = examine(name, one, split, seed=settings.seed, schema=schema)
            if reference is not None:
                entry = beside(entry, one, reference, split, settings.seed)
            entries.append(entry)
    seed = each[0].seed
    curves = [under_shift(known, split.test, name, shape=split.image_shape, seed=seed) for name in shift]
    simple = examine_baselines(split, seed)
    return Comparison(split, entries, command, seed, schema, notes, baselines=simple, shifts=curves)
