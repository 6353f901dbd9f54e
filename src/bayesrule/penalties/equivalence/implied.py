"""The prior that a penalty stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from bayesrule.modules import Parameters, parameters
from bayesrule.penalties.equivalence.lines import Place, Table, line, locate, tail, to_infinity
from bayesrule.penalties.terms import Terms, Wave
from bayesrule.penalties.translations import Gaussian as GaussianFamily
from bayesrule.penalties.translations.base import inverted
from bayesrule.priors import Gaussian, Laplace, Prior

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Implied(Prior):
    """p(w) = Π_j α(w_j) with α = exp(A)/κ and A(x) = Σ_k polynomial_k x^k + Σ waves + kink·|x| + table(x).

    ``waves``: triples (amplitude, frequency, phase). ``error``: a bound on |log α − log of the true prior| wherever α
    is above 1e-6 of its height, in nats. ``exact``: the same prior as a `Gaussian` or `Laplace`, where it is one.

    Every weight has this density, those of normalisation layers as well: so says a penalty that is put on all of them.

    >>> from bayesrule import penalties
    >>> from bayesrule.penalties import prior_of, translations
    >>> prior = prior_of(penalties.L2(2.0), translations.Gaussian(0.1))
    >>> prior.exact
    Gaussian(scale=0.5, mean=0.0)
    >>> round(prior.variance, 12)
    0.25
    """

    name: ClassVar[str] = "implied"
    exists: ClassVar[bool] = True
    polynomial: tuple[float, ...] = ()
    waves: tuple[Wave, ...] = ()
    kink: float = 0.0
    table: Table | None = None
    error: float = 0.0
    exact: Gaussian | Laplace | None = None

    @property
    def terms(self) -> Terms:
        """A without its table."""
        return Terms(self.polynomial, self.waves, self.kink)

    def exponent(self, x: Tensor) -> Tensor:
        """A(x), not normalised."""
        smooth = self.terms(x)
        if self.table is None:
            return smooth
        return smooth + self.table(x)

    def log_density(self, x: Tensor) -> Tensor:
        """log α(x) of one weight, for each element of x; differentiable."""
        if self.exact is not None:
            return _closed(self.exact, x.double()).to(x.dtype)
        return (self.exponent(x.double()) - self.log_normaliser).to(x.dtype)

    def density(self, x: Tensor) -> Tensor:
        """α(x) of one weight, for each element of x."""
        return self.log_density(x).exp()

    @cached_property
    def place(self) -> Place:
        """Where the mass is."""
        return locate(self.exponent)

    @cached_property
    def _line(self) -> tuple[Tensor, Tensor, Tensor]:
        """Points, the logarithms of exp(A)·dx there, and dx."""
        x, spacing = line(self.place)
        near = abs(self.place.centre) < 30 * self.place.width  # further away a kink does not matter
        if self.kink and near:  # points that crowd at the kink, across which the rule of equal steps is poor
            x, spacing = line(self.place._replace(centre=0.0), power=3)
        return x, self.exponent(x).nan_to_num(-math.inf, math.inf, -math.inf) + spacing.log(), spacing

    @cached_property
    def _masses(self) -> tuple[Tensor, Tensor, float]:
        """Points, their probabilities, and log κ; the first and the last stand for what lies beyond too."""
        x, logs, spacing = self._line
        logs = to_infinity(logs, (x - self.place.centre).abs(), spacing)
        top = torch.logsumexp(logs, 0)
        return x, (logs - top).exp(), float(top)

    @property
    def log_normaliser(self) -> float:
        """log κ, κ = ∫ exp(A)."""
        return self._masses[2]

    @property
    def doubt(self) -> float:
        """How much log κ changes if every other point is left out."""
        x, logs, spacing = (each[::2] for each in self._line)
        half = to_infinity(logs + math.log(2), (x - self.place.centre).abs(), 2 * spacing)
        return abs(float(torch.logsumexp(half, 0)) - self.log_normaliser)

    @cached_property
    def tail(self) -> float:
        """dA/d log|x| far out, on the side where it is greater: α falls as |x| to this power or faster."""
        place = self.place
        if not math.isfinite(place.width):
            place = Place(0.0, 1.0)
        return tail(self.exponent, place)

    @property
    def integrable(self) -> bool:
        """Whether exp(A) has an integral, so far as its tail tells."""
        return math.isfinite(self.place.width) and self.tail < -1.0001

    def moment(self, order: int) -> float:
        """E x^order; inf where it does not exist, nan where it is undefined."""
        return self._central_moment(order, 0.0)

    def _central_moment(self, order: int, about: float) -> float:
        """E (x − about)^order, to infinity: its tail is heavier than that of α."""
        if self.tail + order >= -1.0001 and order > 0:
            return math.nan if order % 2 else math.inf
        x, logs, spacing = self._line
        powers = order * (x - about).abs().log().clamp(min=-1e300)
        logs = to_infinity(logs + powers, (x - self.place.centre).abs(), spacing)
        each = (logs - self.log_normaliser).exp() * (x - about).sign() ** order
        return float(each.sum())

    @property
    def mean(self) -> float:
        """E x."""
        return self.moment(1)

    @property
    def variance(self) -> float:
        """E (x − E x)²."""
        if not math.isfinite(self.moment(2)):
            return math.inf
        return self._central_moment(2, self.mean)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws of one weight, by the inverse of the distribution function."""
        x, masses, _ = self._masses
        return inverted(x, masses, (count,), generator)

    def draw(self, module: nn.Module, generator: torch.Generator | None = None) -> Parameters:
        """One draw of all of a module's parameters."""
        named = parameters(module)
        found = {}
        for name, w in named.items():
            most = torch.finfo(w.dtype).max  # a heavy tail reaches further than a dtype does
            found[name] = self.sample(w.numel(), generator).clamp(-most, most).reshape(w.shape).to(w.dtype)
        return found

    def resolve(self, module: nn.Module) -> Prior:
        """The exact prior where there is one, so that methods that need a Gaussian have it; else this one."""
        if self.exact is None:
            return self
        return self.exact.resolve(module)

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Σ_j log α(w_j)."""
        return torch.stack([self.log_density(w).sum() for w in parameters.values()]).sum()

    def divergence(self, mean: Tensor, std: Tensor, like: Mapping[str, Tensor]) -> Tensor | None:
        """KL(N(mean, std²)‖p) where A is powers, waves and a kink; None where it is a table."""
        if self.table is not None:
            return None
        expected = self.terms.expectation(GaussianFamily(), mean.double(), std.double())
        entropy = GaussianFamily().unit_entropy() + std.double().log()
        return (self.log_normaliser - entropy - expected).sum().to(mean.dtype)

    def plot(self) -> Figure:
        """The density, and its logarithm."""
        from bayesrule.penalties.equivalence.pictures import plot_prior

        return plot_prior(self)

    def __repr__(self) -> str:
        what = f"mean={self.mean:.4g}, variance={self.variance:.4g}"
        if self.exact is not None:
            what = repr(self.exact)
        return f"Implied({what}, error={self.error:.1e})"


def _closed(exact: Gaussian | Laplace, x: Tensor) -> Tensor:
    """The log-density of one weight."""
    assert isinstance(exact.scale, float)
    assert isinstance(exact.mean, float)
    z = (x - exact.mean) / exact.scale
    if isinstance(exact, Laplace):
        return -z.abs() - math.log(2 * exact.scale)
    return -0.5 * z.square() - math.log(exact.scale) - 0.5 * math.log(2 * math.pi)
