"""Data as the training loop sees them: N examples, in batches whose order is a function of a seed.

An epoch of N examples has S = ⌈N / batch size⌉ batches of ⌊N/S⌋ or ⌈N/S⌉ examples (as `numpy.array_split`), every
example once. Nearly equal batches keep the mean over batches the mean over examples, and leave no batch of one, which
BatchNorm would refuse.
"""

from __future__ import annotations

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler

from bayesrule.data import inputs
from bayesrule.data.inputs import Inputs
from bayesrule.data.scaling import Scaling


class Batch(NamedTuple):
    """Examples: inputs and targets of the same length."""

    x: Inputs
    y: Tensor

    def share(self, rank: int, count: int) -> Batch:
        """The examples of one of ``count`` processes: as many for each, the first ones twice where they do not suffice.

        >>> Batch(torch.arange(3), torch.arange(3)).share(1, 2).y
        tensor([1, 0])
        """
        if count == 1:
            return self
        n = len(self.y)
        index = torch.arange(rank, rank + count * math.ceil(n / count), count) % n
        return Batch(inputs.take(self.x, index), self.y.index_select(0, index.to(self.y.device)))

    def to(self, device: torch.device) -> Batch:
        """The batch on a device; it follows without holding up the program where the device allows that."""
        if self.y.device == device:
            return self
        x = inputs.each(lambda t: _moved(t, device), self.x)
        return Batch(x, _moved(self.y, device))


def _moved(t: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and t.device.type == "cpu":
        t = t.pin_memory()  # from where a copy can go on beside the program
    return t.to(device, non_blocking=True)


class Data(ABC):
    """N examples and the units they are in."""

    scaling: Scaling
    n: int
    """The number of examples: N in the objective."""

    def steps(self, batch_size: int) -> int:
        """The number of batches of an epoch, ⌈n / batch_size⌉ where nothing else is said."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        return math.ceil(self.n / batch_size)

    @abstractmethod
    def batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One epoch, shuffled: a function of ``seed``, which leaves torch's global generator as it was."""

    @abstractmethod
    def ordered(self, batch_size: int) -> Iterator[Batch]:
        """Every example once, in the data's own order."""

    @abstractmethod
    def all(self) -> Batch:
        """Every example in one batch."""

    def raw(self) -> Batch:
        """Every example in one batch, in the user's units."""
        x, y = self.all()
        scale_x, scale_y = self.scaling.inputs, self.scaling.targets
        return Batch(inputs.each(scale_x.inverse, x) if scale_x else x, scale_y.inverse(y) if scale_y else y)

    @abstractmethod
    def fingerprint(self) -> str:
        """A sha256 of the contents, so that a run is resumed on the data it was started on."""

    @abstractmethod
    def scaled(self, scaling: Scaling) -> Data:
        """The same data in the units of another scaling, such as that of an earlier fit."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Data:
        """The same data with floating tensors in ``dtype``."""


@final
class Arrays(Data):
    """Examples in memory. Integer and boolean targets become int64; all numbers must be finite.

    >>> data = Arrays(torch.arange(5.0)[:, None], torch.arange(5))
    >>> [len(y) for x, y in data.batches(batch_size=2, seed=0)]
    [2, 2, 1]
    """

    def __init__(self, x: Inputs, y: Tensor, scaling: Scaling | None = None) -> None:
        self.x, self.y, self.scaling = x, y if y.is_floating_point() else y.long(), scaling or Scaling()
        n = inputs.length(x)
        if y.ndim == 0:
            raise ValueError(f"y must have one target for each of the {n} examples, got the single number {y.item()}")
        if n != len(y):
            raise ValueError(f"X and y must have the same number of examples, got {n} in X and {len(y)} in y")
        if n == 0:
            raise ValueError("X and y must hold at least one example, got none")
        for name, part in (*inputs.named(x), ("y", y)):
            check_finite(name, part)
        self.n = n

    def batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One epoch, shuffled by ``seed`` alone."""
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(seed))
        for index in order.tensor_split(self.steps(batch_size)):
            yield Batch(inputs.take(self.x, index), self.y.index_select(0, index.to(self.y.device)))

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        """Every example once, in order."""
        for index in torch.arange(self.n).tensor_split(self.steps(batch_size)):
            rows = slice(int(index[0]), int(index[-1]) + 1)
            yield Batch(inputs.each(lambda t, rows=rows: t[rows], self.x), self.y[rows])

    def all(self) -> Batch:
        """Every example, without a copy."""
        return Batch(self.x, self.y)

    def take(self, index: Tensor) -> Arrays:
        """The examples at ``index``."""
        return self.replaced(inputs.take(self.x, index), self.y.index_select(0, index.to(self.y.device)))

    def replaced(self, x: Inputs, y: Tensor) -> Arrays:
        """Other examples that were made of these, in the same units: they are not checked again."""
        other = copy.copy(self)
        other.x, other.y, other.n = x, y, len(y)
        return other

    def fingerprint(self) -> str:
        """The sha256 of inputs, targets and scaling."""
        return _sha256(self.n, Batch(self.x, self.y), self.scaling)

    def scaled(self, scaling: Scaling) -> Arrays:
        """Back to the user's units, and on to the new ones."""
        return Arrays(*scaling.forward(*self.raw()), scaling)

    def to(self, dtype: torch.dtype) -> Arrays:
        """The same examples in ``dtype``, which must hold them; the scaling keeps its own double precision."""
        floating = [t for _, t in (*inputs.named(self.x), ("y", self.y)) if t.is_floating_point()]
        if all(t.dtype == dtype for t in floating):
            return self
        return Arrays(inputs.to(self.x, dtype), cast(Tensor, inputs.to(self.y, dtype)), self.scaling)


