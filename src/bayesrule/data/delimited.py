"""Tables in text files: how one is written, found by looking at it.

=========== ===========================================================================================
what        how it is found
=========== ===========================================================================================
separator   of , ; tab and | the one that cuts the first lines into as many cells as the header has
decimals    a comma where the separator is another, some cells look like 1,5 and none looks like 1.5
encoding    UTF-16 and UTF-8 by their marks, UTF-8 if all bytes are; otherwise Windows' (cp1252), with a note
gzip        by the name, ``.gz``; what unpacks to far more than any table does is refused
=========== ===========================================================================================
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

SEPARATORS = (";", "\t", "|", ",")
"""Where two cut the lines equally well, the first: a comma is more often within a cell than the others."""
NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "sign |"}
BLOCK = 2**20
HEAD = 2**18
"""Bytes that separator and decimals are found in."""
UNPACKED = 2**28
"""Bytes that any gzip file may unpack to; a larger one to `RATIO` times its size."""
RATIO = 100
"""Tables shrink to a tenth or a fiftieth; what shrinks to a thousandth was made to fill a memory."""


@dataclass(frozen=True)
class Form:
    """How a text file is written. ``notes`` are sentences on what is not as usual."""

    path: Path
    separator: str
    decimal: str
    encoding: str
    lines: int
    notes: tuple[str, ...] = ()

    @property
    def pandas(self) -> dict[str, Any]:
        """The same for `pandas.read_csv`."""
        return {
            "sep": self.separator,
            "decimal": self.decimal,
            "encoding": self.encoding,
            "skipinitialspace": True,
            "compression": "gzip" if _packed(self.path) else None,
        }

    def starts(self) -> list[int]:
        """The first line of every record that is not empty, from 1; of fewer, if the file cannot be read to its end."""
        found: list[int] = []
        with self._opened() as text, suppress(csv.Error):
            reader, before = csv.reader(text, delimiter=self.separator, skipinitialspace=True), 0
            for record in reader:
                if record:  # pandas skips empty lines
                    found.append(before + 1)
                before = reader.line_num
        return found

    def _opened(self) -> IO[str]:
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        unpacked = gzip.open if _packed(self.path) else open
        return cast(IO[str], unpacked(self.path, "rt", newline="", encoding=encoding, errors="replace"))


def recognise(path: Path, separator: str | None = None) -> Form:
    """How a file is written; a ``separator`` that is given is not looked for."""
    if separator is not None and (len(separator) != 1 or separator in "\"'\r\n"):
        raise ValueError(f"sep must be one sign that separates cells, such as ';', got {separator!r}")
    head, lines, utf8 = _scan(path)
    notes: list[str] = []
    encoding = "utf-8"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif head.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    elif not utf8:
        encoding = "cp1252"
        notes.append("the file is not UTF-8: its letters are read as Windows writes them (cp1252)")
    text = head.decode(encoding, errors="replace")
    if len(head) == HEAD:  # the last line may be cut
        text = text[: text.rfind("\n") + 1] or text
    if separator is None:
        separator = _separator(text)
        if separator != ",":
            notes.append(f"the separator of columns is the {NAMES[separator]}")
    decimal = "."
    if separator != "," and _decimal_commas(_records(text, separator)):
        decimal = ","
        notes.append("numbers have decimal commas")
    return Form(path, separator, decimal, encoding, lines, tuple(notes))


def _packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _scan(path: Path) -> tuple[bytes, int, bool]:
    """The first bytes of a file, its number of lines, and whether all of it is UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    head, lines, utf8, last = b"", 0, True, b"\n"
    for block in _blocks(path):
        if len(head) < HEAD:
            head += block[: HEAD - len(head)]
        lines += block.count(b"\n")
        last = block[-1:]
        if utf8:
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                utf8 = False
    return head, lines + (last != b"\n"), utf8


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked; an error where they are too many to be a table."""
    if not _packed(path):
        with open(path, "rb") as plain:
            while block := plain.read(BLOCK):
                yield block
        return
    most, total = max(UNPACKED, RATIO * path.stat().st_size), 0
    try:
        with gzip.open(path) as file:
            while block := file.read(BLOCK):
                total += len(block)
                if total > most:
                    raise ValueError(
                        f"{path} must unpack to at most {most} bytes, {RATIO} times its size or {UNPACKED}, but it "
                        "unpacks to more: unpack it yourself if it is a table"
                    )
                yield block
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or not a gzip file ({error}): fetch it again") from error


def _records(text: str, separator: str) -> list[list[str]]:
    """The records in the first lines of a file."""
    records: list[list[str]] = []
    with suppress(csv.Error):
        lines = text.splitlines(keepends=True)
        records.extend(r for r in csv.reader(lines, delimiter=separator, skipinitialspace=True) if r)
    return records


def _separator(text: str) -> str:
    """The separator that the most records agree on."""
    best, share = ",", 0.0
    for separator in SEPARATORS:
        header, *rows = _records(text, separator) or [[]]
        if len(header) < 2 or not rows:
            continue
        if any(_torn(cell) for cell in header):
            continue
        agree = sum(len(row) == len(header) and not any(map(_torn, row)) for row in rows) / len(rows)
        if agree > share:
            best, share = separator, agree
    # Lines that fit no separator are a CSV file with a mistake, and pandas' message names the line.
    return best if share >= 0.5 else ","


def _torn(cell: str) -> bool:
    """Whether a cell has one end of a text in quotes and not the other: it was cut by a wrong separator."""
    return cell.count('"') % 2 == 1


_COMMA, _POINT = re.compile(r"[+-]?\d*,\d+"), re.compile(r"[+-]?\d*\.\d+")


def _decimal_commas(records: list[list[str]]) -> bool:
    cells = [cell.strip() for record in records[1:] for cell in record]
    return any(map(_COMMA.fullmatch, cells)) and not any(map(_POINT.fullmatch, cells))
