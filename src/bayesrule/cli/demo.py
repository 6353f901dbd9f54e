"""What one plain network cannot do, and every method on a few labelled digits, in some three minutes: start here."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from bayesrule.cli import compare, options, sources
from bayesrule.cli.options import RunSettings, default_method
from bayesrule.cli.results import publish
from bayesrule.cli.runs import Run, refuse
from bayesrule.cli.terminal import say
from bayesrule.report import Comparison, Entry, Opening, examine
from bayesrule.report.scenes import mistakes, promise, strangers, verdict

EPILOG = ""
DIGITS, TABLE = "few-digits", "diabetes"
PLAIN = "one plain network"
LOOK = """
Then open {page} in a browser: pictures first, and the least certain digits, the ones that people argue about.
Your own data: bayesrule fit FILE.csv --target COLUMN"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.about_output(parser, "where scores.json and report.html go (demo)")
    options.seed(parser)
    options.about_effort(parser)


def run(args: argparse.Namespace) -> None:
    """Scenes and a leaderboard on one page. A second demo replaces the first."""
    folder = Path(args.out or "demo")
    if not _earlier_demo(folder):
        refuse(folder)
    given = options.given(args)
    ours = default_method(DIGITS)
    each = compare.per_method(RunSettings(data=DIGITS, **given), compare.every_method())
    board = compare.comparison(each, args.command, None)
    trained = {entry.name: entry for entry in board.entries}
    pair = replace(board, entries=[replace(trained["mle"], name=PLAIN), trained[ours]], baselines=())
    table = _table(RunSettings(data=TABLE, **given), args.command)
    scenes = [mistakes(pair), strangers(pair), promise(table)]
    opening = Opening(verdict(scenes, PLAIN, (ours, table.entries[-1].name)), scenes)
    publish(board, folder, args.json, opening)
    say(LOOK.format(page=folder / "report.html"))


def _table(settings: RunSettings, command: str) -> Comparison:
    """Intervals of one plain network, of one that measures its noise on held-out rows, and of the default method.

    A network that fits its own rows closely takes the little that is left there for the noise.
    """
    source = sources.read(settings)
    split, schema, _ = source
    ours = default_method(settings.data)
    ways: dict[str, tuple[str, float | None]] = {
        PLAIN: ("mle", 0.0),
        "the same, noise from held-out rows": ("mle", 0.2),
        ours: (ours, None),
    }
    entries: list[Entry] = []
    for name, (method, val) in ways.items():
        posterior = Run.of(replace(settings, method=method), source, command).train(split, None, None, val)
        entries.append(examine(name, posterior, split, seed=settings.seed))
    return Comparison(split, entries, command, settings.seed, schema)


def _earlier_demo(folder: Path) -> bool:
    try:
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    return str(scores.get("command", "")).startswith("bayesrule demo")