@final
class Loader(Data):
    """Examples from a torch `DataLoader`, which keeps its own batch size, or from a `Dataset`.

    N is the length of the data set, also when the loader drops the last batch. While a batch is made, torch's global
    generator and the loader's own are lent to it, seeded, and then given back: shuffling and random augmentation (by
    torch) are a function of the seed, and the user's random numbers are untouched.

    >>> class Squares(Dataset):
    ...     def __len__(self): return 5
    ...     def __getitem__(self, i): return torch.tensor([float(i)]), float(i * i)
    >>> [y.tolist() for x, y in Loader(Squares()).ordered(batch_size=3)]
    [[0.0, 1.0, 4.0], [9.0, 16.0]]
    """

    def __init__(
        self,
        source: DataLoader[Any] | Dataset[Any],
        dtype: torch.dtype | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        self.scaling, self._source, self._dtype = scaling or Scaling(), source, dtype
        self._loader = source if isinstance(source, DataLoader) else None
        self._dataset: Dataset[Any] = source.dataset if isinstance(source, DataLoader) else source
        if not hasattr(self._dataset, "__len__"):
            raise TypeError(
                f"train must have a known number of examples N, which weighs the prior against the data, but "
                f"{type(self._dataset).__name__} has no length: give it a __len__ that returns N"
            )
        self.n = len(self._dataset)
        if self.n == 0:
            raise ValueError(f"train must hold at least one example, got an empty {type(self._dataset).__name__}")
        if self._loader is not None and self._loader.batch_sampler is None:
            raise ValueError("train must give batches, got a DataLoader with batch_size=None: set its batch_size")
        if self._loader is not None and isinstance(self._loader.sampler, SubsetRandomSampler):
            raise ValueError(
                "train must be read whole, got a DataLoader with a SubsetRandomSampler, which hides how many of the "
                "examples are meant: wrap the data set in torch.utils.data.Subset"
            )

    def steps(self, batch_size: int) -> int:
        """The loader's own number of batches, or ⌈n / batch_size⌉ for a data set."""
        if self._loader is None:
            return super().steps(batch_size)
        if len(self._loader) == 0:
            raise ValueError(
                f"train must give at least one batch, got a DataLoader with drop_last={self._loader.drop_last} and "
                f"batch_size={self._loader.batch_size} that makes none of its {self.n} examples: set drop_last=False, "
                f"or a batch_size of at most {self.n}"
            )
        return len(self._loader)

    def batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One epoch, in the loader's own way, or shuffled like `Arrays` for a data set."""
        steps = self.steps(batch_size)
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(seed))
        loader = self._reader(order, batch_size) if self._loader is None else self._loader
        return _counted(self._stream(loader, seed), steps)

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        """Every example once, in the data set's order, also when the loader shuffles or drops."""
        return self._stream(self._reader(torch.arange(self.n), batch_size), seed=0)

    def all(self) -> Batch:
        """Every example, read into memory."""
        xs, ys = zip(*self.ordered(batch_size=256), strict=True)
        return Batch(inputs.join(xs), torch.cat(ys))

    def fingerprint(self) -> str:
        """The sha256 of what can be known without reading everything: the length and the first examples."""
        return _sha256(self.n, next(self.ordered(batch_size=32)), self.scaling)

    def scaled(self, scaling: Scaling) -> Loader:
        """The same source; batches are scaled as they come."""
        return Loader(self._source, self._dtype, scaling)

    def to(self, dtype: torch.dtype) -> Loader:
        """The same source; batches are cast as they come."""
        return Loader(self._source, dtype, self.scaling)

    def _reader(self, order: Tensor, batch_size: int) -> DataLoader[Any]:
        options: dict[str, Any] = {}
        if self._loader is not None:
            options = {"collate_fn": self._loader.collate_fn, "num_workers": self._loader.num_workers}
        if isinstance(self._dataset, IterableDataset):  # has an order of its own
            return DataLoader(self._dataset, batch_size=batch_size, **options)
        cuts = order.tensor_split(super().steps(batch_size))
        return DataLoader(self._dataset, batch_sampler=[index.tolist() for index in cuts], **options)

    def _stream(self, loader: DataLoader[Any], seed: int) -> Iterator[Batch]:
        generators = _generators(loader)
        states = [torch.Generator(own.device).manual_seed(seed).get_state() for own in generators]
        source, end = None, object()
        while True:
            with _lent(generators, states):
                source = iter(loader) if source is None else source
                item = next(source, end)
            if item is end:
                return
            yield self._batch(item)

    def _batch(self, item: Any) -> Batch:
        pair: Any = item if isinstance(item, tuple | list) and len(item) == 2 else (None, None)
        x, y = pair
        x = tuple(x) if isinstance(x, list) else x
        known = isinstance(x, Tensor | tuple | dict) and all(isinstance(part, Tensor) for _, part in inputs.named(x))
        if not known or not isinstance(y, Tensor):
            parts = ", ".join(type(part).__name__ for part in item) if isinstance(item, tuple | list) else ""
            raise ValueError(
                f"train must give pairs (x, y) of tensors, got {type(item).__name__}({parts}): "
                "put several inputs in one tuple or dict, as in ((x1, x2), y), and turn texts into numbers"
            )
        x, y = self.scaling.forward(x, y if y.is_floating_point() else y.long())
        if self._dtype is None:
            return Batch(x, y)
        return Batch(inputs.to(x, self._dtype), cast(Tensor, inputs.to(y, self._dtype)))


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """All that a loader draws from, each once: torch's global generator, and those of its own and its samplers."""
    owners = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = [torch.default_generator, *(getattr(owner, "generator", None) for owner in owners)]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


