"""The results of a verb that trains or evaluates: a leaderboard or JSON, ``scores.json`` and ``report.html``."""

from __future__ import annotations

import json
from pathlib import Path

from bayesrule.cli.terminal import say, show_board, show_json, show_opening
from bayesrule.files import write_atomically
from bayesrule.report import Comparison, Opening, verdict, write


def publish(comparison: Comparison, folder: Path | None, as_json: bool, opening: Opening | None = None) -> None:
    """Show the scores, and write them and the page to ``folder`` if there is one; ``opening`` comes first in both."""
    plain = {"verdict": opening.verdict if opening is not None else verdict(comparison), **comparison.to_json()}
    if opening is not None:
        plain["scenes"] = {scene.id: dict(scene.figures) for scene in opening.scenes}
    if folder is not None:
        write_atomically(folder / "scores.json", json.dumps(plain, indent=2))
        write(folder / "report.html", comparison, opening)
    if as_json:
        show_json(plain)
    else:
        if opening is not None:
            show_opening(opening)
        show_board(comparison)
        if opening is None:
            print(plain["verdict"])
    for warning in comparison.warnings:
        say(warning)
    if folder is not None:
        say(f"wrote {folder / 'scores.json'} and {folder / 'report.html'}")
