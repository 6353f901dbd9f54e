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
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast, final, overload

import torch
from torch import Tensor

from bayesrule.data import inputs
from bayesrule.data.inputs import Inputs
from bayesrule.data.scaling import Scaling


class _Pair(NamedTuple):
    """Inputs and targets."""

    x: Inputs
    y: Tensor


class Batch(_Pair):
    """Examples: inputs and targets of the same length, ``x, y = batch``, and beside them what each example counts.

    ``weight``: how many times an example counts, ``[B]``; None: once.
    """

    weight: Tensor | None

    def __new__(cls, x: Inputs, y: Tensor, weight: Tensor | None = None) -> Batch:
        """A pair that carries weights."""
        batch = super().__new__(cls, x, y)
        batch.weight = weight
        return batch

    def share(self, rank: int, count: int) -> Batch:
        """The examples of one of ``count`` processes: as many for each, the first ones twice where they do not suffice.

        >>> Batch(torch.arange(3), torch.arange(3)).share(1, 2).y
        tensor([1, 0])
        """
        if count == 1:
            return self
        n = len(self.y)
        return self.take(torch.arange(rank, rank + count * math.ceil(n / count), count) % n)

    def take(self, index: Tensor) -> Batch:
        """The examples at ``index``."""
        return Batch(inputs.take(self.x, index), _taken(self.y, index), _taken(self.weight, index))

    def to(self, device: torch.device) -> Batch:
        """The batch on a device; it follows without holding up the program where the device allows that."""
        if self.y.device == device and all(part.device == device for _, part in inputs.named(self.x)):
            return self
        x = inputs.each(lambda t: _moved(t, device), self.x)
        return Batch(x, _moved(self.y, device), None if self.weight is None else _moved(self.weight, device))


@overload
def _taken(t: Tensor, index: Tensor) -> Tensor: ...
@overload
def _taken(t: None, index: Tensor) -> None: ...
def _taken(t: Tensor | None, index: Tensor) -> Tensor | None:
    """The examples of a tensor at ``index``, if there is one."""
    return None if t is None else t.index_select(0, index.to(t.device))


