"""Files that may be gzip'd."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path


def find(path: Path) -> Path:
    """``path`` or ``path`` + ``.gz``, whichever is there."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"looked for {path} (or {path.name}.gz) and found neither: "
        "set data_dir or $BAYESRULE_DATA to the directory that holds the data sets"
    )


def read(path: Path) -> bytes:
    """The bytes of ``path`` (or of ``path`` + ``.gz``), unpacked if the name ends in ``.gz``."""
    found = find(path)
    if found.suffix != ".gz":
        return found.read_bytes()
    try:
        with gzip.open(found) as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{found} is damaged or not a gzip file ({error}): fetch it again") from error
