"""Ask for labels where they are worth most: learning curves of acquisitions, or questions for a person.

DATA is a name, a .csv or .parquet file with --target, or a person's own pictures in a directory. Where all labels are
known this is a simulation: each acquisition begins with a few labels, asks for more, a batch at a time, and is judged
on test examples. With --ask a person answers: the rows to label next are written to a file (and a page to click
through), --tell reads the answers, and the run goes on from where it stood, as often as it takes. Prints a table, and
writes result.json, curves.png and report.html; the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from bayesrule import jobs, likelihoods
from bayesrule.active import AVAILABLE, Pool, Result, Session, encoders, pools, questions, tables
from bayesrule.active import run as learn
from bayesrule.active.acquisition import chosen
from bayesrule.active.networks import network_for
from bayesrule.cli import fields, options, queried
from bayesrule.cli.claims import claim
from bayesrule.cli.queried import Opened
from bayesrule.cli.sources import name_of
from bayesrule.cli.terminal import say, show_json, show_table
from bayesrule.data import albums, fingerprint, load_set
from bayesrule.files import write_atomically
from bayesrule.locks import held
from bayesrule.report import provenance

EPILOG = """examples:
  bayesrule active digits --acquire random,bald,batchbald --method mc-dropout --seeds 0,1,2
  bayesrule active houses.csv --target price --acquire random,expected-variance
  bayesrule active pool.csv --target sold --classes yes,no --ask queries.csv --out runs/sold
  bayesrule active pool.csv --target sold --classes yes,no --tell queries.csv --ask queries.csv --out runs/sold
  bayesrule active photos/ --size 64 --classes cat,dog --ask queries.html --out runs/photos"""
ACQUIRE = "random,bald"
BUDGET = 100
LABEL = albums.LABEL  # the column of answers where there is no table


@dataclass(frozen=True)
class Source:
    """All that decides the pool."""

    data: str
    target: str | None = None
    kind: Any = None
    drop: tuple[str, ...] = ()
    sep: str | None = None
    test: str | None = None
    classes: tuple[str, ...] = ()
    person: bool = False
    table: str | None = None
    features: str | None = None
    labels: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class Plan:
    """How rounds go and are learnt, whatever the acquisition; see `br.active.Settings`."""

    method: str
    set: tuple[str, ...] = ()
    hidden: tuple[int, ...] | None = None
    likelihood: str | None = None
    prior: str | None = None
    temperature: float | str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    start: int = 20
    batch: int = 10
    budget: int = BUDGET
    balanced: bool = False
    warm: bool = False
    candidates: int | None = None
    samples: int = 100


@dataclass(frozen=True)
class Cell:
    """One acquisition and one seed on a pool."""

    source: Source
    plan: Plan
    acquire: str
    seed: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.about_pool(parser)
    names = ", ".join(AVAILABLE)
    parser.add_argument("--acquire", metavar="A,B,…", help=f"what to ask for ({ACQUIRE}; with --ask bald): {names}")
    parser.add_argument("--start", type=int, default=20, metavar="N", help="rows to begin with, at random (20)")
    parser.add_argument("--batch", type=int, default=10, metavar="N", help="rows of a question (10)")
    help = f"labels in all ({BUDGET}, or all rows if there are fewer; with --ask all rows)"
    parser.add_argument("--budget", type=int, metavar="N", help=help)
    parser.add_argument("--samples", type=int, default=100, metavar="S", help="networks drawn to choose by (100)")
    parser.add_argument("--candidates", type=int, metavar="N", help="rows, drawn anew in each round, to choose from")
    help = "see pictures through an encoder that learns from all of them, without labels: simclr"
    parser.add_argument("--features", choices=("simclr",), help=help)
    parser.add_argument("--balanced", action="store_true", help="begin with all classes alike (it looks at labels)")
    parser.add_argument("--warm", action="store_true", help="each round goes on from the network of the last")
    help = "accuracies to be reached: how many labels does it take? (0.9,0.95)"
    parser.add_argument("--reach", type=_shares, default=(0.9, 0.95), metavar="A,B", help=help)
    parser.add_argument("--ask", metavar="FILE", help="write the rows to be labelled next to this .csv and an .html")
    parser.add_argument("--tell", metavar="FILE", help="read the labels of the rows that were asked for")
    parser.add_argument("--classes", type=options.columns, default=(), metavar="A,B", help="labels that there will be")
    help = "of pictures: a table of known labels, with the columns file and label"
    parser.add_argument("--labels", metavar="FILE", help=help)
    help = "of pictures: make squares of so many pixels a side of all of them"
    parser.add_argument("--size", type=int, metavar="N", help=help)
    options.seeds(parser)
    options.jobs(parser)
    options.about_output(parser, "where the result goes (results/active-DATA)")


def run(args: argparse.Namespace) -> None:
    """Ask, learn, judge, draw, write."""
    given = options.given(args)
    person = args.ask is not None or args.tell is not None
    source = _source(args, given, person)
    opened_pool = opened(source, given.get("data_dir"))
    for note in opened_pool.notes:
        say(note)
    plan = _plan(args, given, opened_pool.pool, person)
    acquire = args.acquire or ("bald" if person else ACQUIRE)
    names = list(dict.fromkeys(name.strip() for name in acquire.split(",") if name.strip()))
    _check(args, opened_pool.pool, plan, names, person)
    folder = Path(args.out or f"results/active-{name_of(source.data)}")
    folder.mkdir(parents=True, exist_ok=True)
    cells = [Cell(source, plan, name, seed) for name in names for seed in args.seeds]
    with held(folder):
        used = {key: value for key, value in asdict(plan).items() if key != "budget"}  # which may grow
        if person:  # what was told under another rule must not be left behind
            used |= {"acquire": names[0], "seed": args.seeds[0]}
        claim(folder, {**asdict(source), **used})
        encoder_of(source, opened_pool.pool, folder, say)  # once, before the processes that read it
        if person:
            with jobs.threads(1):  # as in the processes of a simulation
                _with_a_person(args, folder, opened_pool, cells[0])
            return
        given_to_all = (str(folder), given.get("data_dir"))
        answers = jobs.run(ask, cells, given_to_all, args.jobs, folder / "cells", say, key=asdict, say=_told)
        _publish(args, folder, opened_pool, cells, [Result.from_json(answer) for answer in answers])


def ask(cell: Cell, folder: str, data_dir: str | None) -> dict[str, Any]:
    """One acquisition and one seed, in a directory of their own; what was begun there goes on."""

    def tell(line: str) -> None:
        say(f"{cell.acquire}, seed {cell.seed}: {line}")

    pool = opened(cell.source, data_dir).pool
    features = encoder_of(cell.source, pool, Path(folder))
    settings = _arguments(cell, pool, features)
    return learn(pool, cell.acquire, **settings, out=_place(Path(folder), cell), tell=tell).to_json()


def encoder_of(
    source: Source, pool: Pool, folder: Path, tell: Callable[[str], object] | None = None
) -> nn.Module | None:
    """The module that the pool is seen through, if any; it has learnt once, and is kept in the directory."""
    if source.features is None:
        return None
    return encoders.kept(folder / "encoder.safetensors", pool, encoders.SimCLR(), tell=tell)


def _arguments(cell: Cell, pool: Pool, features: nn.Module | None = None) -> dict[str, Any]:
    """Arguments of a session."""
    plan = cell.plan
    found = {key: value for key, value in asdict(plan).items() if key not in ("method", "set", "hidden", "prior")}
    method = fields.method(plan.method, plan.set)
    found |= {"method": method, "prior": fields.prior(plan.prior), "seed": cell.seed, "features": features}
    if plan.hidden is not None:
        likelihood = likelihoods.choose(plan.likelihood or likelihoods.usual(pool.kind))
        seen = pool if features is None else pool.through(features)
        found["model"] = network_for(seen, likelihood, method, cell.seed, plan.hidden)
    return found


@lru_cache(maxsize=1)
def opened(source: Source, data_dir: str | None) -> Opened:
    """The pool that a source stands for."""
    if options.is_album(source.data):
        about = (source.test, source.classes, source.kind, source.labels, source.size)
        seen = tables.pictured(source.data, LABEL, *about)
        folder = Path(source.data)
        return Opened(seen.pool, seen.frame, seen.notes, folder if folder.is_dir() else None)
    if source.target is None:
        split = load_set(source.data, data_dir)
        pool = pools.of(split).standardized()
        if source.person:
            pool = replace(pool, labels=None)
        return Opened(pool, None, (split.what,))
    if source.person:
        found = tables.asked(
            source.data, source.target, source.test, source.classes, source.kind, source.sep, source.drop
        )
    else:
        test = 0.2 if source.test is None else source.test
        found = tables.simulated(source.data, source.target, test, 0, source.kind, source.sep, source.drop)
    return Opened(found.pool, found.frame, found.notes)


def _source(args: argparse.Namespace, given: dict[str, Any], person: bool) -> Source:
    """What the command line says of the pool."""
    data = given["data"]
    if args.classes and not person:
        raise ValueError("--classes is for --ask: of a simulation the column itself says what classes there are")
    if options.is_album(data):
        return _pictures(args, given, person)
    for option in ("labels", "size"):
        if getattr(args, option) is not None:
            raise ValueError(f"--{option} is for a directory of pictures, which {data} is not")
    if options.is_table(data):
        if "target" not in given:
            raise ValueError("a table needs --target COLUMN, the labels to ask for")
        named = {name: given[name] for name in ("target", "kind", "drop", "sep", "test") if name in given}
        return Source(data, classes=args.classes, person=person, table=fingerprint(data), **named)
    for option in ("target", "kind", "drop", "sep", "test"):
        if option in given:
            raise ValueError(f"--{option} is for .csv and .parquet files, but DATA is the name {data!r}")
    if args.classes:
        raise ValueError(f"--classes is for .csv and .parquet files: the classes of {data} are known")
    return Source(data, person=person, features=args.features)


def _pictures(args: argparse.Namespace, given: dict[str, Any], person: bool) -> Source:
    """What the command line says of a person's own pictures."""
    data = given["data"]
    if not person:
        raise ValueError(f"--ask or --tell must be given for pictures of your own ({data}): who else knows the labels?")
    for option in ("target", "drop"):
        if option in given:
            raise ValueError(
                f"--{option} is for .csv and .parquet files: the labels of pictures are the column {LABEL}"
            )
    named = {name: given[name] for name in ("kind", "sep", "test") if name in given}
    content = albums.fingerprint(data)
    labels = None if args.labels is None else str(Path(args.labels).resolve())
    if labels is not None:
        content += fingerprint(labels)
    about = {"classes": args.classes, "features": args.features, "labels": labels, "size": args.size}
    return Source(data, person=True, table=content, **named, **about)


