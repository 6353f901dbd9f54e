"""A Gaussian over the parameters, seen through the network's tangent at its mean."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
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
        self, mean: Parameters, covariance: Structure, fixed: Parameters, context: Context, link: str = "sampling"
    ) -> None:
        super().__init__(mean, covariance, fixed, context)
        check_link(link, context.likelihood)
        self.link = link
        with torch.no_grad():
            for name, tensor in (dict(self.model.named_parameters()) | dict(self.model.named_buffers())).items():
                tensor.copy_((mean | fixed)[name])

    def moments(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """f_mean(x) [B, ...] and J Σ Jᵀ [B, K, K]; x is in the network's units."""
        return propagate(self.model, x, self.covariance, list(self.mean))

    def outputs(self, x: Inputs, samples: int, generator: torch.Generator) -> Tensor:
        """Draws of f, or the one output that the link makes of its moments."""
        if self._wide(x):
            return stack(self._tangents(samples, generator), x, samples)
        f, covariance = self.moments(x)
        if self.link == "probit" and isinstance(self.likelihood, Categorical):
            return probit_of_classes(f, covariance)[None]
        if self.link == "probit":
            return probit(f, covariance.diagonal(dim1=1, dim2=2).reshape(f.shape))[None]
        if self.link == "bridge":
            return bridge(f, covariance)[None]
        check_memory(samples, len(f), f)
        return draws(f, covariance, samples, generator)

    def prediction(self, x: Inputs, samples: int, generator: torch.Generator) -> Prediction:
        """Exact where noise is normal and the same everywhere."""
        if not isinstance(self.likelihood, likelihoods.Gaussian) or self._wide(x):
            return super().prediction(x, samples, generator)
        return predict_normal(self.likelihood, *self.moments(x), samples, generator)

    def _wide(self, x: Inputs) -> bool:
        with torch.no_grad():
            return modules.try_call(self.model, inputs.take(x, torch.arange(1)))[0].numel() > WIDE

    def _tangents(self, samples: int, generator: torch.Generator) -> Iterator[Callable[[Inputs], Tensor]]:
        """Networks f_mean(x) + J(x) δ with δ ~ N(0, Σ), by forward differentiation."""
        if self.link != "sampling":
            raise ValueError(f"link {self.link!r} is for up to {WIDE} outputs of an example: take 'sampling'")
        for _ in range(samples):
            yield self._tangent(modules.unflatten(self.covariance.sample(1, generator)[0], self.mean))

    def _tangent(self, direction: Parameters) -> Callable[[Inputs], Tensor]:
        def network(x: Inputs) -> Tensor:
            def at(mean: Parameters) -> Tensor:
                return modules.try_call(self.model, x, state=mean | self.fixed)

            with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():  # other attention has no forward derivative
                warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)  # by torch itself
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
        return cls(plain.mean, plain.covariance, plain.fixed, context, state["link"])


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
    check_memory(samples, len(f), f)
    if not isinstance(likelihood, likelihoods.Gaussian):
        return likelihood.predict(draws(f, covariance, samples, generator))
    known = likelihood.predict(f[None])
    deviations = covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    return Reals(known.means, known.stds, deviations.reshape(known.means.shape))


def draws(f: Tensor, covariance: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """``samples`` points [S, B, ...] of N(f, covariance) for every example, from the same noise for all of them.

    They come in pairs about f, so that their mean is f. With at least 2K of them their covariance is exact too.

    >>> points = draws(torch.zeros(1, 2), torch.eye(2)[None], 4, torch.Generator().manual_seed(0))
    >>> points[:, 0].T @ points[:, 0] / 4
    tensor([[1.0000, 0.0000],
            [0.0000, 1.0000]])
    """
    width = covariance.shape[-1]
    half = torch.randn(-(-samples // 2), width, generator=generator, dtype=torch.float64)
    if samples >= 2 * width:
        half = half @ torch.linalg.inv(torch.linalg.cholesky(half.T @ half / len(half))).T
    noise = torch.stack([half, -half], 1).flatten(0, 1)[:samples].to(f.dtype)
    return f + torch.einsum("bkl,sl->sbk", root(covariance).to(f.dtype), noise).reshape(samples, *f.shape)


def root(covariance: Tensor) -> Tensor:
    """L with L Lᵀ = covariance [B, K, K], up to a millionth of its mean diagonal."""
    wide = covariance.double()
    size = wide.diagonal(dim1=1, dim2=2).mean(1) + torch.finfo(torch.float32).tiny
    return torch.linalg.cholesky(wide + 1e-6 * size[:, None, None] * torch.eye(wide.shape[-1]).to(wide)).to(covariance)


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
    centre = torch.eye(count, dtype=torch.float64) - 1 / count
    m, s = f.double() @ centre, centre @ covariance.double() @ centre
    size = (m + (-m).logsumexp(1, keepdim=True) - 2 * math.log(count)).exp()
    variance = s.diagonal(dim1=1, dim2=2).clamp(min=1e-12)
    return ((1 - 2 / count + size) / variance).log().to(f.dtype)
