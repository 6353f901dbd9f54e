"""Files that may be gzip'd."""

from __future__ import annotations

import gzip
import sys
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


def read(path: Path, most: int) -> bytes:
    """The first bytes of ``path`` (or of ``path`` + ``.gz``), at most so many, unpacked if the name ends in ``.gz``.

    A small packed file may unpack to more than any memory holds: whoever reads it says how much there can be.
    """
    found = find(path)
    most = min(most, sys.maxsize)
    if found.suffix != ".gz":
        with open(found, "rb") as plain:
            return plain.read(most)
    try:
        with gzip.open(found) as file:
            return file.read(most)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{found} is damaged or not a gzip file ({error}): fetch it again") from error
