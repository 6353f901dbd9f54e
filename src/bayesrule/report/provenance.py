"""Where numbers come from: all that is needed to have them again."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any


def provenance(command: str, seed: int) -> dict[str, Any]:
    """What every file of results says of itself: command, commit, seed, date, machine and versions.

    >>> list(provenance("bayesrule demo", 0))
    ['command', 'commit', 'seed', 'date', 'machine', 'versions']
    """
    return {
        "command": command,
        "commit": commit(),
        "seed": seed,
        "date": date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
    }


@cache
def commit() -> str | None:
    """The commit of the source that runs, with ``-dirty`` if it was changed since; None if it is installed."""
    here = Path(__file__)
    package = here.parents[1]
    try:
        # An installed copy may lie within a repository of the user's, whose commit says nothing of this code.
        _git(package, "ls-files", "--error-unmatch", str(here))
        changed = _git(package, "status", "--porcelain", "--", ".")
        return _git(package, "rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *what: str) -> str:
    return subprocess.run(["git", "-C", folder, *what], check=True, capture_output=True, text=True).stdout.strip()


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    packages = {name: version(name) for name in ("bayesrule", "torch", "numpy")}
    return packages | {"python": platform.python_version()}


def machine() -> str:
    """What the numbers were made on."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
