"""Penalties r(μ, ν) on the location μ and scale ν of a weight's distribution.

| penalty | r(μ, ν) |
| --- | --- |
| `L2(factor)` | factor·μ² |
| `L1(factor)` | factor·abs μ |
| `GroupLasso(factor, axis)` | factor·‖μ_g‖₂ for every group g: all weights that share an index along ``axis`` |
| `Polynomial(c_0, c_1, …)` | Σ_k c_k μ^k, each c_k a number or a function of ν |
| `Cosine(factor, frequency, phase)` | factor·cos(frequency·μ + phase), the factor a number or a function of ν |
| `Function(f)`, or any callable | f(μ, ν) or f(μ) |
| a sum of these | their sum |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.penalties.terms import Terms
from bayesrule.penalties.translations.base import takes_two

Coefficient = float | Callable[[Any], Any]
Scales = float | Tensor | Mapping[str, Any] | Iterable[Any] | None


class Penalty(ABC):
    """r(μ, ν) for each element of μ; a sum of penalties is a penalty."""

    @abstractmethod
    def __call__(self, mu: Tensor, nu: float | Tensor | None = None) -> Tensor:
        """r(μ, ν), of the shape of μ."""

    def closed(self, nu: float) -> Terms | None:
        """r(·, ν) as powers, waves and a kink, or None."""
        return None

    @property
    def parts(self) -> tuple[Penalty, ...]:
        """What it is a sum of."""
        return (self,)

    def __add__(self, other: Penalty | Callable[..., Tensor]) -> Penalty:
        """r + s."""
        return PenaltySum(self.parts + penalty(other).parts)

    def total(self, means: Tensor | Mapping[str, Tensor] | Iterable[Tensor], scales: Scales = None) -> Tensor:
        """Σ r(μ_j, ν_j) over all weights: the term to add to a loss that is summed over the data.

        ``means``: a tensor, a mapping of tensors such as ``dict(module.named_parameters())``, or several tensors.
        ``scales``: one number for all, or as many tensors as there are means, in the same form.

        >>> float(L2(0.5).total({"a": torch.ones(2, 2), "b": torch.ones(2)}))
        3.0
        """
        tensors, widths = paired(means, scales)
        return torch.stack([self(m, s).sum() for m, s in zip(tensors, widths, strict=True)]).sum()


def paired(means: Tensor | Mapping[str, Tensor] | Iterable[Tensor], scales: Scales) -> tuple[list[Tensor], list[Any]]:
    """Means and scales as lists of one length."""
    if isinstance(means, nn.Module):
        raise TypeError(f"means must be tensors, not a {type(means).__name__}: give dict(module.named_parameters())")
    if isinstance(means, Mapping):
        if isinstance(scales, Mapping):
            for name in means:
                if name not in scales:
                    raise ValueError(f"scales has none for {name!r}: it must have the names of the means")
            scales = [scales[name] for name in means]
        return paired(list(means.values()), scales)
    tensors = [means] if isinstance(means, Tensor) else list(means)
    if not tensors:
        raise ValueError("means must be at least one tensor, got none")
    if scales is None or isinstance(scales, Real) or (isinstance(scales, Tensor) and scales.ndim == 0):
        return tensors, [scales] * len(tensors)
    widths = [scales] if isinstance(scales, Tensor) else list(scales)  # type: ignore[arg-type]
    if len(widths) != len(tensors):
        raise ValueError(f"scales must be one number, or as many as there are means, {len(tensors)}, not {len(widths)}")
    return tensors, widths


@dataclass(frozen=True)
class L2(Penalty):
    """factor·μ²."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check(self.factor)

    def __call__(self, mu: Tensor, nu: float | Tensor | None = None) -> Tensor:
        """factor·μ²."""
        return self.factor * mu.square()

    def closed(self, nu: float) -> Terms:
        """A power."""
        return Terms((0.0, 0.0, _number(self.factor, nu)))