def _plan(args: argparse.Namespace, given: dict[str, Any], pool: Pool, person: bool) -> Plan:
    """What the command line says of the rounds."""
    names = ("set", "hidden", "likelihood", "prior", "temperature", "epochs", "batch_size")
    named = {name: given[name] for name in names if name in given}
    for name in ("start", "batch", "samples", "candidates", "balanced", "warm"):
        named[name] = getattr(args, name)
    budget = len(pool) if person else min(BUDGET, len(pool))
    method = given.get("method") or options.default_method(given["data"])
    return Plan(method, budget=budget if args.budget is None else args.budget, **named)


def _check(args: argparse.Namespace, pool: Pool, plan: Plan, names: Sequence[str], person: bool) -> None:
    """Errors now rather than after hours."""
    if not names:
        raise ValueError("--acquire must name at least one acquisition, got none")
    if person and (len(names) > 1 or len(args.seeds) > 1):
        raise ValueError("--acquire and --seeds must be one each with --ask and --tell: a person answers once")
    if args.features is not None and pool.image_shape is None:
        raise ValueError(f"--features {args.features} is for pictures, which the rows of {pool.name} are not")
    if args.ask is not None and not args.ask.endswith((".csv", ".html")):
        raise ValueError(f"--ask must be a file that ends in .csv or .html, got {args.ask}")
    for name in names:
        chosen(name).check(pool.kind)
    # a session checks everything against the pool before it learns
    Session(pool, names[0], **_arguments(Cell(Source(""), plan, names[0], 0), pool))


