"""Pools: inputs that may be asked for, and what is known of their labels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.data import Inputs, Kind, Split, as_data, as_inputs, inputs, standardize
from bayesrule.data.batches import Arrays
from bayesrule.modules import outputs_of

Examples = tuple[Inputs, Tensor]


def _no_rows() -> Tensor:
    return torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Pool:
    """Inputs whose labels may be asked for.

    ``labels``: of all rows, where they are known to whoever answers; None: somebody else does. ``known``: rows whose
    labels are known from the start, and ``given`` these labels. ``test``: examples to be judged on. ``classes``: names;
    none for numbers. ``features``: names of inputs. ``image_shape``: of inputs that are pictures.
    """

    x: Inputs
    kind: Kind
    labels: Tensor | None = None
    test: Examples | None = None
    classes: tuple[str, ...] = ()
    name: str = "pool"
    known: Tensor = field(default_factory=_no_rows)
    given: Tensor = field(default_factory=_no_rows)
    features: tuple[str, ...] = ()
    image_shape: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        return inputs.length(self.x)

    def fingerprint(self) -> str:
        """Of all inputs: another pool has another."""
        return as_data((self.x, torch.zeros(len(self)))).fingerprint()

    def through(self, features: nn.Module) -> Pool:
        """The pool seen through a frozen module: its outputs are the inputs, and no pictures any more."""
        if not isinstance(features, nn.Module):
            raise TypeError(
                "features must be a module, such as br.active.SimCLR().learn(pictures) gives, not "
                f"{type(features).__name__}"
            )
        try:
            x = as_inputs(outputs_of(features, self.x))
            test = None if self.test is None else (as_inputs(outputs_of(features, self.test[0])), self.test[1])
        except ValueError as error:
            raise ValueError(f"features: {error}") from error
        return replace(self, x=x, test=test, features=(), image_shape=None)

    def standardized(self) -> Pool:
        """The pool with inputs of mean 0 and standard deviation 1, by all its rows; pictures stay as they are.

        >>> of((torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]))).standardized().x
        tensor([[-1.],
                [ 1.]])
        """
        if self.image_shape is not None or not isinstance(self.x, Tensor):
            return self
        scale = standardize((self.x, torch.zeros(len(self)))).scaling.inputs
        if scale is None:
            return self
        test = None if self.test is None else (inputs.each(scale.forward, self.test[0]), self.test[1])
        return replace(self, x=scale.forward(self.x), test=test)

    def balanced(self, count: int, seed: int) -> Tensor:
        """Rows, ``count`` of them, of all classes alike: for benchmarks, since it has to know the labels."""
        if self.labels is None or self.kind != "classes":
            raise ValueError("balanced must be of a pool whose labels are classes and known: leave it out")
        return _alike(self.labels, count, len(self.classes), seed)


def _alike(labels: Tensor, count: int, classes: int, seed: int) -> Tensor:
    """Rows of all classes in turn, in a random order."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    queues = [order[labels[order] == label].tolist() for label in range(classes)]
    rows: list[int] = []
    while len(rows) < count:
        for queue in queues:
            if queue and len(rows) < count:
                rows.append(queue.pop())
    return torch.tensor(sorted(rows))


def of(pool: Any, test: Any = None, classes: int | None = None, name: str = "pool") -> Pool:
    """A pool of what users have: a `Pool`, a `Split` (whose training examples it is), ``(X, y)``, or X alone.

    ``test``: ``(X, y)`` to be judged on. ``classes``: how many there are, for X alone, or where not all of them occur;
    0: labels are numbers.

    >>> pool = of((torch.zeros(4, 2), torch.tensor([0, 1, 2, 1])))
    >>> len(pool), pool.kind, pool.classes
    (4, 'classes', ('0', '1', '2'))
    >>> of(torch.zeros(4, 2))
    Traceback (most recent call last):
    ValueError: classes must be given for a pool without labels: how many there are, or 0 for numbers
    """
    if isinstance(pool, Pool):
        return pool if test is None else replace(pool, test=_examples("test", test))
    if isinstance(pool, Split):
        found = of(pool.train, pool.test if test is None else test, len(pool.classes), pool.name)
        names = pool.classes or found.classes
        return replace(found, kind=pool.kind, classes=names, features=pool.features, image_shape=pool.image_shape)
    judged = None if test is None else _examples("test", test)
    if isinstance(pool, tuple) and len(pool) == 2:
        x, y = _examples("pool", pool)
        kind: Kind = "reals" if y.is_floating_point() or classes == 0 else "classes"
        if kind == "reals":
            return Pool(x, kind, y.to(torch.get_default_dtype()) if not y.is_floating_point() else y, judged, name=name)
        every = [y] if judged is None else [y, judged[1]]
        count = max(classes or 0, 1 + max(int(part.max()) for part in every))
        return Pool(x, kind, y, judged, tuple(map(str, range(count))), name)
    x = as_inputs(pool)
    if classes is None:
        raise ValueError("classes must be given for a pool without labels: how many there are, or 0 for numbers")
    return Pool(x, "classes" if classes else "reals", None, judged, tuple(map(str, range(classes))), name)


def _examples(where: str, given: Any) -> Examples:
    """``(X, y)`` without holes; what is wrong with it is said of ``where``."""
    try:
        data = as_data(given)
        if not isinstance(data, Arrays):
            raise TypeError(f"must be (X, y) of arrays or tensors, got {type(given).__name__}")
        return as_inputs(data.all().x), data.all().y
    except (ValueError, TypeError) as error:
        raise type(error)(f"{where}: {error}") from error