@dataclass(frozen=True)
class L1(Penalty):
    """factor·|μ|."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check(self.factor)

    def __call__(self, mu: Tensor, nu: float | Tensor | None = None) -> Tensor:
        """factor·|μ|."""
        return self.factor * mu.abs()

    def closed(self, nu: float) -> Terms:
        """A kink."""
        return Terms(kink=_number(self.factor, nu))


@dataclass(frozen=True)
class GroupLasso(Penalty):
    """factor·Σ_g ‖μ_g‖₂: a group is all weights of a tensor that share an index along ``axis``.

    For a linear layer's weight [out, in], axis 0 groups the incoming weights of each unit (‖w‖₂,₁) and axis 1 the
    outgoing ones (‖wᵀ‖₂,₁). Of a tensor with one dimension, such as a bias, each element is a group.

    >>> GroupLasso(2.0, axis=1)(torch.tensor([[3.0, 0.0], [4.0, 1.0]]))
    tensor([10.,  2.])
    """

    factor: float = 1.0
    axis: int = 0

    def __post_init__(self) -> None:
        _check(self.factor)
        if self.axis not in (0, 1):
            raise ValueError(f"axis must be 0 (what comes into a neuron) or 1 (what leaves it), not {self.axis}")

    def __call__(self, mu: Tensor, nu: float | Tensor | None = None) -> Tensor:
        """factor·‖μ_g‖ for each group."""
        return self.factor * torch.linalg.vector_norm(groups(mu, self.axis), dim=1)


def groups(w: Tensor, axis: int) -> Tensor:
    """A tensor as groups [n, size]: rows of weights that share an index along the axis."""
    return w.reshape(-1, 1) if w.ndim < 2 else w.movedim(axis, 0).flatten(1)


class Polynomial(Penalty):
    """Σ_k c_k μ^k; a coefficient is a number, or a function of ν.

    >>> r = Polynomial(lambda nu: nu**2, 0.0, 1.0)  # μ² + ν²
    >>> r(torch.tensor([2.0]), 3.0)
    tensor([13.])
    """

    def __init__(self, *coefficients: Coefficient) -> None:
        if not coefficients:
            raise ValueError("a polynomial needs at least one coefficient: that of μ⁰, then μ¹, …")
        for value in coefficients:
            _check(value)
        self.coefficients = coefficients

    def __repr__(self) -> str:
        return f"Polynomial{self.coefficients}"

    def __call__(self, mu: Tensor, nu: float | Tensor | None = None) -> Tensor:
        """Σ_k c_k(ν) μ^k."""
        total = torch.zeros_like(mu)
        for value in reversed(self.coefficients):
            total = total * mu + _at(value, nu)
        return total

    def closed(self, nu: float) -> Terms:
        """Powers."""
        return Terms(tuple(_number(value, nu) for value in self.coefficients))


@dataclass(frozen=True)
class Cosine(Penalty):
    """factor·cos(frequency·μ + phase); the factor is a number, or a function of ν."""

    factor: Coefficient = 1.0
    frequency: float = 1.0
    phase: float = 0.0

    def __post_init__(self) -> None:
        for value in (self.factor, self.frequency, self.phase):
            _check(value)

    def __call__(self, mu: Tensor, nu: float | Tensor | None = None) -> Tensor:
        """factor·cos(frequency·μ + phase)."""
        return _at(self.factor, nu) * (self.frequency * mu + self.phase).cos()

    def closed(self, nu: float) -> Terms:
        """A wave."""
        return Terms(waves=((_number(self.factor, nu), float(self.frequency), float(self.phase)),))


class Function(Penalty):
    """Any function of tensors: f(μ, ν) or f(μ), element by element.

    A second argument is ν, unless it has a default and is not called nu: ``def huber(mu, delta=1.0)`` is f(μ).

    >>> Function(lambda mu: mu.abs() ** 1.5)(torch.tensor([4.0]))
    tensor([8.])
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.takes_scale = takes_two(function, "nu")

    def __repr__(self) -> str:
        return f"Function({getattr(self.function, '__name__', self.function)})"

    def __call__(self, mu: Tensor, nu: float | Tensor | None = None) -> Tensor:
        """f(μ, ν)."""
        if self.takes_scale and nu is None:
            raise ValueError("this penalty is a function of μ and ν: say which ν")
        rest = (torch.as_tensor(nu, dtype=mu.dtype),) if self.takes_scale else ()
        found = self._values(mu, *rest)
        if found.ndim and found.shape != mu.shape:
            raise ValueError(f"a penalty gives one number for each μ: got {list(found.shape)} for {list(mu.shape)}")
        if not found.ndim and mu.numel() > 1:
            one = self._values(mu.detach().flatten()[:1], *rest)
            if not torch.allclose(one, found.detach(), equal_nan=True):
                raise ValueError("a penalty gives one number for each μ, this one gives their sum: leave out .sum()")
        return found.expand(mu.shape)

    def _values(self, *given: Tensor) -> Tensor:
        try:
            found = torch.as_tensor(self.function(*given))
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{self!r} cannot take a tensor of μ: {error}; use functions of torch") from error
        if found.is_complex():
            raise ValueError(f"a penalty must be a real number for every μ, {self!r} is complex")
        return found.to(given[0].dtype)


class PenaltySum(Penalty):
    """Σ_i r_i."""

    def __init__(self, parts: tuple[Penalty, ...]) -> None:
        if any(isinstance(part, GroupLasso) for part in parts):
            raise ValueError("GroupLasso stands alone: a sum with it is neither separable nor radial")
        self._parts = parts

    @property
    def parts(self) -> tuple[Penalty, ...]:
        """The terms."""
        return self._parts

    def __repr__(self) -> str:
        return " + ".join(map(repr, self._parts))

    def __call__(self, mu: Tensor, nu: float | Tensor | None = None) -> Tensor:
        """Σ_i r_i(μ, ν)."""
        return torch.stack([part(mu, nu) for part in self._parts]).sum(0)


def penalty(given: Penalty | Callable[..., Any]) -> Penalty:
    """A penalty as it is, or a function as one."""
    if isinstance(given, Penalty):
        return given
    if not callable(given):
        raise TypeError(
            f"penalty must be one of br.penalties or a function r(mu, nu), not {type(given).__name__}: {given!r}"
        )
    return Function(given)


def _at(value: Coefficient, nu: float | Tensor | None) -> Any:
    if not callable(value):
        return value
    if nu is None:
        raise ValueError("a coefficient of this penalty is a function of ν: say which ν")
    return value(nu)


def _number(value: Coefficient, nu: float) -> float:
    """A coefficient at ν; functions see a tensor, which math's functions take as well."""
    found = float(_at(value, torch.tensor(nu, dtype=torch.float64)))
    if not math.isfinite(found):
        raise ValueError(f"the penalty is not finite: a coefficient is {found} at ν = {nu:.6g}")
    return found


def _check(value: Coefficient) -> None:
    try:
        good = callable(value) or math.isfinite(value)
    except TypeError:
        good = False
    if not good:
        raise ValueError(f"a penalty's factor must be a finite number, not {value!r}")


__all__ = ["L1", "L2", "Cosine", "Function", "GroupLasso", "Penalty", "PenaltySum", "Polynomial", "penalty"]