@contextmanager
def _lent(generators: Sequence[torch.Generator], states: list[Tensor]) -> Iterator[None]:
    """Generators that go on from ``states``, which is updated; afterwards they are as they were before."""
    before = [each.get_state() for each in generators]
    try:
        for each, state in zip(generators, states, strict=True):
            each.set_state(state)
        yield
        states[:] = [each.get_state() for each in generators]
    finally:
        for each, state in zip(generators, before, strict=True):
            each.set_state(state)


def _counted(batches: Iterator[Batch], steps: int) -> Iterator[Batch]:
    """The batches, and an error as soon as they are more than ``steps``, or at the end if they are fewer."""
    count = 0
    for batch in batches:
        count += 1
        if count > steps:
            break
        yield batch
    if count != steps:
        got = f"{count} or more" if count > steps else f"only {count}"
        raise ValueError(
            f"train must give as many batches as its length says, {steps}, got {got}: mend the __len__ of its data set "
            "or batch sampler, or, for a stream with several workers, set num_workers=0"
        )


def check_finite(name: str, t: Tensor) -> None:
    """An error with the number and the first place of the values of ``t`` that are NaN or infinite."""
    if not t.is_floating_point() or (finite := t.isfinite()).all():
        return
    bad = (~finite).nonzero()
    row, *rest = bad[0].tolist()
    column = f", column {rest[0] if len(rest) == 1 else tuple(rest)}" if rest else ""
    raise ValueError(
        f"{name} must be finite: {len(bad)} of {t.numel()} values are NaN or infinite, the first "
        f"({t[tuple(bad[0])].item()}) in row {row}{column}. Drop those rows or fill them in "
        "(`bayesrule fit file.csv` fills missing inputs)"
    )


def _sha256(n: int, batch: Batch, scaling: Scaling) -> str:
    digest = hashlib.sha256(str(n).encode())
    tensors = [*inputs.named(batch.x), ("y", batch.y)]
    for which, tree in scaling.state().items():
        tensors += [(f"{which}.{key}", t) for key, t in (tree or {}).items()]
    for name, t in tensors:
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
