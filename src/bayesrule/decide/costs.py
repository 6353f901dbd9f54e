"""The act of least expected cost under a prediction.

For a cost c(a, y) of doing a where y turns out to be true, Bayes' act is a* = argmin_a E[c(a, y)], y ~ p(y|x, D). It
depends on the whole prediction, not on its best guess.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesrule.predictions import Binary, Classes, Numbers, Prediction


@dataclass(frozen=True, eq=False)
class Decision:
    """What to do with each example, and what that costs on average.

    ``act``: the number of an act, or a quantity, of the shape of y. ``cost``: E[c(act, y)]. ``costs``: those of all
    acts, ``[B, A, ...]``; None where acts are quantities. ``point_act`` and ``point_cost``: of whoever takes the best
    guess (the most probable class, the mean) for the truth.
    """

    act: Tensor
    cost: Tensor
    costs: Tensor | None
    point_act: Tensor
    point_cost: Tensor
    rule: Costs

    @property
    def regret(self) -> Tensor:
        """Expected cost of acting on the best guess above that of the act: what the uncertainty is worth, ≥ 0."""
        return (self.point_cost - self.cost).clamp(min=0)

    def paid(self, y: Any) -> Tensor:
        """What the acts cost once y is known."""
        return self.rule.paid(self.act, torch.as_tensor(y))

    def point_paid(self, y: Any) -> Tensor:
        """What acting on the best guess costs once y is known."""
        return self.rule.paid(self.point_act, torch.as_tensor(y))

    def __len__(self) -> int:
        return len(self.act)


class Costs(ABC):
    """c(a, y) for some kind of y."""

    @abstractmethod
    def decide(self, prediction: Prediction) -> Decision:
        """Bayes' act for each example."""

    @abstractmethod
    def paid(self, act: Tensor, y: Tensor) -> Tensor:
        """c(a, y), one for each example."""


def decide(prediction: Prediction, costs: Any = None, *, utilities: Any = None) -> Decision:
    """The act of least expected cost for each example of a prediction, and what all acts cost.

    Args:
        prediction: of classes, yes or no, reals or counts, from any posterior.
        costs: for classes a matrix of acts × classes, c(a, y), in which there may be more acts than classes (such as
            asking a person) or fewer. For numbers `Newsvendor` or `PiecewiseLinear`.
        utilities: in place of costs, the matrix of what each act is worth: costs with the other sign.

    >>> from bayesrule.predictions import Reals
    >>> prediction = Classes(torch.tensor([[[2.0, 0.0], [0.2, 0.0]]]))  # sure of class 0; not so sure
    >>> decision = decide(prediction, [[0.0, 10.0], [1.0, 0.0]])  # taking a 1 for a 0 costs ten times as much
    >>> prediction.label, decision.act
    (tensor([0, 0]), tensor([1, 1]))
    >>> decide(Reals(torch.zeros(1, 1), torch.ones(())), Newsvendor(under=9.0, over=1.0)).act
    tensor([1.2816])
    """
    if (costs is None) == (utilities is None):
        both = "neither" if costs is None else "both"
        raise ValueError(f"give costs or utilities, got {both}: utilities are costs with the other sign")
    if isinstance(costs, Costs):
        return costs.decide(prediction)
    if utilities is not None:
        if isinstance(utilities, Costs):
            raise TypeError(
                f"utilities must be a matrix of acts × classes, not {type(utilities).__name__}: give costs="
            )
        return ClassCosts(-_matrix("utilities", utilities)).decide(prediction)
    return ClassCosts(_matrix("costs", costs)).decide(prediction)