def _with_a_person(args: argparse.Namespace, folder: Path, opened_pool: Opened, cell: Cell) -> None:
    """Read answers, learn, and write the next question."""
    pool, target = opened_pool.pool, cell.source.target or LABEL
    settings = _arguments(cell, pool, encoder_of(cell.source, pool, folder))
    session = Session(pool, cell.acquire, **settings, out=_place(folder, cell), tell=say)
    if args.tell is not None:
        labels = questions.read(args.tell, session.result, pool, target, cell.source.sep)
        session.tell(labels)
        say(f"{len(labels)} labels told, {session.result.known} of {len(pool)} rows are known")
    if args.ask is not None:
        _question(args, session, opened_pool, target)
    elif session.result.rows:
        session.learn()
    if session.result.labels:
        _publish(args, folder, opened_pool, [cell], [session.result])


def _question(args: argparse.Namespace, session: Session, opened_pool: Opened, target: str) -> None:
    """The rows to be labelled next, as a table and as a page."""
    from bayesrule.report import active as report

    rows = session.ask().tolist()
    if not rows:
        say(f"the budget of {session.settings.budget} labels is spent: nothing to ask")
        return
    frame = None if opened_pool.frame is None else opened_pool.frame.iloc[rows]
    table = questions.written(session.result, target, frame)
    columns = queried.columns(opened_pool, target)
    examples = [queried.questioned(opened_pool, row, columns) for row in rows]
    path = Path(args.ask).with_suffix(".csv")
    page = path.with_suffix(".html")
    name = questions.identity(session.result, rows)
    write_atomically(path, table.to_csv(index=False))
    write_atomically(page, report.answering(name, target, rows, examples, columns, opened_pool.pool.classes))
    say(f"wrote {len(rows)} rows to label to {path}: fill in the column {target}; or answer in a browser: {page}")


