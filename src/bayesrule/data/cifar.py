"""The binary format of CIFAR-10: records of one label byte and 3072 pixel bytes, three 32 × 32 planes R, G, B."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bayesrule.data import compressed
from bayesrule.data.splits import Pair

TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = "test_batch.bin"
_RECORD = 1 + 3 * 32 * 32
MOST = 60_000
"""All pictures of CIFAR-10; each of its files has 10 000."""


def read_cifar10(path: Path) -> Pair:
    """Pictures [N, 3, 32, 32] in [0, 1] and labels of one ``.bin`` or ``.bin.gz`` file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "test_batch.bin"
    >>> _ = path.write_bytes(bytes([3] + [255] * 3072))
    >>> x, y = read_cifar10(path)
    >>> x.shape, x.min().item(), y.tolist()
    (torch.Size([1, 3, 32, 32]), 1.0, [3])
    """
    raw = compressed.read(path, MOST * _RECORD + 1)
    if len(raw) > MOST * _RECORD:
        raise ValueError(f"{path} must hold at most {MOST} pictures: it is no CIFAR-10 binary file. Fetch it again")
    if not raw or len(raw) % _RECORD:
        raise ValueError(
            f"{path} must be whole records of {_RECORD} bytes, got {len(raw)} bytes, "
            f"{len(raw) % _RECORD} too many: it is truncated or no CIFAR-10 binary file. Fetch it again"
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, _RECORD)
    if (top := records[:, 0].max()) > 9:
        raise ValueError(f"{path} must hold labels 0 to 9, got {top}: it is no CIFAR-10 binary file")
    # Copies: torch warns of memory that must not be written to, and that of bytes must not.
    labels, pixels = (torch.from_numpy(part.copy()) for part in (records[:, 0], records[:, 1:]))
    return pixels.reshape(-1, 3, 32, 32).float().div_(255), labels.long()
