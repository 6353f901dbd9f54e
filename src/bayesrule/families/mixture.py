"""A mixture of Gaussians, as a minimal conditional exponential family (Lin, Khan & Schmidt 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.families.base import Estimator, Family, How, Natural, Recipe, refuse
from bayesrule.families.discrete import Categorical
from bayesrule.families.full_gaussian import FullGaussian
from bayesrule.families.losses import Loss, LossLike


@dataclass(frozen=True)
class GaussianMixture(Family):
    """q(w) = Σ_c π_c N(w; m_c, S_c⁻¹): λ = (log π_c/π_K for c < K, S_c m_c, −½S_c), shapes [K − 1], [K, d], [K, d, d].

    μ = (π_c, π_c m_c, π_c(S_c⁻¹ + m_c m_cᵀ)). Given the component q is an exponential family, and so is the choice of
    the component; w alone has no sufficient statistics, and no closed entropy. Gradients are natural ones in λ: by the
    weights at fixed components, E_c[ℓ] − E_K[ℓ], and by a component at fixed weights, those of its Gaussian:
    the 1/π_c of the Fisher information cancels the π_c of E_q[ℓ] = Σ_c π_c E_c[ℓ].

    >>> family = GaussianMixture()
    >>> weights, means = torch.tensor([0.25, 0.75]), torch.tensor([[-1.0], [1.0]])
    >>> natural = family.of(weights, means, torch.ones(2, 1, 1))
    >>> family.mean(natural)
    tensor([0.5000])
    >>> family.gradient(lambda w: w[:, 0], natural)[0]  # E₁[w] − E₂[w]
    tensor([-2.])
    """

    title: ClassVar[str] = "mixture of Gaussians"
    symbols: ClassVar[tuple[str, ...]] = ("log-ratios to the last weight", "precision·mean", "−½precision")
    has_conjugates: ClassVar[bool] = False

    @staticmethod
    def of(weights: Tensor, means: Tensor, covariances: Tensor) -> Natural:
        """λ of weights [K], means [K, d] and covariances [K, d, d]."""
        return Categorical.of(weights) + FullGaussian.of(means, covariances)

    def parts(self, natural: Natural) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, means and covariances."""
        return Categorical().mean(natural[:1]), *FullGaussian.mean_and_covariance(natural[1:])

    def components(self, natural: Natural) -> list[Natural]:
        """The natural parameters of each Gaussian."""
        return [(first, second) for first, second in zip(natural[1], natural[2], strict=True)]

    def statistics(self, w: Tensor) -> Natural:
        """There are none."""
        raise NotImplementedError("a mixture of Gaussians has no sufficient statistics of w alone: use log_prob")

    def log_partition(self, natural: Natural) -> Tensor:
        """There is none."""
        raise NotImplementedError("a mixture of Gaussians has no log-partition of its own: use log_prob")

    def log_prob(self, w: Tensor, natural: Natural) -> Tensor:
        """log Σ_c π_c N(w; m_c, S_c⁻¹), one number a point."""
        gaussian = FullGaussian()
        logs = torch.stack([gaussian.log_prob(w, part) for part in self.components(natural)], -1)
        return torch.logsumexp(logs + Categorical.logits(natural[:1]).log_softmax(-1), -1)

    def expectation(self, natural: Natural) -> Natural:
        """(π_c, π_c m_c, π_c(S_c⁻¹ + m_c m_cᵀ)), of the weights all but the last."""
        weights = Categorical().mean(natural[:1])
        first, second = FullGaussian().expectation(natural[1:])
        return weights[:-1], weights[:, None] * first, weights[:, None, None] * second

    def natural(self, expectation: Natural) -> Natural:
        """Divide by the weights, then as Gaussians."""
        chosen = Categorical().natural(expectation[:1])
        weights = Categorical().mean(chosen)
        gaussians = FullGaussian().natural((expectation[1] / weights[:, None], expectation[2] / weights[:, None, None]))
        return chosen + gaussians

    def mean(self, natural: Natural) -> Tensor:
        """Σ_c π_c m_c."""
        weights, means, _ = self.parts(natural)
        return weights @ means

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Tensor:
        """A component, then a draw of it."""
        # A draw of every component, all but one of them for nothing: cheaper than a loop over the points.
        chosen = Categorical().sample(natural[:1], n, generator)
        every = FullGaussian().sample(natural[1:], n, generator)
        return (chosen[:, :, None] * every).sum(1)

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """Block by block: the choice, and each component with π_c times its Gaussian's Fisher information."""
        weights, gaussian = Categorical().mean(natural[:1]), FullGaussian()
        share = (gradient[0], gradient[1] / weights[:, None], gradient[2] / weights[:, None, None])
        solved = []
        for part, slope in zip(self.components(natural), self.components(share), strict=True):
            solved.append(gaussian.fisher_solve(part, slope))
        return Categorical().fisher_solve(natural[:1], gradient[:1]) + _stacked(solved)

    def expected(
        self, loss: LossLike, natural: Natural, how: How = "exact", generator: torch.Generator | None = None
    ) -> Tensor:
        """Σ_c π_c E_c[ℓ], each as of a Gaussian."""
        return Categorical().mean(natural[:1]) @ self._values(Loss.of(loss), natural, Estimator.of(how), generator)

    def entropy(self, natural: Natural, how: How = "exact", generator: torch.Generator | None = None) -> Tensor:
        """−E_q[log q], by quadrature or over draws."""
        return -self.expected(lambda w: self.log_prob(w, natural), natural, how, generator)

    def entropy_gradient(
        self, natural: Natural, how: How = "exact", generator: torch.Generator | None = None
    ) -> Natural:
        """−∇_μ E_q[log q] with log q held as a function of w: its own change is zero on average."""
        fixed = tuple(part.detach() for part in natural)
        slopes = self.gradient(lambda w: self.log_prob(w, fixed), natural, how, generator)
        return tuple(-slope for slope in slopes)

    def divergence(
        self, natural: Natural, other: Natural, how: How = "exact", generator: torch.Generator | None = None
    ) -> Tensor:
        """E_q[log q − log q'], by quadrature or over draws."""
        return self.expected(lambda w: self.log_prob(w, natural) - self.log_prob(w, other), natural, how, generator)

    def retract(self, natural: Natural, step: Natural) -> Natural:
        """Each component as `FullGaussian.retract`; the log-ratios may be anything."""
        moved = []
        for part, change in zip(self.components(natural), self.components(step), strict=True):
            moved.append(FullGaussian().retract(part, change))
        return (natural[0] + step[0], *_stacked(moved))

    def recipes(self) -> Mapping[str, Recipe]:
        """Those of a Gaussian, for each component."""
        return dict.fromkeys(("exact", "score", "local", "bonnet-price", "reparam"), self._each)

    def _each(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Natural:
        gaussian = FullGaussian()
        slopes = [gaussian.gradient(loss, part, estimator, generator) for part in self.components(natural)]
        values = self._values(loss, natural, estimator, generator)
        return (values[:-1] - values[-1], *_stacked(slopes))

    def _values(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Tensor:
        """E_c[ℓ] for each component."""
        parts = self.components(natural)
        return torch.stack([FullGaussian().expected(loss, part, estimator, generator) for part in parts])

    def _check_domain(self, natural: Natural) -> None:
        shapes = [list(part.shape) for part in natural]
        count = natural[1].shape[0] if natural[1].ndim == 2 else 0
        refuse(shapes[0] == [count - 1], f"{self.title}: shapes must be [K − 1], [K, d] and [K, d, d], not {shapes}")
        FullGaussian().check(natural[1:])


def _stacked(parts: list[Natural]) -> Natural:
    return tuple(torch.stack(same) for same in zip(*parts, strict=True))
