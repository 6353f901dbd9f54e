"""A directory of runs belongs to the settings that they were made with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesrule.files import write_atomically


def claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Mark a directory as that of some settings, in ``settings.json``, or refuse it if it is of others."""
    path = folder / "settings.json"
    mine = json.loads(json.dumps(dict(settings)))
    if not path.is_file():
        write_atomically(path, json.dumps(mine, indent=1))
        return
    theirs = json.loads(path.read_text(encoding="utf-8"))
    for name in {**theirs, **mine}:
        if theirs.get(name) != mine.get(name):
            what = {"table": "another content of the table"}.get(name, f"{name} {theirs.get(name)!r}")
            raise FileExistsError(
                f"--out {folder} holds runs with {what}, not {mine.get(name)!r}: choose another directory, or delete it"
            )
