"""Pictures of a user's own: a directory of PNG and JPEG files, or an array in an ``.npz`` file."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesrule.data.columns import as_texts
from bayesrule.data.reading import fingerprint as of_file
from bayesrule.data.reading import open_table
from bayesrule.naming import unknown

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg")
MOST = 2**31
"""Bytes that all pictures together may take as numbers, unless told otherwise."""
GREY, COLOURED = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # Pillow's names, all of 8 bits or 1
TURNED = 0x0112  # the tag of a camera that was held upright: from 5 on the sides change places
FILE, LABEL = "file", "label"  # columns of known labels


class Album(NamedTuple):
    """Pictures [N, C, H, W] in [0, 1], and their names: of files below the directory, or numbers of rows."""

    x: Tensor
    names: tuple[str, ...]


def is_album(path: str | Path) -> bool:
    """Whether there may be pictures: it is a directory, or its name ends in ``.npz``."""
    return Path(path).is_dir() or Path(path).suffix.lower() == ".npz"


def read_album(path: str | Path, size: int | None = None, most: int = MOST) -> Album:
    """All pictures below a directory in the order of their names, or the array ``X`` of an ``.npz`` file.

    ``size``: cut the middle square out of each file and scale it to so many pixels a side; None: they are of one size
    already. ``most``: bytes that may be needed, refused before anything is decoded.
    """
    path = Path(path)
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1 pixel, not {size}")
    if path.suffix.lower() == ".npz":
        if size is not None:
            raise ValueError(f"size is for files of pictures, but {path} is an array: scale its pictures before")
        x = _array(path, most)
        return Album(x, tuple(map(str, range(len(x)))))
    files = _files(path)
    shape = _shape(path, files, size)
    _check_bytes(path, len(files) * int(np.prod(shape)), most)
    x = torch.empty(len(files), *shape)
    for place, file in enumerate(files):
        x[place] = _pixels(path / file, shape[0], size)
    return Album(x, files)


def known_labels(album: Album, classes: Collection[str], labels: str | Path | None = None) -> list[str | None]:
    """What is known of each picture: the name of its directory, if it is that of a class, or what a table says.

    ``labels``: a table with the columns ``file``, as in ``album.names``, and ``label``. It is believed rather than
    directories.
    """
    found: dict[str, str | None] = {}
    for name in album.names:
        folder = Path(name).parent.name
        found[name] = folder if folder in classes else None
    if labels is not None:
        frame = open_table(labels, texts={FILE}).frame
        for column in (FILE, LABEL):
            if column not in frame:
                have = ", ".join(map(str, frame.columns))
                raise ValueError(f"{labels} must have the columns {FILE} and {LABEL}, but has {have}")
        if (twice := frame[FILE].duplicated()).any():
            raise ValueError(f"{labels} must name each file once, but {frame[FILE][twice].iloc[0]!r} is there twice")
        for name, text in zip(map(str, frame[FILE]), as_texts(frame[LABEL]), strict=True):
            if name not in found:
                raise ValueError(f"{labels}: {unknown('file', name, album.names)}")
            found[name] = text or found[name]
    return list(found.values())


def fingerprint(path: str | Path) -> str:
    """Of the names and sizes of all files, or of all bytes of an ``.npz`` file."""
    path = Path(path)
    if not path.is_dir():
        return of_file(path)
    digest = hashlib.sha256()
    for name in _files(path):
        digest.update(f"{name}\n{(path / name).stat().st_size}\n".encode())
    return digest.hexdigest()


def preview(file: Path, side: int = 480) -> bytes:
    """A picture for people as a PNG, at most so many pixels a side."""
    with _opened(file) as image:
        image.thumbnail((side, side))
        stream = io.BytesIO()
        image.convert("RGB").save(stream, format="png")
        return stream.getvalue()


def _files(folder: Path) -> tuple[str, ...]:
    """Names of pictures below a directory; those that begin with a dot belong to the system."""
    found = []
    for file in folder.rglob("*"):
        name = file.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if file.suffix.lower() in ENDINGS and not hidden and file.is_file():
            found.append(name.as_posix())
    if not found:
        raise ValueError(f"{folder} must hold pictures, files that end in {', '.join(ENDINGS)}, but has none")
    return tuple(sorted(found))


def _shape(folder: Path, files: tuple[str, ...], size: int | None) -> tuple[int, int, int]:
    """Channels, height and width, by the headers alone."""
    sizes: dict[str, tuple[int, int]] = {}
    grey = True
    for name in files:
        with _opened(folder / name) as image:
            if image.mode not in (*GREY, *COLOURED):
                raise ValueError(f"{folder / name} must have pixels of 8 bits, got the mode {image.mode}: convert it")
            sizes[name] = image.size
            grey = grey and image.mode in GREY
    channels = 1 if grey else 3
    if size is not None:
        return channels, size, size
    (usual, count), *others = Counter(sizes.values()).most_common()
    if others:
        odd = next(name for name in files if sizes[name] != usual)
        raise ValueError(
            f"all pictures must be of one size, but {count} of {len(files)} are {usual[0]} x {usual[1]} pixels and "
            f"{odd} is {sizes[odd][0]} x {sizes[odd][1]}: --size 64 makes squares of 64 pixels of all of them"
        )
    return channels, usual[1], usual[0]


@contextmanager
def _opened(file: Path) -> Iterator[Image]:
    """A picture as a camera held it, of which so far only the header was read; one line if it is damaged."""
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as image:
            upright = image.getexif().get(TURNED, 1) == 1
            yield image if upright else ImageOps.exif_transpose(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises, by format
        raise ValueError(f"{file} cannot be read as a picture ({error}): repair it, or take it away") from error


def _pixels(file: Path, channels: int, size: int | None) -> Tensor:
    """One picture [C, H, W] in [0, 1]."""
    from PIL import ImageOps

    with _opened(file) as image:
        plain = image.convert("L" if channels == 1 else "RGB")
        pixels = np.array(plain if size is None else ImageOps.fit(plain, (size, size)))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).movedim(2, 0) / 255


def _array(path: Path, most: int) -> Tensor:
    """The array X of an archive as pictures."""
    try:
        with zipfile.ZipFile(path) as archive:
            held = {entry.filename: entry.file_size for entry in archive.infolist()}
        if "X.npy" not in held:
            raise ValueError(f"it must have an array X, but has {', '.join(held) or 'nothing'}")
        _check_bytes(path, held["X.npy"] // 4, most)  # before it is unpacked
        with np.load(path, allow_pickle=False) as opened:
            array = opened["X"]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if array.ndim not in (3, 4) or 0 in array.shape or array.dtype.kind not in "uif":
        raise ValueError(
            f"X of {path} must be pictures [N, H, W], [N, C, H, W] or [N, H, W, C] of numbers, got {array.dtype} "
            f"{list(array.shape)}"
        )
    _check_bytes(path, array.size, most)
    x = torch.from_numpy(array.astype(np.float32))
    if array.dtype == np.uint8:
        x /= 255
    elif not (float(x.min()) >= 0 and float(x.max()) <= 1):  # nor is NaN
        raise ValueError(
            f"X of {path} must be bytes or numbers in [0, 1], but they are from {float(x.min()):.3g} to "
            f"{float(x.max()):.3g}"
        )
    if x.ndim == 3:
        return x[:, None]
    last = x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)
    return x.movedim(3, 1).contiguous() if last else x


def _check_bytes(path: Path, numbers: int, most: int) -> None:
    if 4 * numbers > most:
        raise ValueError(
            f"the pictures of {path} must fit in {most / 1e9:.1f} GB, but take {4 * numbers / 1e9:,.1f} GB as numbers: "
            "make them smaller (--size 64), or give fewer"
        )