def _publish(
    args: argparse.Namespace, folder: Path, opened_pool: Opened, cells: Sequence[Cell], results: Sequence[Result]
) -> None:
    from bayesrule.report import active as report  # matplotlib takes a while
    from bayesrule.report.runs import png

    runs: dict[str, list[Result]] = {}
    for cell, result in zip(cells, results, strict=True):
        runs.setdefault(cell.acquire, []).append(result)
    pool, source, plan = opened_pool.pool, cells[0].source, cells[0].plan
    about = provenance(args.command, args.seeds[0])
    used = {key: value for key, value in asdict(plan).items() if value not in (None, (), False)}
    facts = [("command", args.command), *((key, str(value)) for key, value in used.items())]
    facts.append(("seeds", ", ".join(map(str, args.seeds))))
    facts.append(("versions", " · ".join(f"{name} {version}" for name, version in about["versions"].items())))
    title = source.data if source.table is None else Path(source.data).name
    summary = f"{len(pool)} rows, {'answered by a person' if source.person else 'their labels known'}"
    asked = [queried.asked(opened_pool, name, found[0], source.target) for name, found in runs.items()]
    curves = report.Curves(title, summary, runs, pool.kind == "classes", args.reach, facts, opened_pool.notes, asked)
    heads, table = report.headings(curves), report.lines(curves)
    rows = {}
    for line in table:
        rows[line.name] = {head: _plain(cell) for (head, _), cell in zip(heads, line.cells, strict=True)}
    plain = {"pool": title, **about, "seeds": list(args.seeds), "settings": used, "table": rows}
    plain["cells"] = [result.to_json() for result in results]
    write_atomically(folder / "curves.png", png(report.figure(curves)))
    write_atomically(folder / "report.html", report.render(curves))
    write_atomically(folder / "result.json", json.dumps(plain, indent=1))
    if args.json:
        show_json(plain)
    else:
        shown = [head for head, _ in heads]
        body = []
        for line in table:
            texts = []
            for head, score in zip(shown, line.cells, strict=True):
                texts.append(score.text if "accuracy" in head else score.short)
            body.append([line.name, *texts])
        show_table(["acquisition", *shown], body, right=True)
    say(f"wrote {folder / 'result.json'} and {folder / 'report.html'}")


def _plain(cell: Any) -> dict[str, Any]:
    """A score for programs; a number that was never reached is none."""
    return {"mean": None if cell.mean == float("inf") else cell.mean, "error": cell.error, "text": cell.text}


def _place(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.acquire}-{cell.seed}"


def _told(cell: Cell, answer: dict[str, Any]) -> str:
    end = answer["summary"]
    return f"{cell.acquire}, seed {cell.seed}: {end['labels']} labels, accuracy {end.get('accuracy', float('nan')):.4f}"


def _shares(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < share <= 1 for share in found):
        raise argparse.ArgumentTypeError(f"must be shares above 0 and at most 1, as in 0.9,0.95, got {text!r}")
    return found
