"""Data behind torch's loaders: read batch by batch, in an order that is a function of a seed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler

from bayesrule.data import inputs
from bayesrule.data.batches import Batch, Data, as_target, digest_of, parts_of, refusal
from bayesrule.data.inputs import Inputs
from bayesrule.data.scaling import Scaling

READ = 32  # examples that are read at a time for a fingerprint
TARGETS = ("y", "target", "targets", "label", "labels")  # keys of y in examples that are dicts


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
        self._loader: DataLoader[Any] | None = None
        if isinstance(source, DataLoader):
            self._loader, source = source, source.dataset
        self._dataset: Dataset[Any] = source
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

    def smallest(self, batch_size: int) -> int:
        """That of the loader's own batches: the last one may be shorter."""
        if self._loader is None or self._loader.batch_size is None:  # a batch sampler's sizes are not known
            return super().smallest(batch_size)
        rest = self.n % self._loader.batch_size
        return self._loader.batch_size if self._loader.drop_last or not rest else rest

    def batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One epoch, in the loader's own way, or shuffled like `Arrays` for a data set."""
        steps = self.steps(batch_size)
        loader = self._loader
        if loader is None:
            order = torch.randperm(self.n, generator=torch.Generator().manual_seed(seed))
            loader = self._reader(order, batch_size)
        return _counted(self._stream(loader, seed), steps)

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        """Every example once, in the data set's order, also when the loader shuffles or drops."""
        return self._stream(self._reader(torch.arange(self.n), batch_size), seed=0)

    def all(self) -> Batch:
        """Every example, read into memory."""
        xs, ys = zip(*self.ordered(batch_size=256), strict=True)
        return Batch(inputs.join(xs), torch.cat(ys))

    def fingerprint(self) -> str:
        """The sha256 of all examples in the data set's order, read in one pass, a few at a time.

        What torch's generator draws repeats, and counts. What differs each time that a few examples are read, by other
        generators, cannot be compared: then the rest counts, such as targets, and a warning says so.
        """
        fickle = self._fickle_parts()
        if fickle:
            warnings.warn(
                f"{' and '.join(sorted(fickle))} of {type(self._dataset).__name__} differ each time they are read, so "
                "that only shapes, and parts that do not, tell whether a run is resumed on the same data; draw what is "
                "random by torch's generator, which repeats",
                stacklevel=2,
            )
        batches = islice(self.ordered(READ), math.ceil(self.n / READ))  # a stream may go on after its length
        return digest_of(self.n, (_without(fickle, batch) for batch in batches), self.scaling)

    def _fickle_parts(self) -> set[str]:
        """Which parts of the examples differ when a few of them, from all over the data, are read twice."""
        few = torch.linspace(0, self.n - 1, min(self.n, READ)).long()
        first, again = (next(self._stream(self._reader(few, READ), seed=0)) for _ in range(2))
        pairs = zip(parts_of(first), parts_of(again), strict=True)
        return {name for (name, one), (_, other) in pairs if not torch.equal(_bytes(one), _bytes(other))}

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
        cuts = order.tensor_split(math.ceil(len(order) / batch_size))
        return DataLoader(self._dataset, batch_sampler=[index.tolist() for index in cuts], **options)

    def inputs(self) -> Iterator[Inputs]:
        """The inputs alone, in the data set's order, in the user's units; of examples that need have no targets."""
        size = READ
        if self._loader is not None and self._loader.batch_size is not None:
            size = self._loader.batch_size
        for item in self._items(self._reader(torch.arange(self.n), size), seed=0):
            yield apart(item)[0]

    def _stream(self, loader: DataLoader[Any], seed: int) -> Iterator[Batch]:
        return map(self._batch, self._items(loader, seed))

    def _items(self, loader: DataLoader[Any], seed: int) -> Iterator[Any]:
        """What a loader gives, as it is."""
        generators = _generators(loader)
        states = [torch.Generator(own.device).manual_seed(seed).get_state() for own in generators]
        end = object()
        with _lent(generators, states):
            source = iter(loader)  # draws, too
        while True:
            with _lent(generators, states):
                item = next(source, end)
            if item is end:
                return
            yield item

    def _batch(self, item: Any) -> Batch:
        x, y = apart(item)
        if y is None:
            raise _no_pair(item)
        for name, part in (*inputs.named(x), ("y", y)):
            if part.layout is not torch.strided or part.is_nested:
                raise refusal(name, part)
        x, y = self.scaling.forward(x, as_target(y))
        if self._dtype is None:
            return Batch(x, y)
        return Batch(inputs.to(x, self._dtype), cast(Tensor, inputs.to(y, self._dtype)))


def apart(item: Any) -> tuple[Inputs, Tensor | None]:
    """Inputs and targets of what a data set gives; None where it gives no targets.

    Pairs ``(x, y)``; dicts whose key `TARGETS` has is y, and all else goes to the model by name; x alone.
    """
    x, y = item, None
    if isinstance(item, Mapping):
        x = dict(item)
        names = [name for name in TARGETS if name in x]
        if len(names) > 1:
            raise ValueError(f"train must name its target once, got {' and '.join(names)}: rename what is no target")
        if names:
            y = x.pop(names[0])
    elif isinstance(item, tuple | list) and len(item) == 2:
        x, y = item
    elif isinstance(item, tuple | list) and len(item) == 1:  # a TensorDataset of inputs
        (x,) = item
    if isinstance(x, list):  # torch's collate makes lists of tuples
        x = tuple(x)
    known = isinstance(x, Tensor | tuple | dict) and all(isinstance(part, Tensor) for _, part in inputs.named(x))
    if not known or not isinstance(y, Tensor | None):
        raise _no_pair(item)
    return x, y


def _no_pair(item: Any) -> ValueError:
    """The error for what is no pair of inputs and targets."""
    parts = ""
    if isinstance(item, tuple | list):
        parts = ", ".join(type(part).__name__ for part in item)
    elif isinstance(item, Mapping):
        parts = ", ".join(f"{name}: {type(part).__name__}" for name, part in item.items())
    return ValueError(
        f"train must give pairs (x, y) of tensors, got {type(item).__name__}({parts}): "
        "put several inputs in one tuple or dict, as in ((x1, x2), y), and turn texts into numbers; "
        f"or dicts with one of {', '.join(TARGETS)}"
    )


def _without(names: Collection[str], batch: Batch) -> Batch:
    """A batch with nothing in some of its parts but their shapes and dtypes."""
    if not names:
        return batch
    parts = iter([t[:0] if name in names else t for name, t in parts_of(batch)])
    return Batch(inputs.each(lambda t: next(parts), batch.x), next(parts))


def _bytes(t: Tensor) -> Tensor:
    """What a tensor is made of, to compare NaNs as well."""
    return t.detach().contiguous().reshape(-1).view(torch.uint8)


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """All that a loader draws from, each once: torch's global generator, and those of its own and its samplers."""
    owners = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    # A set by identity: a loader and its sampler usually share one generator, which must not be seeded twice.
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
