"""A pool from a table or a directory of pictures: what has no label yet, or none to be looked at, may be asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bayesrule.active.pools import Examples, Pool
from bayesrule.data import Kind, Schema, albums, load_table
from bayesrule.data.columns import as_texts, sorted_texts
from bayesrule.data.reading import open_table, stem
from bayesrule.data.tables import known_rows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class TablePool:
    """A pool of rows, their ``schema`` (None: pictures), the rows as people read them, and ``notes``: sentences."""

    pool: Pool
    schema: Schema | None
    frame: pd.DataFrame
    notes: tuple[str, ...]


def simulated(
    path: str | Path,
    target: str,
    test: float | str | Path = 0.2,
    seed: int = 0,
    kind: Kind | None = None,
    sep: str | None = None,
    without: Collection[str] = (),
) -> TablePool:
    """A table whose target is known: the column answers. Arguments are those of `br.data.load_table`."""
    split, schema = load_table(path, target, test, seed, kind, sep=sep, without=without)
    pool = Pool(
        split.train[0].float(),
        split.kind,
        _labels(split.train[1]),
        (split.test[0].float(), _labels(split.test[1])),
        split.classes,
        split.name,
        features=split.features,
    )
    return TablePool(pool.standardized(), schema, _decoded(schema, split.train[0]), schema.notes)


def asked(
    path: str | Path,
    target: str,
    test: str | Path | None = None,
    classes: Sequence[str] = (),
    kind: Kind | None = None,
    sep: str | None = None,
    without: Collection[str] = (),
) -> TablePool:
    """A table whose target a person will tell: the column may be missing; where it has values these are known.

    ``classes``: names of labels that do not occur yet. ``test``: a table to be judged on.
    """
    opened = open_table(path, sep)
    frame = opened.frame
    if target not in frame:
        frame = frame.assign(**{target: None})
    filled = _filled(frame, target)
    kind, names, notes = _announced(frame[filled], target, kind, classes)
    schema = Schema.learn(_pretended(frame, target, kind, names), target, kind, without)
    schema = replace(schema, classes=names, notes=(*opened.notes, *notes, *schema.notes[1:]))
    known = torch.from_numpy(np.flatnonzero(filled))
    given = _labels(torch.from_numpy(schema.targets(frame[filled]))) if filled.any() else torch.zeros(0)
    judged: Examples | None = None
    if test is not None:
        held, _ = known_rows(open_table(test, sep).frame, target)
        judged = torch.from_numpy(schema.inputs(held)).float(), _labels(torch.from_numpy(schema.targets(held)))
    x = torch.from_numpy(schema.inputs(frame)).float()
    pool = Pool(x, kind, None, judged, names, stem(path), known, given, schema.features)
    return TablePool(pool.standardized(), schema, frame, schema.notes)


def pictured(
    path: str | Path,
    target: str = "label",
    test: str | Path | None = None,
    classes: Sequence[str] = (),
    kind: Kind | None = None,
    labels: str | Path | None = None,
    size: int | None = None,
) -> TablePool:
    """Pictures whose labels a person will tell, each with the name of its file; see `albums.read_album`.

    What is known already: pictures in a directory that has the name of a class, and those that the table ``labels``
    names. ``test``: pictures of the same kind, in directories named by class, to be judged on.
    """
    import pandas as pd

    album = albums.read_album(path, size)
    told = albums.known_labels(album, classes, labels)
    frame = pd.DataFrame({albums.FILE: album.names, target: pd.Series(told, dtype=object)})
    filled = _filled(frame, target)
    kind, names, notes = _announced(frame[filled], target, kind or "classes", classes)
    given = _numbered(frame[target][filled].tolist(), kind, names)
    judged = None if test is None else _held(albums.read_album(test, size), kind, names, test)
    shape = album.x.shape
    if judged is not None and judged[0][0].shape != shape[1:]:  # type: ignore[index]
        raise ValueError(
            f"test must hold pictures of the shape {list(shape[1:])}, as the pool does: give --size to both"
        )
    known, image_shape = torch.from_numpy(np.flatnonzero(filled)), (shape[1], shape[2], shape[3])
    pool = Pool(album.x, kind, None, judged, names, Path(path).stem, known, given, image_shape=image_shape)
    said = f"{len(pool)} pictures of {shape[3]} x {shape[2]} pixels, {'grey' if shape[1] == 1 else 'in colour'}"
    return TablePool(pool, None, frame, (said, *notes))


def _held(album: albums.Album, kind: Kind, classes: Sequence[str], path: str | Path) -> Examples:
    """Pictures that are labelled by their directories."""
    told = albums.known_labels(album, classes)
    rows = [row for row, text in enumerate(told) if text is not None]
    if kind != "classes" or not rows:
        raise ValueError(f"test {path} must hold pictures in directories named by class ({', '.join(classes)})")
    return album.x[rows], _numbered([text for text in told if text is not None], kind, classes)


def _numbered(told: Sequence[str], kind: Kind, classes: Sequence[str]) -> torch.Tensor:
    """Labels that a person wrote, as numbers."""
    if kind == "classes":
        return torch.tensor([classes.index(text) for text in told], dtype=torch.int64)
    values = []
    for text in told:
        try:
            values.append(float(text))
        except ValueError:
            raise ValueError(f"known labels must be numbers, as the kind is {kind}, got {text!r}") from None
    return torch.tensor(values) if kind == "reals" else torch.tensor(values, dtype=torch.int64)


def _filled(frame: pd.DataFrame, target: str) -> Any:
    """Which rows have a label; an error if all do."""
    filled = frame[target].notna().to_numpy()
    if filled.all():
        raise ValueError(f"target {target!r} must be empty in some rows to be asked for, but all {len(frame)} have one")
    return filled


def _announced(
    known: pd.DataFrame, target: str, kind: Kind | None, classes: Sequence[str]
) -> tuple[Kind, tuple[str, ...], list[str]]:
    """What labels there will be: by the values that are there, and by what was announced."""
    import pandas as pd

    if classes and kind not in (None, "classes"):
        raise ValueError(f"classes must be announced of classes alone, but the kind is {kind}: leave one of them out")
    said = f"target {target!r}: {len(known)} rows have a value already"
    if kind is None and not classes:
        if not len(known):
            raise ValueError(
                f"target {target!r} has no value yet, so classes must be announced (--classes yes,no) or the kind "
                "given (--kind reals)"
            )
        kind = Schema.learn(known, target).kind
    if kind in ("reals", "counts"):
        return kind, (), [said]
    names = sorted_texts(pd.Series([*as_texts(known[target]), *classes], dtype=object))
    if len(names) < 2:
        raise ValueError(f"classes must be at least two, got {', '.join(names) or 'none'}: announce them (--classes)")
    return "classes", names, [f"{said}; classes {', '.join(names)}"]


def _pretended(frame: pd.DataFrame, target: str, kind: Kind, classes: Sequence[str]) -> pd.DataFrame:
    """The table with a target that says no more than its kind: columns become inputs by all rows."""
    values: list[Any] = list(classes) if kind == "classes" else [0, 1]
    return frame.assign(**{target: [values[row % len(values)] for row in range(len(frame))]})


def _decoded(schema: Schema, x: torch.Tensor) -> pd.DataFrame:
    """Inputs as a table."""
    import pandas as pd

    return pd.DataFrame(x.numpy(), columns=list(schema.features))


def _labels(y: torch.Tensor) -> torch.Tensor:
    return y.float() if y.is_floating_point() else y
