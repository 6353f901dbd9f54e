"""Data sets by name.

Embedded sets are always there; the others are read, in their publishers' formats, below a data directory: the argument
``data_dir``, or ``$BAYESRULE_DATA``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch

from bayesrule.data import cifar, compressed, embedded, idx, uci
from bayesrule.data.splits import Split
from bayesrule.naming import unknown


class Pictures(NamedTuple):
    """An MNIST-like set: its folder, its classes, and the set whose test pictures are out of distribution for it."""

    folder: str
    what: str
    classes: tuple[str, ...]
    outside: str | None = None


PICTURES = {
    "mnist": Pictures("MNIST/raw", "handwritten digits, 28 x 28", tuple("0123456789"), "fashion-mnist"),
    "fashion-mnist": Pictures(
        "FashionMNIST/raw",
        "garments, 28 x 28",
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        "mnist",
    ),
    "kmnist": Pictures(
        "KMNIST/raw",
        "cursive Japanese characters, 28 x 28",
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        "mnist",
    ),
    "notmnist": Pictures("notMNIST/raw", "letters A to J in many fonts, 28 x 28", tuple("ABCDEFGHIJ")),
}
CIFAR10 = "cifar-10-batches-bin"
CIFAR10_WHAT = "photographs of ten kinds of things, 32 x 32"
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
UCI = {f"uci/{name}": f"UCI_Datasets/{folder}/data" for name, folder in uci.FOLDERS.items()}
NAMES = (*embedded.SPLITS, *PICTURES, "cifar10", *UCI)
TABLES = ("diabetes", *UCI)  # whose inputs are columns


class CatalogEntry(NamedTuple):
    """A line of the catalog. ``missing`` is empty, or says what was looked for."""

    name: str
    what: str
    missing: str


def load_set(name: str, data_dir: str | Path | None = None, split: int = 0, seed: int = 0) -> Split:
    """The data set called ``name``. ``split`` picks a standard split of a UCI set, ``seed`` makes an embedded one.

    Pixels are float32 in [0, 1]; UCI sets are in double precision and their own units (see `standardize`). Where only
    test files are there (always so for notMNIST), the split has no training examples.

    >>> digits = load_set("digits")
    >>> digits.train[0].shape, digits.test[0].shape, digits.ood.shape
    (torch.Size([1438, 64]), torch.Size([359, 64]), torch.Size([359, 64]))
    >>> load_set("digit")
    Traceback (most recent call last):
    ValueError: unknown data set 'digit': did you mean 'digits'? Valid: and, cifar10, ...
    """
    if name not in NAMES:
        raise unknown("data set", name, NAMES)
    if split != 0 and name not in UCI:
        raise ValueError(f"split must be 0 for {name}, got {split}: only uci/… sets have numbered splits")
    if name in embedded.SPLITS:
        return embedded.SPLITS[name](seed)
    root = _root(name, data_dir)
    if name in PICTURES:
        return _pictures(name, root)
    if name in UCI:
        train, test = uci.read_uci(root / UCI[name], split)
        what = f"regression, {train[0].shape[1]} features, split {split}"
        return Split(name, "reals", what, test, train)
    pictures, labels = [], []
    for file in cifar.TRAIN:
        x, y = cifar.read_cifar10(root / CIFAR10 / file)
        pictures.append(x)
        labels.append(y)
    train = torch.cat(pictures), torch.cat(labels)
    test = cifar.read_cifar10(root / CIFAR10 / cifar.TEST)
    return Split(name, "classes", CIFAR10_WHAT, test, train, CIFAR10_CLASSES, image_shape=(3, 32, 32))


def names(data_dir: str | Path | None = None) -> list[CatalogEntry]:
    """Every data set, and what is missing to load it.

    >>> names()[0]
    CatalogEntry(name='digits', what='handwritten digits, 8 x 8 pixels', missing='')
    """
    return [CatalogEntry(name, _what(name), _missing(name, data_dir)) for name in NAMES]


def _pictures(name: str, root: Path) -> Split:
    folder, what, classes, outside = PICTURES[name]
    test, train = idx.pictures(root / folder, "t10k"), None
    if name == "notmnist":
        what += "; test pictures only"
    elif _found(path := root / folder / "train-images-idx3-ubyte"):
        train = idx.pictures(root / folder, "train")
    else:
        what += f"; test pictures only, for there is no {path}"
    ood = None
    if outside is not None:
        other = root / PICTURES[outside].folder
        if _found(other / "t10k-images-idx3-ubyte"):
            ood, _ = idx.pictures(other, "t10k")
    return Split(name, "classes", what, test, train, classes, ood=ood, image_shape=(1, *test[0].shape[2:]))


def _root(name: str, data_dir: str | Path | None) -> Path:
    given = data_dir or os.environ.get("BAYESRULE_DATA")
    if not given:
        raise FileNotFoundError(
            f"{name} is read from files, and no directory was given: set data_dir or $BAYESRULE_DATA to the one "
            f"that holds {_file(name)}"
        )
    return Path(given).expanduser()


def _file(name: str) -> str:
    """The file without which nothing of ``name`` can be loaded."""
    if name in PICTURES:
        return f"{PICTURES[name].folder}/t10k-images-idx3-ubyte"
    if name in UCI:
        return f"{UCI[name]}/data.txt"
    return f"{CIFAR10}/{cifar.TEST}"


def _found(path: Path) -> bool:
    try:
        compressed.find(path)
    except FileNotFoundError:
        return False
    return True


def _what(name: str) -> str:
    if name in PICTURES:
        return PICTURES[name].what
    if name in UCI:
        return "UCI regression, standard splits"
    return embedded.WHAT.get(name, CIFAR10_WHAT)


def _missing(name: str, data_dir: str | Path | None) -> str:
    if name in embedded.SPLITS:
        return ""
    try:
        compressed.find(_root(name, data_dir) / _file(name))
    except FileNotFoundError as error:
        return str(error)
    return ""