@dataclass(frozen=True, eq=False)
class ClassCosts(Costs):
    """c(a, y) for classes, a ``matrix`` of acts × classes.

    >>> prediction = Classes(torch.zeros(1, 1, 3))
    >>> ClassCosts(torch.tensor([[0.0, 3.0, 3.0], [1.0, 1.0, 1.0]])).decide(prediction).costs
    tensor([[2., 1.]])
    """

    matrix: Tensor

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or not all(self.matrix.shape):
            raise ValueError(
                f"costs must be a matrix of acts × classes, got the shape {list(self.matrix.shape)}: a row for each act"
            )
        if not bool(self.matrix.isfinite().all()):
            raise ValueError("costs must be finite numbers, got NaN or infinite ones: give a large number instead")

    def decide(self, prediction: Prediction) -> Decision:
        """argmin_a Σ_y p(y) c(a, y)."""
        if isinstance(prediction, Binary):
            prediction = prediction.classes
        if not isinstance(prediction, Classes):
            raise TypeError(
                f"a matrix of costs must have a prediction of Classes, not {type(prediction).__name__}: for numbers "
                "give Newsvendor or PiecewiseLinear"
            )
        probs = prediction.probs
        classes = probs.shape[1]
        if self.matrix.shape[1] != classes:
            raise ValueError(
                f"costs must have a column for each of the {classes} classes, got {self.matrix.shape[1]} columns"
            )
        matrix = self.matrix.to(probs)
        expected = torch.einsum("bc...,ac->ba...", probs, matrix)
        return among(expected, matrix.argmin(0)[probs.argmax(1)], self)

    def paid(self, act: Tensor, y: Tensor) -> Tensor:
        """c(a, y)."""
        y = y.to(act.device)
        if y.shape != act.shape or y.is_floating_point() or not bool(((y >= 0) & (y < self.matrix.shape[1])).all()):
            raise ValueError(
                f"y must be whole numbers from 0 to {self.matrix.shape[1] - 1} of the shape {list(act.shape)}, got "
                f"{y.dtype} of shape {list(y.shape)}"
            )
        return self.matrix.to(act.device)[act, y]


