"""Search for the settings with the lowest held-out NLL, at random or by TPE.

Trials are scored on a share of the training examples that is held out, never on the test examples. They are kept in
sweep.db in a directory, so that the same command goes on where it stopped; result.json and landscapes.png tell what
came out. A setting is a field of the method, method, prior, width, epochs, temperature, or an option of the optimiser
such as momentum; sgd.momentum and yellowfin.lr are for one optimiser alone.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from bayesrule import likelihoods, sweeps
from bayesrule.cli import fields, options, sources
from bayesrule.cli.options import RunSettings
from bayesrule.cli.runs import Run, refuse
from bayesrule.cli.terminal import say, show_json, show_table
from bayesrule.files import write_atomically
from bayesrule.jobs import threads
from bayesrule.methods import Method
from bayesrule.models import Spec, build
from bayesrule.report import number, provenance
from bayesrule.sweeps import Callback, Range, Space, Sweep, SweepProgress, Trial

EPILOG = """examples:
  bayesrule sweep digits --trials 100 --jobs 2
  bayesrule sweep moons --method bbb --space lr=1e-4:1:log --space optimizer=adam,sgd --space momentum=0:0.99
  bayesrule sweep houses.csv --target price --method swag --space rank=2:40:int --set lr=0.01
  bayesrule sweep houses.csv --target price --space method=map,swag --space prior=0.03:3:log --space width=8:128:int
  bayesrule sweep mnist --storage mysql://user@host/base --name mnist-bbb"""
