"""The contract of an exponential family, and what follows from its log-partition alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule import naming
from bayesrule.families.losses import Loss, LossLike, Point
from bayesrule.families.quadrature import Nodes

Natural = tuple[Tensor, ...]
"""One tensor per sufficient statistic: natural or expectation parameters, or a gradient in them."""


@dataclass(frozen=True)
class Estimator:
    """How ∇_μ E_q[ℓ] is had: by ``name``, one of

    - ``exact``: quadrature or enumeration, without derivatives of ℓ; ``nodes`` points a dimension;
    - ``bonnet-price``: ∇_m E = E[∇ℓ] and ∇_V E = ½E[∇²ℓ] over ``samples`` draws (Gaussians);
    - ``reparam``: derivatives through ``samples`` draws; a Gaussian's Hessian is ∇ℓ·(w − m)ᵀV⁻¹. Bernoulli and
      categorical draws are relaxed at the temperature ``relaxation`` (biased, the less the lower it is);
    - ``score``: Cov(T(w), ℓ(w)) over ``samples`` draws, without derivatives of ℓ;
    - ``local``: the delta method, everything at the mean;
    - ``closed-form``: the loss is E_q[ℓ] itself, a function of the expectation parameters.

    >>> Estimator("reparam", samples=10)
    Estimator(name='reparam', samples=10, nodes=None, relaxation=0.1)
    """

    name: str = "exact"
    samples: int = 1
    nodes: int | None = None
    relaxation: float = 0.1

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, not {self.samples}: it is the number of draws a gradient")
        if self.nodes is not None and self.nodes < 1:
            raise ValueError(f"nodes must be at least 1, not {self.nodes}: it is the number of points a dimension")
        if self.relaxation <= 0:
            raise ValueError(f"relaxation must be positive, not {self.relaxation}: at 0 a draw has no derivative")

    @classmethod
    def of(cls, given: str | Estimator) -> Estimator:
        """The estimator itself, or that of the name with its defaults."""
        if isinstance(given, Estimator):
            return given
        return cls(given)


How = str | Estimator
Recipe = Callable[[Loss, Natural, Estimator, torch.Generator | None], Natural]


class Family(ABC):
    """A kind of distribution, q(w) = h(w) exp(⟨λ, T(w)⟩ − A(λ)), without its parameters.

    A family holds no state: every function takes the natural parameters λ, a tuple with one tensor per sufficient
    statistic. They describe one distribution; where tensors have more entries than the smallest member needs, entries
    (or rows, where a member is a vector) are independent. The first dimension of w may run over points.
    """

    title: ClassVar[str]
    symbols: ClassVar[tuple[str, ...]]
    default_nodes: ClassVar[int] = 32
    has_conjugates: ClassVar[bool] = True
    """Whether E_q[⟨λ', T(w)⟩] has the gradient λ' by μ, whatever q."""

    @abstractmethod
    def statistics(self, w: Point) -> Natural:
        """T(w)."""

    def log_base(self, w: Point) -> Tensor:
        """log h(w): zero, unless a family says otherwise."""
        return torch.zeros((), dtype=_first(w).dtype)

    @abstractmethod
    def log_partition(self, natural: Natural) -> Tensor:
        """A(λ) = log ∫ h(w) exp⟨λ, T(w)⟩ dw."""

    @abstractmethod
    def expectation(self, natural: Natural) -> Natural:
        """μ = E_q[T(w)] = ∇A(λ)."""

    @abstractmethod
    def natural(self, expectation: Natural) -> Natural:
        """λ for which ∇A(λ) = μ."""

    @abstractmethod
    def mean(self, natural: Natural) -> Point:
        """E_q[w]."""

    @abstractmethod
    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Point:
        """``n`` draws, [n, ...]."""

    @abstractmethod
    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """∇_μ f = F(λ)⁻¹ ∇_λ f with F = ∇²A, the Fisher information."""

    def log_prob(self, w: Point, natural: Natural) -> Tensor:
        """log q(w) = ⟨λ, T(w)⟩ + log h(w) − A(λ), one number a point."""
        return inner(natural, self.statistics(w)) + self.log_base(w) - self.log_partition(natural)

    def entropy(self, natural: Natural) -> Tensor:
        """H(q) = A(λ) − ⟨λ, μ⟩, for a constant base h = 1."""
        return self.log_partition(natural) - inner(natural, self.expectation(natural))

    def entropy_gradient(
        self, natural: Natural, how: How = "exact", generator: torch.Generator | None = None
    ) -> Natural:
        """∇_μ H(q) = −λ, for a constant base."""
        return tuple(-part for part in natural)

    def divergence(self, natural: Natural, other: Natural) -> Tensor:
        """KL(q_λ‖q_λ') = A(λ') − A(λ) − ⟨λ' − λ, μ⟩, the Bregman divergence of A."""
        ahead = added(other, natural, -1.0)
        return self.log_partition(other) - self.log_partition(natural) - inner(ahead, self.expectation(natural))

    def check(self, natural: Natural) -> None:
        """A ValueError that says what is wrong, if λ is not in the domain of A."""
        if not isinstance(natural, tuple) or len(natural) != len(self.symbols):
            given = len(natural) if isinstance(natural, tuple) else natural
            raise ValueError(
                f"{self.title} takes {len(self.symbols)} tensors, ({', '.join(self.symbols)}), not {given}"
            )
        for symbol, part in zip(self.symbols, natural, strict=True):
            if not bool(torch.isfinite(part).all()):
                raise ValueError(f"{self.title}: {symbol} must be finite, not {_worst(part)}")
        self._check_domain(natural)

    def _check_domain(self, natural: Natural) -> None:
        """More than the right number of finite tensors, where the family asks for it."""
        return None

    def expected(
        self, loss: LossLike, natural: Natural, how: How = "exact", generator: torch.Generator | None = None
    ) -> Tensor:
        """E_q[ℓ]: by quadrature (``exact``), at the mean (``local``), from μ (``closed-form``), else over draws."""
        estimator = Estimator.of(how)
        if estimator.name == "closed-form":
            return closed_value(loss, self.expectation(natural)).detach()
        loss = Loss.of(loss)
        if estimator.name == "local":
            return loss(_one(self.mean(natural)))[0]
        if estimator.name == "exact":
            nodes = self._nodes(natural, estimator.nodes)
            return nodes.weights @ loss(nodes.w)
        return loss(self.sample(natural, estimator.samples, generator)).mean()

    def gradient(
        self, loss: LossLike, natural: Natural, how: How = "exact", generator: torch.Generator | None = None
    ) -> Natural:
        """∇_μ E_q[ℓ(w)], the natural gradient in λ, in the shapes of λ; see `Estimator` for the ways to it."""
        estimator, recipes = Estimator.of(how), self.recipes()
        self.check(natural)
        if estimator.name not in recipes:
            raise naming.unknown(f"estimator for the {self.title} family", estimator.name, recipes)
        if estimator.name != "closed-form":  # there the loss is a function of μ, not of points
            loss = Loss.of(loss)
        with torch.no_grad():
            return recipes[estimator.name](loss, natural, estimator, generator)  # type: ignore[arg-type]

    def recipes(self) -> Mapping[str, Recipe]:
        """The estimators that this family has, by name."""
        return {"exact": self._exact, "score": self._score, "local": self._local, "closed-form": self._closed_form}

    def _nodes(self, natural: Natural, count: int | None) -> Nodes:
        raise ValueError(f"{self.title} has no quadrature: take how='score'")

    def _exact(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Natural:
        """F⁻¹ Cov(T, ℓ) by quadrature."""
        nodes = self._nodes(natural, estimator.nodes)
        return self._covariance(natural, loss(nodes.w), nodes.statistics, nodes.weights)

    def _score(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Natural:
        """F⁻¹ Cov(T, ℓ) over draws, unbiased: the mean loss is the baseline, the divisor n − 1."""
        n = several(estimator)
        w = self.sample(natural, n, generator)
        # The mean loss is of the same draws, which takes one degree of freedom: 1/n would be too small by (n − 1)/n.
        weights = torch.full((n,), 1 / (n - 1), dtype=natural[0].dtype)
        return self._covariance(natural, loss(w), self.statistics(w), weights)

    def _covariance(self, natural: Natural, values: Tensor, statistics: Natural, weights: Tensor) -> Natural:
        """F⁻¹ Σ_k weight_k (ℓ_k − ℓ̄)∇_λ log q(w_k)."""
        pull = weights * (values - (weights @ values) / weights.sum())
        slopes = tuple(torch.tensordot(pull, part, 1) for part in self._scores(natural, statistics))
        return self.fisher_solve(natural, slopes)

    def _scores(self, natural: Natural, statistics: Natural) -> Natural:
        """∇_λ log q = T(w) − μ at each point."""
        return added(statistics, self.expectation(natural), -1.0)

    def _local(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Natural:
        """∇_μ ℓ(E_q[w])."""
        return self._through(loss, natural, lambda leaves: _one(self.mean(leaves)))

    def _through(self, loss: Loss, natural: Natural, draw: Callable[[Natural], Tensor]) -> Natural:
        """F⁻¹ ∇_λ of the mean of ℓ over draws that are functions of λ."""
        leaves = tuple(part.detach().requires_grad_() for part in natural)
        with torch.enable_grad():
            w = draw(leaves)
            # ∇ℓ is asked of the loss, which may know it by hand, and only the draw is differentiated.
            slopes = torch.autograd.grad(
                w, leaves, loss.gradient(w) / len(w), materialize_grads=True, allow_unused=True
            )
        return self.fisher_solve(natural, slopes)

    def _closed_form(
        self, loss: LossLike, natural: Natural, estimator: Estimator, generator: torch.Generator | None
    ) -> Natural:
        """∇_μ of a given function of μ, by autograd."""
        leaves = tuple(part.detach().requires_grad_() for part in self.expectation(natural))
        with torch.enable_grad():
            value = closed_value(loss, leaves)
            return torch.autograd.grad(value, leaves, materialize_grads=True, allow_unused=True)


def added(natural: Natural, other: Natural, factor: float = 1.0) -> Natural:
    """λ + factor·λ', part by part.

    >>> added((torch.ones(2),), (torch.tensor([1.0, 2.0]),), -1.0)
    (tensor([ 0., -1.]),)
    """
    return tuple(part + factor * term for part, term in zip(natural, other, strict=True))


def inner(natural: Natural, statistics: Natural) -> Tensor:
    """⟨λ, T⟩, summed over all entries of λ; further leading dimensions of T stay.

    >>> inner((torch.ones(2),), (torch.tensor([[1.0, 2.0], [3.0, 4.0]]),))
    tensor([3., 7.])
    """
    total = torch.zeros((), dtype=natural[0].dtype)
    for part, stat in zip(natural, statistics, strict=True):
        product = part * stat
        if part.ndim:  # torch reads an empty tuple of dimensions as all of them
            product = product.sum(tuple(range(-part.ndim, 0)))
        total = total + product
    return total


def closed_value(loss: LossLike, expectation: Natural) -> Tensor:
    """E_q[ℓ] by a function of μ, which must give one number."""
    function = loss.value if isinstance(loss, Loss) else loss
    if function is None:
        raise ValueError("how='closed-form' needs a loss that is a function of the expectation parameters")
    value = function(expectation)
    if value.numel() != 1:
        raise ValueError(f"how='closed-form': the loss must give one number, not the shape {list(value.shape)}")
    return value.reshape(())


def several(estimator: Estimator) -> int:
    """The number of draws, at least two where their mean is the baseline."""
    least = f"samples must be at least 2 for how={estimator.name!r}, not {estimator.samples}"
    refuse(estimator.samples >= 2, f"{least}: Estimator({estimator.name!r}, samples=100)")
    return estimator.samples


def refuse(holds: bool, message: str) -> None:
    """A ValueError unless ``holds``."""
    if not holds:
        raise ValueError(message)


def positive(part: Tensor, title: str, what: str) -> None:
    """A ValueError that names the lowest entry, unless all are positive."""
    refuse(bool((part > 0).all()), f"{title}: {what} must be positive, not {float(part.min()):.4g}")


def same_shape(natural: Natural, title: str) -> None:
    """A ValueError unless all parts have one shape."""
    shapes = [list(part.shape) for part in natural]
    refuse(shapes.count(shapes[0]) == len(shapes), f"{title}: all parts must have one shape, not {shapes}: expand them")


def _first(w: Point) -> Tensor:
    return w[0] if isinstance(w, tuple) else w


def _one(w: Point) -> Point:
    """One point as a batch of one."""
    if isinstance(w, tuple):
        return tuple(part[None] for part in w)
    return w[None]


def _worst(part: Tensor) -> float:
    return float(part[~torch.isfinite(part)].flatten()[0])