@dataclass(frozen=True)
class Newsvendor(Costs):
    """A unit that is missing costs ``under``, one too many ``over``: c(a, y) = under·(y − a)₊ + over·(a − y)₊.

    Bayes' act is the quantile under/(under + over) of the prediction, for counts the least whole number that reaches
    it; its cost follows from E|y − a|, which every prediction of numbers has in closed form.

    >>> from bayesrule.predictions import Counts
    >>> decision = Newsvendor(under=3.0, over=1.0).decide(Counts(torch.tensor([[4.0]]).log()))
    >>> decision.act, decision.cost, decision.regret
    (tensor([5.]), tensor([2.6412]), tensor([0.4847]))
    """

    under: float
    over: float

    def __post_init__(self) -> None:
        for name in ("under", "over"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a positive cost of a unit, got {value:g}")

    @property
    def level(self) -> float:
        """under/(under + over)."""
        return self.under / (self.under + self.over)

    def decide(self, prediction: Prediction) -> Decision:
        """The quantile, beside the mean."""
        numbers = numbers_of(prediction, "a newsvendor's cost")
        act, mean = numbers.quantile(self.level), numbers.mean
        return Decision(act, self.expected(numbers, act), None, mean, self.expected(numbers, mean), self)

    def expected(self, prediction: Numbers, act: float | Tensor) -> Tensor:
        """E[c(a, y)] = under·(E y − a) + (under + over)·E(a − y)₊."""
        return self.under * (prediction.mean - act) + (self.under + self.over) * prediction.shortfall(act)

    def paid(self, act: Tensor, y: Tensor) -> Tensor:
        """c(a, y)."""
        missing = _numbers(act, y) - act
        return torch.where(missing > 0, self.under * missing, -self.over * missing)


@dataclass(frozen=True)
class PiecewiseLinear(Costs):
    """Acts whose costs are linear in y between ``knots``: ``costs`` [A, K], c(a, k_j) of each act at each knot.

    Beyond the first and the last knot the lines go on. So c(a, y) = c_0 + s_0 (y − k_0) + Σ_j Δ_j (y − k_j)₊, with Δ_j
    by how much the slope changes at k_j, and its mean follows from E(y − k_j)₊.

    >>> from bayesrule.predictions import Reals
    >>> rule = PiecewiseLinear(knots=[0.0, 10.0], costs=[[0.0, 10.0], [3.0, 3.0]])  # bear a loss y, or pay 3 for it
    >>> rule.decide(Reals(torch.tensor([[1.0, 5.0]]), torch.ones(()))).act
    tensor([0, 1])
    """

    knots: Sequence[float]
    costs: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        knots, costs = torch.as_tensor(self.knots), _matrix("costs", self.costs)
        if knots.ndim != 1 or len(knots) < 2 or not bool((knots.diff() > 0).all()):
            raise ValueError(f"knots must be at least two rising numbers, got {list(self.knots)}")
        if costs.ndim != 2 or costs.shape[1] != len(knots) or not bool(costs.isfinite().all()):
            raise ValueError(
                f"costs must be finite numbers [A, {len(knots)}], one for each act and knot: got {list(costs.shape)}"
            )

    @cached_property
    def _knots(self) -> Tensor:
        return torch.as_tensor(self.knots, dtype=torch.float64)

    @cached_property
    def _values(self) -> Tensor:
        return _matrix("costs", self.costs)

    @cached_property
    def _slopes(self) -> Tensor:
        """Of each act between knots, [A, K − 1]."""
        return self._values.diff(dim=1) / self._knots.diff()

    def decide(self, prediction: Prediction) -> Decision:
        """argmin_a E[c(a, y)]."""
        numbers = numbers_of(prediction, "costs at knots")
        mean = numbers.mean
        # E(y − k)₊ = E(k − y)₊ + E y − k
        above = [numbers.shortfall(float(knot)) + mean - float(knot) for knot in self._knots[1:-1]]
        expected = self._sum(mean - float(self._knots[0]), above)
        return among(expected, self.at(mean).argmin(1), self)

    def at(self, y: Tensor) -> Tensor:
        """c(a, y) of all acts, [B, A, ...]."""
        above = [(y - float(knot)).clamp(min=0) for knot in self._knots[1:-1]]
        return self._sum(y - float(self._knots[0]), above)

    def _sum(self, beyond: Tensor, above: list[Tensor]) -> Tensor:
        """c_0 + s_0·beyond + Σ_j Δ_j·above_j, a row of acts in dimension 1."""
        values, slopes = self._values.to(beyond), self._slopes.to(beyond)
        shape = (1, -1, *[1] * (beyond.ndim - 1))
        found = values[:, 0].reshape(shape) + slopes[:, 0].reshape(shape) * beyond.unsqueeze(1)
        for bend, part in zip(slopes.diff(dim=1).unbind(1), above, strict=True):
            found = found + bend.reshape(shape) * part.unsqueeze(1)
        return found

    def paid(self, act: Tensor, y: Tensor) -> Tensor:
        """c(a, y)."""
        return self.at(_numbers(act, y).double()).gather(1, act.unsqueeze(1)).squeeze(1)


def among(expected: Tensor, point: Tensor, rule: Costs) -> Decision:
    """The least of the expected costs [B, A, ...], beside those of ``point``."""
    cost, act = expected.min(1)
    return Decision(act, cost, expected, point, expected.gather(1, point.unsqueeze(1)).squeeze(1), rule)


def numbers_of(prediction: Any, what: str) -> Numbers:
    """A prediction, if it is one of numbers."""
    if not isinstance(prediction, Numbers):
        raise TypeError(
            f"{what} must have a prediction of Numbers, not {type(prediction).__name__}: for classes give a matrix of "
            "acts × classes"
        )
    return prediction


def _matrix(name: str, values: Any) -> Tensor:
    try:
        return torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must be a matrix of numbers, acts × classes, or Newsvendor or PiecewiseLinear for numbers: got "
            f"{values!r} ({error})"
        ) from None


def _numbers(act: Tensor, y: Tensor) -> Tensor:
    if y.shape != act.shape:
        raise ValueError(f"y must have the shape of the acts, {list(act.shape)}, got {list(y.shape)}")
    return y.to(act.device)