def _moved(t: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and t.device.type == "cpu":
        t = t.pin_memory()  # from where a copy can go on beside the program
    return t.to(device, non_blocking=True)


class Data(ABC):
    """N examples and the units they are in."""

    scaling: Scaling
    n: int
    """The number of examples."""
    weight: Tensor | None = None
    """How many times each example counts, where that is not once."""

    @property
    def total(self) -> float:
        """N in the objective: the sum of the weights, which without any is the number of examples."""
        return float(self.n)

    def steps(self, batch_size: int) -> int:
        """The number of batches of an epoch, ⌈n / batch_size⌉ where nothing else is said."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        return math.ceil(self.n / batch_size)

    def smallest(self, batch_size: int) -> int:
        """How many examples the smallest batch of an epoch has."""
        return self.n // self.steps(batch_size)

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
        x, y = self._unscaled(self.all())
        return Batch(x, y, self.weight)

    def raw_batches(self, batch_size: int) -> Iterator[Batch]:
        """Every example once, in the data's own order and the user's units."""
        return (self._unscaled(batch) for batch in self.ordered(batch_size))

    def _unscaled(self, batch: Batch) -> Batch:
        x, y = batch.x, batch.y
        if self.scaling.inputs is not None:
            x = inputs.each(self.scaling.inputs.inverse, x)
        if self.scaling.targets is not None:
            y = self.scaling.targets.inverse(y)
        return Batch(x, y, batch.weight)

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

    ``weight``: how many times each example counts, as if it were there so often; none may be negative.

    >>> data = Arrays(torch.arange(5.0)[:, None], torch.arange(5))
    >>> [len(y) for x, y in data.batches(batch_size=2, seed=0)]
    [2, 2, 1]
    """

    def __init__(self, x: Inputs, y: Tensor, scaling: Scaling | None = None, weight: Tensor | None = None) -> None:
        self.x, self.y, self.scaling = x, as_target(y), scaling or Scaling()
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
        self.weight = None if weight is None else _checked_weight(weight, n)

    @property
    def total(self) -> float:
        """N in the objective."""
        return float(self.n) if self.weight is None else float(self.weight.sum())

    def batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One epoch, shuffled by ``seed`` alone."""
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(seed))
        for index in order.tensor_split(self.steps(batch_size)):
            yield Batch(inputs.take(self.x, index), _taken(self.y, index), _taken(self.weight, index))

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        """Every example once, in order."""
        # Cut one at a time: many a caller looks at the first batch alone.
        count = self.steps(batch_size)
        size, longer = divmod(self.n, count)
        stop = 0
        for index in range(count):
            start, stop = stop, stop + size + int(index < longer)
            rows = slice(start, stop)
            weight = None if self.weight is None else self.weight[rows]
            yield Batch(inputs.each(lambda t, rows=rows: t[rows], self.x), self.y[rows], weight)

    def all(self) -> Batch:
        """Every example, without a copy."""
        return Batch(self.x, self.y, self.weight)

    def take(self, index: Tensor) -> Arrays:
        """The examples at ``index``."""
        return self.replaced(inputs.take(self.x, index), _taken(self.y, index), _taken(self.weight, index))

    def replaced(self, x: Inputs, y: Tensor, weight: Tensor | None) -> Arrays:
        """Other examples that were made of these, in the same units: they are not checked again."""
        other = copy.copy(self)
        other.x, other.y, other.n, other.weight = x, y, len(y), weight
        return other

    def fingerprint(self) -> str:
        """The sha256 of inputs, targets and scaling."""
        return digest_of(self.n, [self.all()], self.scaling)

    def scaled(self, scaling: Scaling) -> Arrays:
        """Back to the user's units, and on to the new ones."""
        return Arrays(*scaling.forward(*self.raw()), scaling, self.weight)

    def to(self, dtype: torch.dtype) -> Arrays:
        """The same examples in ``dtype``, which must hold them; the scaling keeps its own double precision."""
        floating = [t for _, t in (*inputs.named(self.x), ("y", self.y)) if t.is_floating_point()]
        if all(t.dtype == dtype for t in floating):
            return self
        return Arrays(inputs.to(self.x, dtype), cast(Tensor, inputs.to(self.y, dtype)), self.scaling, self.weight)


def _checked_weight(weight: Tensor, n: int) -> Tensor:
    """Weights in double precision, or an error that says what is wrong with them."""
    if list(weight.shape) != [n]:
        raise ValueError(f"weight must have one number for each of the {n} examples, got shape {list(weight.shape)}")
    weight = weight.double()
    check_finite("weight", weight)
    if bool((weight < 0).any()):
        row = int((weight < 0).nonzero()[0])
        raise ValueError(f"weight must not be negative, got {float(weight[row]):g} in row {row}")
    if not bool(weight.any()):
        raise ValueError(f"weight must be above zero for some example, but all {n} are zero")
    return weight


def as_target(y: Tensor) -> Tensor:
    """Labels and counts as int64, the type that torch's losses index with; real numbers as they are."""
    if y.is_floating_point():
        return y
    if y.is_complex():
        raise TypeError(f"y must hold real numbers, got {y.dtype}: give real and imaginary parts as two targets")
    if y.dtype == torch.uint64:
        check_fits("y", y)
    return y.long()


def check_fits(name: str, t: Tensor) -> None:
    """Refuse whole numbers without a sign that are too large for int64, where they would come out negative."""
    large = (t.view(torch.int64) < 0).nonzero()
    if len(large):
        row = int(large[0, 0]) if large.shape[1] else 0
        raise ValueError(
            f"{name} must fit into int64, got {t[tuple(large[0])].item()} in row {row}: numbers from 2**63 on are "
            "ids or hashes; number the classes from 0, np.unique(y, return_inverse=True)[1]"
        )


def refusal(name: str, t: Tensor) -> TypeError:
    """What to say of a tensor that has no numbers in rows and columns."""
    kind = "on the meta device" if t.is_meta else "nested" if t.is_nested else str(t.layout).removeprefix("torch.")
    return TypeError(f"{name} must be a dense array, got a tensor that is {kind}: pass {name}.to_dense(), say")


def check_finite(name: str, t: Tensor) -> None:
    """An error that counts the values of ``t`` that are NaN or infinite, and says where the first one is."""
    if not t.is_floating_point() or (finite := t.isfinite()).all():
        return
    bad = (~finite).nonzero()
    row, *rest = bad[0].tolist()
    column = ""
    if len(rest) == 1:
        column = f", column {rest[0]}"
    elif rest:
        column = f", column {tuple(rest)}"
    raise ValueError(
        f"{name} must be finite: {len(bad)} of {t.numel()} values are NaN or infinite, the first "
        f"({t[tuple(bad[0])].item()}) in row {row}{column}. Drop those rows or fill them in "
        "(`bayesrule fit file.csv` fills missing inputs)"
    )


def digest_of(n: int, batches: Iterable[Batch], scaling: Scaling) -> str:
    """The sha256 of a number of examples, of the examples as they come, and of their units."""
    digest = hashlib.sha256(str(n).encode())
    for batch in batches:
        for name, t in parts_of(batch):
            _add(digest, name, t)
    for which, tree in scaling.state().items():
        for key, t in (tree or {}).items():
            _add(digest, f"{which}.{key}", t)
    return digest.hexdigest()


def parts_of(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch with the names that errors give them."""
    yield from inputs.named(batch.x)
    yield "y", batch.y
    if batch.weight is not None:
        yield "weight", batch.weight


def _add(digest: Any, name: str, t: Tensor) -> None:
    """Go on with a digest over a tensor."""
    digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
    # The bytes themselves, without a copy: numpy has no bfloat16, and uint8 views of all types.
    digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