BEST = 10  # trials in the table
OPTIONS = {"method": "method", "temperature": "temperature", "prior": "prior", "epochs": "epochs", "width": "hidden"}
"""The option of ``fit`` for each setting that is no field of the method."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.about_data(parser)
    options.method(parser)
    options.about_training(parser)
    parser.add_argument(
        "--space",
        action="append",
        default=[],
        metavar="FIELD=RANGE",
        help="what to search over instead of the usual: LOW:HIGH, LOW:HIGH:log, LOW:HIGH:int, or A,B,…",
    )
    parser.add_argument("--trials", type=int, default=50, metavar="N", help="how many, with those done before (50)")
    parser.add_argument("--sampler", default="tpe", metavar="NAME", help="tpe or random (tpe)")
    parser.add_argument(
        "--val", type=float, default=0.2, metavar="SHARE", help="of the training examples, held out (0.2)"
    )
    options.jobs(parser)
    parser.add_argument("--storage", metavar="URL", help="an Optuna storage, for many machines (sweep.db in --out)")
    parser.add_argument("--name", help="of the sweep in the storage (DATA-METHOD)")
    options.about_output(parser, "where the result goes (sweeps/DATA-METHOD)")


def run(args: argparse.Namespace) -> None:
    """Search, show, write."""
    settings = RunSettings.of(args)
    if settings.weights is not None:
        raise ValueError("--weights is for fit and compare: search without weights, and weigh the fit that follows")
    method = fields.method(settings.method, settings.set)
    ranges = _ranges(method, settings, args)
    name = args.name or f"{sources.name_of(settings.data)}-{settings.method}"
    folder = Path(args.out or f"sweeps/{sources.name_of(settings.data)}-{settings.method}")
    _refuse(folder)
    source = sources.read(settings)
    run = Run.of(settings, source, args.command)
    split = source.split
    for note in sources.describe(split, source.schema):
        say(note)
    train: Any = split.train
    likelihood = likelihoods.choose(settings.likelihood or likelihoods.usual(split.kind))
    if not split.image_shape:
        train = likelihood.standardized(train, codes=len(split.categories))
    model: Any = build(run.model, settings.seed, settings.device)
    if "width" in ranges:
        model = partial(_of_width, run.model, settings)
    with _progress(args.trials) as callback, threads(settings.threads):
        found = sweeps.sweep(
            model,
            train,
            method,
            ranges,
            args.trials,
            args.sampler,
            args.storage or folder / "sweep.db",
            name,
            settings.seed,
            args.val,
            args.jobs,
            [callback],
            likelihood=likelihood,
            prior=fields.prior(settings.prior),
            temperature=settings.temperature,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
        )
    if found.running:
        say(
            f"{found.running} more trials are being worked on elsewhere: the same command shows them when they are done"
        )
    _publish(found, settings, folder, args)


def _ranges(method: Method, settings: RunSettings, args: argparse.Namespace) -> dict[str, Range]:
    """What to search over: what was asked for, or the usual but for what was set."""
    fixed = {assignment.partition("=")[0].strip() for assignment in settings.set}
    given = options.given(args)
    fixed |= {key for key, option in OPTIONS.items() if option in given}
    if not args.space:
        return sweeps.default_space(method, fixed)
    ranges = sweeps.parse_space(args.space)
    both = [key for key, knob in Space(ranges, method).knobs.items() if knob.path in fixed]
    if both:
        raise ValueError(f"--space {both[0]} is searched over and set as well: leave one of the two out")
    return ranges


def _of_width(spec: Spec, settings: RunSettings, width: int) -> nn.Module:
    """The network with all hidden layers of one width."""
    return build(_widened(spec, width), settings.seed, settings.device)


def _widened(spec: Spec, width: int) -> Spec:
    if "hidden" not in spec:
        raise ValueError(f"--space width is for fully connected networks, not for {spec['name']}: leave it out")
    return spec | {"hidden": [width] * len(spec["hidden"])}


def _refuse(folder: Path) -> None:
    """An error if a directory holds anything but a sweep."""
    refuse(folder)
    path = folder / "result.json"
    if not path.exists():
        return
    try:
        command = json.loads(path.read_text(encoding="utf-8"))["command"]
        earlier = command.startswith("bayesrule sweep")
    except (ValueError, LookupError, TypeError, AttributeError):  # anything that JSON can hold
        earlier = False
    if not earlier:
        raise FileExistsError(f"--out {folder} holds another result.json, not one of a sweep: choose another directory")


@contextmanager
def _progress(trials: int) -> Iterator[Callback]:
    """A callback for a sweep: a bar on a terminal, a line for each trial elsewhere, always on stderr."""
    try:
        if not sys.stderr.isatty():
            yield lambda at: say(_line(at))
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("", total=trials)

            def show(at: SweepProgress) -> None:
                description = ""
                if at.best is not None:
                    description = f"best NLL {number(at.best.nll)}"
                bar.update(task, completed=at.done, description=description)

            yield show
    except (KeyboardInterrupt, SystemExit):
        say("stopped; the same command goes on from here")
        raise


def _line(at: SweepProgress) -> str:
    trial = at.trial
    outcome = f"NLL {number(trial.nll)}"
    if trial.failed:
        outcome = f"failed ({trial.failed})"
    if at.best is not None:
        outcome += f", best {number(at.best.nll)}"
    return f"{at.done}/{at.trials} {outcome}: {_in_words(trial.settings)}"


def _in_words(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_text(value)}" for key, value in settings.items())


def _publish(found: Sweep, settings: RunSettings, folder: Path, args: argparse.Namespace) -> None:
    """Show the best trials, and write everything."""
    from bayesrule.report import landscape  # matplotlib takes a while

    best = found.best
    fit = fit_command(settings, best)
    command = args.command
    if args.storage is not None:  # its URL may hold a password
        command = command.replace(args.storage, "URL")
    plain = {
        "data": sources.name_of(settings.data),
        **provenance(command, settings.seed),
        "method": settings.method,
        "sampler": args.sampler,
        "val": args.val,
        "space": {key: str(of) for key, of in found.space.items()},
        "best": best.to_json() | {"set": _sets(best), "fit": fit},
        "importance": found.importance(),
        "failed": sum(trial.failed is not None for trial in found.trials),
        "trials": [trial.to_json() for trial in found.trials],
    }
    write_atomically(folder / "landscapes.png", landscape.landscapes(found))
    write_atomically(folder / "result.json", json.dumps(plain, indent=1))
    if args.json:
        show_json(plain)
    else:
        _show(found)
        print(f"train on all training examples with the best settings, and test:\n  {fit}")
    say(f"wrote {folder / 'result.json'} and {folder / 'landscapes.png'}")


def _show(found: Sweep) -> None:
    """The best trials, a column for each setting; those for one optimiser alone share that of their field."""
    scores = [score for score in ("accuracy", "rmse") if score in found.best.scores]
    paths = list(dict.fromkeys(path for trial in found.ranked[:BEST] for path in trial.assignments))
    heads = [path.removeprefix("optimizer.") for path in paths]
    rows = []
    for trial in found.ranked[:BEST]:
        row = [str(trial.number), number(trial.nll)]
        row += [number(trial.scores[score]) for score in scores]
        row += [_text(trial.assignments.get(path, "")) for path in paths]
        rows.append(row)
    show_table(["trial", "NLL", *scores, *heads], rows, right=True)


def fit_command(settings: RunSettings, trial: Trial) -> str:
    """The command line that trains with the settings of a trial.

    >>> from bayesrule.methods import MAP
    >>> trial = Trial(0, {}, MAP(0.5), None, {"lr": 0.5}, 0, 0.1, {}, 1.0)
    >>> fit_command(RunSettings("moons", method="map", epochs=5), trial)
    'bayesrule fit moons --method map --epochs 5 --set lr=0.5'
    """
    found = {OPTIONS[path]: value for path, value in trial.assignments.items() if path in OPTIONS}
    if "hidden" in found:
        found["hidden"] = (found["hidden"],) * 2  # as many layers as `default_for` has
    settings = replace(settings, **found)
    words = ["bayesrule", "fit", settings.data, "--method", settings.method]
    for field in fields_of(RunSettings):
        value = getattr(settings, field.name)
        if field.name in ("data", "method", "set", "temperature") or value == field.default:
            continue
        words += [f"--{field.name.replace('_', '-')}", _text(value)]
    if trial.temperature is not None:
        words += ["--temperature", _text(trial.temperature)]
    for assignment in (*settings.set, *_sets(trial)):
        words += ["--set", assignment]
    return shlex.join(words)


def _sets(trial: Trial) -> list[str]:
    """The settings of a trial as for ``--set``; some have an option of their own."""
    return [f"{path}={_text(value)}" for path, value in trial.assignments.items() if path not in OPTIONS]


def _text(value: Any) -> str:
    return ",".join(map(_text, value)) if isinstance(value, tuple) else str(value)
