"""A Gaussian over the parameters, seen through the network's tangent at its mean."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesrule import likelihoods, modules
from bayesrule.curvature import propagate
from bayesrule.data import Inputs, inputs
from bayesrule.files import Tree
from bayesrule.likelihoods import Bernoulli, Categorical, Likelihood
from bayesrule.modules import Parameters
from bayesrule.naming import unknown
from bayesrule.posteriors.base import Context, check_memory, stack
from bayesrule.posteriors.gaussian import Gaussian
from bayesrule.predictions import Prediction, Reals
from bayesrule.structures import Structure

Link = Literal["sampling", "probit", "bridge"]
LINKS: tuple[str, ...] = get_args(Link)
_ONE_AT_A_TIME = RLock()
BLOCK = 2**22
"""Numbers of covariances that are worked out at a time."""
WIDE = 64
"""Outputs of an example above which networks are drawn, rather than a covariance worked out for every example."""


class Linearised(Gaussian):
    """q(w) = N(w; mean, Σ) and f(x) = f_mean(x) + J(x)(w − mean): outputs are normal, N(f_mean(x), J Σ Jᵀ).

    The prediction for real targets with one noise level is exact. For all others ``link`` says how it is made:

    - ``"sampling"``: from draws of f, points whose first three moments are exact;
    - ``"probit"``: σ's mean under a normal distribution, for every pair of classes;
    - ``"bridge"``: the mean of the Dirichlet distribution that is nearest in the softmax basis (Hobbhahn 2022).

    The last two do not tell aleatoric from epistemic uncertainty. Draws are those of every example on its own; where
    an example has more than `WIDE` outputs, such as an image of labels, tangent networks are drawn for all examples.
    """

    kind: ClassVar[str] = "linearised"

    def __init__(
        self, mean: Parameters, precision: Structure, fixed: Parameters, context: Context, link: str = "sampling"
    ) -> None:
        super().__init__(mean, precision, fixed, context)
        check_link(link, context.likelihood)
        self.link = link
        with torch.no_grad():
            for name, tensor in (dict(self.model.named_parameters()) | dict(self.model.named_buffers())).items():
                tensor.copy_((mean | fixed)[name])

    def moments(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """f_mean(x) [B, ...] and J Σ Jᵀ [B, K, K]; x is in the network's units."""
        return propagate(self.model, x, self.precision, list(self.mean))

    def outputs(self, x: Inputs, samples: int, generator: torch.Generator) -> Tensor:
        """Draws of f, or the one output that the link makes of its moments."""
        first = self._first(x)
        if first.numel() > WIDE:
            return stack(self._tangents(samples, generator), x, samples)
        check_memory(samples, inputs.length(x), first)
        noise = normals(samples, first.numel(), generator)
        return torch.cat([self._linked(*moments, noise) for moments in self._in_blocks(x, first.numel())], 1)

    def _in_blocks(self, x: Inputs, width: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Moments of a few examples at a time: a covariance takes width² numbers."""
        rows = torch.arange(inputs.length(x))
        return (self.moments(inputs.take(x, part)) for part in torch.split(rows, max(1, BLOCK // width**2)))

    def _linked(self, f: Tensor, covariance: Tensor, noise: Tensor) -> Tensor:
        """Outputs [S, B, ...] as the link makes them."""
        classes = isinstance(self.likelihood, Categorical)
        if self.link == "sampling":
            return draws(f, centred(f, covariance) if classes else covariance, noise)
        if not classes:
            return probit(f, covariance.diagonal(dim1=1, dim2=2).reshape(f.shape))[None]
        link = probit_of_classes if self.link == "probit" else bridge
        return positions(link, f, covariance)[None]

    def prediction(self, x: Inputs, samples: int, generator: torch.Generator) -> Prediction:
        """Exact where noise is normal and the same everywhere."""
        first = self._first(x)
        if not isinstance(self.likelihood, likelihoods.Gaussian) or first.numel() > WIDE:
            return super().prediction(x, samples, generator)
        parts = [predict_reals(self.likelihood, *moments) for moments in self._in_blocks(x, first.numel())]
        return Reals.cat(parts)

    def _first(self, x: Inputs) -> Tensor:
        """The network's output for the first example, [1, ...]."""
        with torch.no_grad():
            return modules.try_call(self.model, inputs.take(x, torch.arange(1)))

    def _tangents(self, samples: int, generator: torch.Generator) -> Iterator[Callable[[Inputs], Tensor]]:
        """Networks f_mean(x) + J(x) δ with δ ~ N(0, Σ), by forward differentiation."""
        if self.link != "sampling":
            raise ValueError(f"link {self.link!r} is for up to {WIDE} outputs of an example: take 'sampling'")
        for _ in range(samples):
            direction = self.precision.sample(1, generator)[0].to(modules.flatten(self.mean).dtype)
            yield self._tangent(modules.unflatten(direction, self.mean))

    def _tangent(self, direction: Parameters) -> Callable[[Inputs], Tensor]:
        def network(x: Inputs) -> Tensor:
            def at(mean: Parameters) -> Tensor:
                return modules.call(self.model, x, state=mean | self.fixed)

            with _plain_kernels():
                found: tuple[Tensor, Tensor] = jvp(at, (self.mean,), (direction,))  # type: ignore[assignment]
            return found[0] + found[1]

        return network

    def state(self) -> Tree:
        """Those of the Gaussian, and the link."""
        return super().state() | {"link": self.link}

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Linearised:
        """From all of these."""
        plain = Gaussian.from_state(state, context)
        return cls(plain.mean, plain.precision, plain.fixed, context, state["link"])


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Within this block torch uses kernels that have a forward derivative; one thread at a time, since it is global."""
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(torch.jit.script|TF32)")  # of torch about itself
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def check_link(link: str, likelihood: Likelihood) -> None:
    """Refuse a link that is unknown, or not for a likelihood."""
    kinds = {"sampling": Likelihood, "probit": Categorical | Bernoulli, "bridge": Categorical}
    if link not in kinds:
        raise unknown("link", link, kinds)
    if not isinstance(likelihood, kinds[link]):
        raise ValueError(f"link {link!r} is not for the likelihood {likelihood.name!r}: take 'sampling'")


def predict_normal(
    likelihood: Likelihood, f: Tensor, covariance: Tensor, samples: int, generator: torch.Generator
) -> Prediction:
    """What is not known of y where outputs are normal, N(f, covariance): exact for normal noise, else from `draws`.

    >>> likelihood, spread = likelihoods.Gaussian(noise=0.6), torch.tensor([[[0.64]]])
    >>> predict_normal(likelihood, torch.zeros(1, 1), spread, 1, torch.Generator()).variance
    tensor([1.])
    """
    if isinstance(likelihood, likelihoods.Gaussian):
        return predict_reals(likelihood, f, covariance)
    check_memory(samples, len(f), f)
    return likelihood.predict(draws(f, covariance, normals(samples, f[0].numel(), generator)))


def predict_reals(likelihood: likelihoods.Gaussian, f: Tensor, covariance: Tensor) -> Reals:
    """N(f, diag(covariance) + noise²)."""
    known = likelihood.predict(f[None])
    deviations = covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    return Reals(known.means, known.stds, deviations.reshape(known.means.shape))


def normals(samples: int, width: int, generator: torch.Generator) -> Tensor:
    """Points [S, K] that stand for N(0, I): pairs about zero, and zero itself where S is odd.

    From 2K points on their covariance is I exactly. A single one is drawn.

    >>> points = normals(5, 2, torch.Generator().manual_seed(0))
    >>> (points.T @ points / 5).round(decimals=6).abs(), points.sum(0)
    (tensor([[1., 0.], [0., 1.]], dtype=torch.float64), tensor([0., 0.], dtype=torch.float64))
    """
    half = torch.randn(max(1, samples // 2), width, generator=generator, dtype=torch.float64, device=generator.device)
    if samples == 1:
        return half
    if len(half) >= width:
        half = half @ torch.linalg.inv(torch.linalg.cholesky(2 * half.T @ half / samples)).T
    return torch.cat([torch.stack([half, -half], 1).flatten(0, 1), half.new_zeros(samples % 2, width)])


def draws(f: Tensor, covariance: Tensor, noise: Tensor) -> Tensor:
    """Points [S, B, ...] of N(f, covariance) for every example, from the same `normals` [S, K] for all of them.

    >>> points = draws(torch.zeros(1, 2), torch.eye(2)[None], normals(4, 2, torch.Generator().manual_seed(0)))
    >>> points[:, 0].T @ points[:, 0] / 4
    tensor([[1.0000, 0.0000],
            [0.0000, 1.0000]])
    """
    return f + torch.einsum("bkl,sl->sbk", root(covariance), noise).reshape(len(noise), *f.shape).to(f.dtype)


def root(covariance: Tensor) -> Tensor:
    """L with L Lᵀ = covariance [B, K, K], in double precision; eigenvalues below zero count as zero."""
    values, vectors = torch.linalg.eigh(covariance.double())
    return vectors * values.clamp(min=0).sqrt()[:, None]


def centred(f: Tensor, covariance: Tensor) -> Tensor:
    """The covariance of logits [B, C, ...] less their mean over classes, which softmax does not see."""
    count, places = f.shape[1], f[0, 0].numel()
    matrix = (torch.eye(count, dtype=torch.float64, device=f.device) - 1 / count).contiguous()
    whole = torch.kron(matrix, torch.eye(places, dtype=torch.float64, device=f.device))
    return whole @ covariance.double() @ whole


def positions(link: Callable[[Tensor, Tensor], Tensor], f: Tensor, covariance: Tensor) -> Tensor:
    """A link of logits [B, C] and covariances [B, C, C], for every position of logits [B, C, ...]."""
    size, count, places = len(f), f.shape[1], f[0, 0].numel()
    own = covariance.reshape(size, count, places, count, places).diagonal(dim1=2, dim2=4).permute(0, 3, 1, 2)
    flat = f.reshape(size, count, places).transpose(1, 2)
    found = link(flat.reshape(-1, count), own.reshape(-1, count, count))
    return found.reshape(size, places, count).transpose(1, 2).reshape(f.shape)


def probit(f: Tensor, variance: Tensor) -> Tensor:
    """f/√(1 + π/8 variance): the mean of σ(f) for a normal f is about σ of it.

    >>> probit(torch.tensor([2.0]), torch.tensor([8 / math.pi * 3]))
    tensor([1.])
    """
    return f / (1 + math.pi / 8 * variance.clamp(min=0)).sqrt()


def probit_of_classes(f: Tensor, covariance: Tensor) -> Tensor:
    """Logits −log Σ_l exp(−d_kl), d_kl the `probit` of f_k − f_l (Lu 2020): what all logits share does not matter.

    >>> probit_of_classes(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2, 2)).softmax(1)[0, 0]  # σ(2)
    tensor(0.8808)
    """
    variance = covariance.diagonal(dim1=1, dim2=2)
    between = variance[:, :, None] + variance[:, None] - 2 * covariance
    return -(-probit(f[:, :, None] - f[:, None], between)).logsumexp(2)


def bridge(f: Tensor, covariance: Tensor) -> Tensor:
    """Logits log α of the Dirichlet distribution whose Laplace approximation in the softmax basis has these moments.

    α_k = (1 − 2/C + exp(m_k)/C² Σ_l exp(−m_l))/S_kk, with m and S those of f less its mean over classes.
    """
    count = f.shape[1]
    centre = torch.eye(count, dtype=torch.float64, device=f.device) - 1 / count
    m, s = f.double() @ centre, centre @ covariance.double() @ centre
    size = (m + (-m).logsumexp(1, keepdim=True) - 2 * math.log(count)).exp()
    variance = s.diagonal(dim1=1, dim2=2).clamp(min=1e-12)
    return ((1 - 2 / count + size) / variance).log().to(f.dtype)
