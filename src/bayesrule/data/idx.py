"""The idx format of MNIST and its relatives.

======= ======================================================================
bytes   meaning
======= ======================================================================
0, 1    zero
2       type: 08 uint8, 09 int8, 0B int16, 0C int32, 0D float32, 0E float64
3       d, the number of dimensions
4 …     d sizes, each a big-endian uint32
then    the values, big-endian, the last dimension varying fastest
======= ======================================================================
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesrule.data import compressed
from bayesrule.data.splits import Pair

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an idx file, plain or ``.gz``.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([7, 2, 1]))
    >>> read_idx(path).tolist()
    [7, 2, 1]
    """
    raw = compressed.read(path, 4 + 4 * 255)  # the longest header there can be
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _DTYPES or raw[3] == 0:
        raise ValueError(
            f"{path} is not an idx file: it starts with {raw[:4].hex(' ') or 'nothing'}, not 00 00 TYPE DIM"
        )
    dtype, start = np.dtype(_DTYPES[raw[2]]), 4 + 4 * raw[3]
    if len(raw) < start:
        raise ValueError(f"{path} is truncated: its header needs {start} bytes, it has {len(raw)}. Fetch it again")
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    expected = start + math.prod(shape) * dtype.itemsize
    raw = compressed.read(path, expected + 1)  # one more tells a file that goes on
    if len(raw) < expected:
        raise ValueError(
            f"{path} is truncated: shape {shape} needs {expected} bytes, it has {len(raw)}. Fetch it again"
        )
    if len(raw) > expected:
        raise ValueError(
            f"{path} is too long: shape {shape} needs {expected} bytes, it has {len(raw)} or more. Fetch it again"
        )
    # astype copies: the bytes may not be written to, and torch takes native byte order only.
    return np.frombuffer(raw, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def pictures(folder: Path, part: str) -> Pair:
    """Pictures [N, 1, H, W] in [0, 1] and labels of ``part``, ``train`` or ``t10k``, of an MNIST-like folder."""
    paths = [folder / f"{part}-{which}" for which in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    images, labels = (read_idx(path) for path in paths)
    if images.ndim != 3 or images.dtype != np.uint8 or labels.ndim != 1 or len(images) != len(labels):
        raise ValueError(
            f"{paths[0]} must hold N pictures [N, H, W] of bytes and {paths[1].name} N labels, "
            f"got {images.dtype}{list(images.shape)} and {labels.dtype}{list(labels.shape)}"
        )
    return torch.from_numpy(images)[:, None].float().div_(255), torch.from_numpy(labels).long()
