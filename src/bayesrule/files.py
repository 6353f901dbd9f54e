"""Trees of tensors and plain values in safetensors files: no pickle, no partial file, no silent damage.

A *tree* is a tensor, a number, a string, a bool, None, or a dict, list or tuple of trees. Tensors are stored as such;
the rest is a JSON skeleton in the file's metadata, beside a SHA-256 over both.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

Tree = Any
FORMAT = "bayesrule/1"


class FileError(ValueError):
    """A file that is missing, damaged, edited, or not one of ours."""


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Write all of ``content`` to ``path`` or leave what was there: a temporary name, flushed to disk, then renamed.

    The temporary name is this call's own, so that several may write to one path: the last one wins, with all of it.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a device, say, whose place a file would take
            raise OSError(errno.EINVAL, "there is something that is no file")
        _write(path, data)
    except OSError as error:
        # The system's own words tell of no file, as for a full disk, or of the temporary one.
        why = error.strerror or str(error)
        raise OSError(error.errno, f"cannot write {path}: {why}") from error


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    # exclusive: what has the name already, a symbolic link as well, is neither followed nor touched
    with open(partial, "xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # on the disk before it has the name: a power cut leaves the old file or the new
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def remove_partial(path: Path) -> None:
    """Remove what killed writers of a path have left behind. For whoever knows that nobody writes to it now."""
    for partial in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
        partial.unlink(missing_ok=True)


def save(path: str | Path, tree: Tree, kind: str) -> None:
    """Save a tree under ``kind``, the word that says what the file holds."""
    write_atomically(path, packed(tree, kind))


def packed(tree: Tree, kind: str) -> bytes:
    """What `save` writes: for a file that another process is to write."""
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_encode(tree, tensors))
    metadata = {"format": FORMAT, "kind": kind, "tree": skeleton, "sha256": _digest(kind, skeleton, tensors)}
    content: bytes = to_bytes(tensors, metadata)
    return content


def load(path: str | Path, kind: str, device: torch.device | str = "cpu") -> Tree:
    """Load what `save` wrote onto a device, or raise a `FileError` that says what is wrong with the file."""
    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # clone: memory aligned as in a fresh tensor, so that kernels add in the same order, to the bit
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception as error:
        raise FileError(f"{path}: not a complete safetensors file ({error}); was it truncated in copying?") from error
    if metadata.get("format") != FORMAT:
        raise FileError(
            f"{path}: format {metadata.get('format')!r} where {FORMAT!r} is read; not a file of this library"
        )
    if metadata.get("kind") != kind:
        raise FileError(f"{path}: holds a {metadata.get('kind')}, not a {kind}")
    if metadata.get("sha256") != _digest(kind, metadata.get("tree", ""), tensors):
        raise FileError(f"{path}: the checksum does not fit the contents; the file was edited or damaged")
    try:
        unused = {name: t.to(device) for name, t in tensors.items()}
        tree = _decode(json.loads(metadata["tree"]), unused)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{path}: its contents are no tree of tensors and plain values ({error!r})") from error
    if unused:
        raise FileError(f"{path}: holds tensors that its contents do not name ({', '.join(sorted(unused))})")
    return tree


def layout(tree: Tree) -> str:
    """The sha256 of all of a tree but its numbers: names in their order, texts, kinds of values, shapes and dtypes.

    >>> layout({"w": torch.zeros(2)}) == layout({"w": torch.ones(2)}) != layout({"w": torch.zeros(2).double()})
    True
    """
    digest = hashlib.sha256()
    for line in _layout(tree, ""):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _layout(tree: Tree, where: str) -> Iterator[str]:
    if isinstance(tree, Tensor):
        yield f"{where} {tree.dtype} {list(tree.shape)}"
    elif isinstance(tree, dict):
        yield f"{where} dict {len(tree)}"
        for key, value in tree.items():
            yield from _layout(value, f"{where}/{key!r}")
    elif isinstance(tree, list | tuple):
        yield f"{where} {'list' if isinstance(tree, list) else 'tuple'} {len(tree)}"
        for index, value in enumerate(tree):
            yield from _layout(value, f"{where}/{index}")
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        # of numpy's numbers, too, which come back as plain ones
        yield f"{where} {'int' if isinstance(tree, int) else 'float'}"
    else:
        yield f"{where} {tree!r}"


def sealed(tree: dict[str, Tree]) -> dict[str, Tree]:
    """The tree with its own `layout`, for `unsealed` to compare: what was taken out of it later does not go unseen."""
    return tree | {"layout": layout(tree)}


def unsealed(path: str | Path, tree: Tree) -> dict[str, Tree]:
    """Undo `sealed`, or raise a `FileError`."""
    if not isinstance(tree, dict) or "layout" not in tree:
        raise FileError(f"{path}: does not say what it should hold; the file was edited")
    kept = {key: value for key, value in tree.items() if key != "layout"}
    if tree["layout"] != layout(kept):
        raise FileError(f"{path}: holds other names, shapes or kinds of values than it was written with; it was edited")
    return kept


def digest(tree: Tree) -> str:
    """The SHA-256 of a tree: the same for two that are equal to the bit, on whatever device.

    >>> digest({"w": torch.ones(2)}) == digest({"w": torch.ones(2)}) != digest({"w": torch.ones(2, 1)})
    True
    """
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_encode(tree, tensors))
    return _digest("", skeleton, tensors)


def _encode(tree: Tree, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        key = str(len(tensors))
        tensors[key] = tree.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": key}
    if isinstance(tree, dict):
        return {"dict": [[_encode(k, tensors), _encode(v, tensors)] for k, v in tree.items()]}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__: [_encode(v, tensors) for v in tree]}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(f"a tree holds tensors and plain values, not {type(tree).__name__}: {tree!r}")


def _decode(node: Any, tensors: dict[str, Tensor]) -> Tree:
    """Undo `_encode`; ``tensors`` loses what is used, since each is stored for one place."""
    if not isinstance(node, dict):
        if isinstance(node, list):
            raise ValueError("a list stands where a value should")
        return node
    ((kind, body),) = node.items()
    if kind == "tensor":
        return tensors.pop(body)
    if kind == "dict":
        pairs = [(_decode(k, tensors), _decode(v, tensors)) for k, v in body]
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name stands twice in one dict")
        return dict(pairs)
    if kind not in ("list", "tuple"):
        raise ValueError(f"unknown kind of value {kind!r}")
    items = [_decode(v, tensors) for v in body]
    return tuple(items) if kind == "tuple" else items


def _digest(kind: str, skeleton: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(f"{kind}\n{skeleton}".encode())
    for name in sorted(tensors):  # safetensors keeps an order of its own
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def moved(tree: Tree, device: torch.device | str) -> Tree:
    """The tree with its tensors on a device.

    >>> moved({"w": [torch.ones(1)]}, "cpu")
    {'w': [tensor([1.])]}
    """
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, dict):
        return {key: moved(value, device) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(moved(value, device) for value in tree)
    return tree


def copied(tree: Tree) -> Tree:
    """The tree with tensors of its own, apart from any graph.

    >>> w = torch.ones(1)
    >>> kept = copied({"w": w})
    >>> w += 1
    >>> kept
    {'w': tensor([1.])}
    """
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copied(value) for value in tree)
    return tree


def size(tree: Tree) -> int:
    """The bytes that the tree's tensors take.

    >>> size({"w": [torch.ones(3)]})
    12
    """
    if isinstance(tree, Tensor):
        return tree.nbytes
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return sum(map(size, parts))
