"""Learn tasks one after another with several methods: what does each remember?

STREAM is a benchmark by name (none lists them), or a .csv or .parquet file whose column --by says which task a row
belongs to. Quick by default; --full has the network, epochs and memory of the literature. Prints a table, and writes
result.json, curves.png, matrices.png and report.html; each method and seed has a directory of its own, so that the
same command goes on where it stopped, and with more methods or seeds learns only these.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from bayesrule import jobs
from bayesrule.cli import options
from bayesrule.cli.claims import claim
from bayesrule.cli.terminal import say, show_json, show_table
from bayesrule.data import fingerprint, inputs
from bayesrule.data.reading import stem
from bayesrule.files import write_atomically
from bayesrule.lifelong import Functions, Generative, Result, Strategy, Stream, memory, streams, tables
from bayesrule.lifelong import run as learn
from bayesrule.lifelong.benchmarks import BENCHMARKS, Loaded, Settings, chooses_points, keeps_points, load, strategy
from bayesrule.lifelong.running import check_fitting
from bayesrule.locks import held
from bayesrule.naming import unknown
from bayesrule.report import provenance

EPILOG = """examples:
  bayesrule lifelong
  bayesrule lifelong perm-digits --methods finetune,replay,kfac-laplace,joint --seeds 0,1,2
  bayesrule lifelong seq-mnist --full --data-dir data --jobs 2 --out results/seq-mnist
  bayesrule lifelong sales.csv --target sold --by month --methods finetune,ewc,joint"""
METHODS = "finetune,replay,ewc,kfac-laplace,joint"
TABLE = Settings((50, 50), epochs=20, batch_size=32, points=200)
STEPS = 1000  # of the first task of a table, at least, where nobody says how many epochs
SHARE = 5  # of the smallest task of a table, at most one in so many rows is kept where nobody says how many


@dataclass(frozen=True)
class Source:
    """All that decides the stream."""

    data: str
    full: bool = False
    tasks: int | None = None
    target: str | None = None
    by: str | None = None
    kind: Any = None
    drop: tuple[str, ...] = ()
    sep: str | None = None
    table: str | None = None
    boundaries: bool = True


@dataclass(frozen=True)
class Cell:
    """One method and one seed on a stream."""

    source: Source
    settings: Settings
    method: str
    seed: int
    rule: str | None = None


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.about_stream(parser)
    parser.add_argument("--methods", metavar="A,B,…", default=METHODS, help=f"strategies ({METHODS})")
    parser.add_argument("--full", action="store_true", help="networks, epochs and memory of the literature")
    parser.add_argument("--tasks", type=int, metavar="K", help="the first so many tasks of the stream")
    parser.add_argument("--points", type=int, metavar="M", help="examples a task that methods with a memory keep")
    rules = ", ".join(memory.RULES)
    parser.add_argument("--rule", metavar="NAME", help=f"how these are chosen: {rules} (each method's own)")
    options.seeds(parser)
    parser.add_argument("--block", type=int, metavar="N", help="examples learnt at a time with --no-boundaries")
    parser.add_argument("--no-boundaries", action="store_true", help="methods are not told where a task ends")
    options.jobs(parser)
    options.about_output(parser, "where the result goes (results/lifelong-STREAM)")


def run(args: argparse.Namespace) -> None:
    """Learn, judge, draw, write."""
    given = options.given(args)
    if "data" not in given:
        show_table(["stream", "what"], [[name, about.summary] for name, about in BENCHMARKS.items()])
        return
    source = _source(args, given)
    data_dir = given.get("data_dir")
    loaded, notes, columns = opened(source, data_dir)
    for note in notes:
        say(note)
    settings = _settings(loaded, args, given)
    methods = list(dict.fromkeys(name.strip() for name in args.methods.split(",") if name.strip()))
    _check(args, loaded.stream, settings, methods)
    name = stem(source.data) if source.target else source.data
    folder = Path(args.out or f"results/lifelong-{name}{'-full' if args.full else ''}")
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        claim(folder, {**asdict(source), **asdict(settings), "rule": args.rule})
        cells = [Cell(source, settings, method, seed, args.rule) for method in methods for seed in args.seeds]
        answers = jobs.run(ask, cells, (str(folder), data_dir), args.jobs, folder / "cells", say, key=_key, say=_told)
        _publish(args, folder, loaded.stream, settings, cells, answers, notes, columns)


def ask(cell: Cell, folder: str, data_dir: str | None) -> dict[str, Any]:
    """One method and one seed, in a directory of their own; what was begun there goes on."""
    loaded, _, _ = opened(cell.source, data_dir)
    settings = cell.settings
    _warm_up()

    def tell(line: str) -> None:
        say(f"{cell.method}, seed {cell.seed}: {line}")

    result = learn(
        replace(loaded.stream, block=settings.block),
        _strategy(cell),
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        hidden=settings.hidden,
        seed=cell.seed,
        out=_place(Path(folder), cell),
        tell=tell,
        progress=sys.stderr.isatty() and parent_process() is None,  # one bar at a time
    )
    return result.to_json()


def _strategy(cell: Cell) -> Strategy:
    return strategy(cell.method, cell.settings.points, cell.source.data, cell.rule)


@lru_cache(maxsize=1)
def _warm_up() -> None:
    """The first fit of a process loads much of torch, which would count as time of the first method."""
    learn(streams.toy(1, examples=8), "finetune", epochs=1, hidden=(2,))


@lru_cache(maxsize=1)
def opened(source: Source, data_dir: str | None) -> tuple[Loaded, tuple[str, ...], tuple[str, ...]]:
    """The stream with its usual settings, sentences about a table, and the names of its inputs."""
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    if source.target is None or source.by is None:
        loaded = load(source.data, data_dir, source.full, source.tasks)
    else:
        found = tables.by_column(
            source.data, source.target, source.by, kind=source.kind, sep=source.sep, without=source.drop
        )
        stream = found.stream if source.tasks is None else found.stream.first(source.tasks)
        smallest = min(len(chapter.train[1]) for chapter in stream)
        points = min(TABLE.points, max(1, smallest // SHARE))
        epochs = max(TABLE.epochs, -(-STEPS * TABLE.batch_size // len(stream[0].train[1])))
        loaded = Loaded(stream, replace(TABLE, tasks=len(stream), points=points, epochs=epochs))
        notes, columns = found.notes, found.schema.features
    stream = replace(loaded.stream, boundaries=source.boundaries)
    return Loaded(stream, loaded.settings), notes, columns


def _source(args: argparse.Namespace, given: dict[str, Any]) -> Source:
    """What the command line says of the stream."""
    data = given["data"]
    common: dict[str, Any] = {"tasks": args.tasks, "boundaries": not args.no_boundaries}
    by = getattr(args, "by", None)
    if options.is_table(data):
        if args.full:
            raise ValueError("--full is for benchmarks: of a table all rows are learnt")
        if "target" not in given or by is None:
            raise ValueError("a table needs --target COLUMN, what to predict, and --by COLUMN, which orders the tasks")
        for name in ("target", "kind", "drop", "sep"):
            if name in given:
                common[name] = given[name]
        return Source(data, by=by, table=fingerprint(data), **common)
    for option in ("target", "kind", "drop", "sep", "by"):
        if option in given or (option == "by" and by is not None):
            raise ValueError(f"--{option} is for .csv and .parquet files, but STREAM is the name {data!r}")
    return Source(data, args.full, **common)


def _settings(loaded: Loaded, args: argparse.Namespace, given: dict[str, Any]) -> Settings:
    """The usual settings, and what was given instead."""
    settings = replace(loaded.settings, tasks=len(loaded.stream))
    for name in ("epochs", "batch_size", "hidden"):
        if name in given:
            settings = replace(settings, **{name: given[name]})
    for name in ("points", "block"):
        if (value := getattr(args, name)) is not None:
            settings = replace(settings, **{name: value})
    return settings


def _check(args: argparse.Namespace, stream: Stream, settings: Settings, methods: Sequence[str]) -> None:
    """Errors now rather than after hours."""
    if not methods:
        raise ValueError("--methods must name at least one method, got none")
    if args.block is not None and not args.no_boundaries:
        raise ValueError("--block is for --no-boundaries: where tasks are told, each is learnt as a whole")
    for name in ("epochs", "batch_size", "points", "block"):
        if (value := getattr(settings, name)) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if args.rule is not None and args.rule not in memory.RULES:
        raise unknown("--rule", args.rule, memory.RULES)
    if args.rule is not None and not any(chooses_points(strategy(name, settings.points)) for name in methods):
        raise ValueError("--rule is for methods that choose what they keep, such as replay and fromp: leave it out")
    rows = len(stream[0].train[1])
    for name in methods:
        found = strategy(name, settings.points)
        if found.needs_boundaries and not stream.boundaries:
            raise ValueError(f"{name} must be told where a task ends: leave out --no-boundaries, or this method")
        check_fitting(found, stream)
        if isinstance(found, Functions | Generative) and not stream.classes:
            raise ValueError(f"{name} is for classes, but the target holds numbers: take replay, ewc or kfac-laplace")
        if keeps_points(found) and settings.points > rows:
            raise ValueError(
                f"--points must be at most the {rows} training examples of the first task, got {settings.points}"
            )


def _publish(
    args: argparse.Namespace,
    folder: Path,
    stream: Stream,
    settings: Settings,
    cells: Sequence[Cell],
    answers: Sequence[dict[str, Any]],
    notes: Sequence[str],
    columns: Sequence[str],
) -> None:
    from bayesrule.report import lifelong as report  # matplotlib takes a while
    from bayesrule.report.runs import png

    runs: dict[str, list[Result]] = {}
    for cell, answer in zip(cells, answers, strict=True):
        plain = {key: value for key, value in answer.items() if key != "summary"}
        runs.setdefault(cell.method, []).append(Result(**plain))
    about = provenance(args.command, args.seeds[0])
    used = {key: value for key, value in asdict(settings).items() if value is not None}
    facts = [("command", args.command), *((key, str(value)) for key, value in used.items())]
    facts.append(("seeds", ", ".join(map(str, args.seeds))))
    facts.append(("versions", " · ".join(f"{name} {version}" for name, version in about["versions"].items())))
    name = cells[0].source.data
    summary = BENCHMARKS[name].summary if name in BENCHMARKS else stream.name
    title = name if name in BENCHMARKS else Path(name).name
    kept = []
    for method in runs:
        path = _place(folder, next(cell for cell in cells if cell.method == method)) / "memory.safetensors"
        if path.is_file():
            labels = columns or _numbered(stream)
            parts = memory.read(path)
            about_pictures = (stream.image_shape, labels, stream.orders)
            kept.append(report.kept_pictures(method, runs[method][0].tasks, parts, *about_pictures))
    lives = report.Lives(title, summary, runs, facts, notes, kept)
    table = report.lines(lives)
    plain = {
        "stream": title,
        **about,
        "seeds": list(args.seeds),
        "full": args.full,
        "settings": used,
        "table": {line.name: _plain(line, list(report.COLUMNS)) for line in table},
        "cells": list(answers),
    }
    write_atomically(folder / "curves.png", png(report.curves(lives)))
    write_atomically(folder / "matrices.png", png(report.matrices(lives)))
    write_atomically(folder / "report.html", report.render(lives))
    write_atomically(folder / "result.json", json.dumps(plain, indent=1))
    if args.json:
        show_json(plain)
    else:
        heads = ["method", *(label for label, _ in report.headings(lives))]
        rows = []
        for line in table:
            average, *others = line.cells
            rows.append([line.name, average.text, *(cell.short for cell in others)])
        show_table(heads, rows, right=True)
    say(f"wrote {folder / 'result.json'} and {folder / 'report.html'}")


def _plain(line: Any, names: Sequence[str]) -> dict[str, Any]:
    """A row of the table for programs."""
    return {name: {"mean": cell.mean, "error": cell.error} for name, cell in zip(names, line.cells, strict=True)}


def _numbered(stream: Stream) -> list[str]:
    """Names of inputs that have none."""
    (_, first), *_ = inputs.named(stream[0].train[0])
    return [f"input {index + 1}" for index in range(first[0].numel())]


def _place(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.method}-{cell.seed}"


def _key(cell: Cell) -> dict[str, Any]:
    return asdict(cell) | {"strategy": _strategy(cell)}


def _told(cell: Cell, answer: dict[str, Any]) -> str:
    return f"{cell.method}, seed {cell.seed}: average {answer['summary']['average']:.4f}"
