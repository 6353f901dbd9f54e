"""A Gaussian over the parameters, seen through the network's tangent at its mean."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesrule import likelihoods, modules, tracing
from bayesrule.curvature import ONE_AT_A_TIME, propagate
from bayesrule.data import Inputs, inputs
from bayesrule.files import Tree
from bayesrule.likelihoods import Bernoulli, Categorical, Likelihood
from bayesrule.modules import Parameters
from bayesrule.naming import unknown
from bayesrule.posteriors.averages import predict_normal
from bayesrule.posteriors.base import Context
from bayesrule.posteriors.draws import Draws
from bayesrule.posteriors.gaussian import Gaussian
from bayesrule.posteriors.marginals import (
    bridge,
    centred,
    normal_draws,
    normals,
    positions,
    probit,
    probit_of_classes,
)
from bayesrule.posteriors.networks import Network, Runner, check_memory, ordinary, outside_inference_mode
from bayesrule.posteriors.repeatable import Repeatable
from bayesrule.predictions import Prediction
from bayesrule.priors import Structured
from bayesrule.structures import Structure

Link = Literal["sampling", "probit", "bridge"]
LINKS: tuple[str, ...] = get_args(Link)
BLOCK = 2**22
"""Numbers of covariances that are worked out at a time."""
WIDE = 64
"""Outputs of an example above which networks are drawn, rather than a covariance worked out for every example."""


class Linearised(Gaussian):
    """q(w) = N(w; mean, Σ) and f(x) = f_mean(x) + J(x)(w − mean): outputs are normal, N(f_mean(x), J Σ Jᵀ).

    The prediction for real targets with one noise level is exact. For all others ``link`` says how it is made:

    - ``"sampling"``: from the normal law of f itself: for classes by thousands of fixed points of each example's logits
      (`averages`), however few ``samples`` are asked for; for others by points whose first three moments are exact;
    - ``"probit"``: σ's mean under a normal distribution, for every pair of classes;
    - ``"bridge"``: the mean of the Dirichlet distribution that is nearest in the softmax basis (Hobbhahn 2022).

    The last two do not tell aleatoric from epistemic uncertainty. All of these are closed forms of one example's law,
    for up to `WIDE` outputs of an example; wider predictions, such as images of labels, are made from `networks`.
    """

    kind: ClassVar[str] = "linearised"

    def __init__(
        self,
        mean: Parameters,
        precision: Structure,
        fixed: Parameters,
        context: Context,
        link: str = "sampling",
        beside: Structured | None = None,
        spread: float = 1.0,
    ) -> None:
        super().__init__(mean, precision, fixed, context, beside, spread)
        check_link(link, context.likelihood)
        self.link = link
        self._noise = Repeatable()
        # Whether kernels must be switched, for all of the process, to run the module. It is known of torch's layers; of
        # attention that is called as a function it is found out by the first tangent.
        fused = nn.RNNBase | nn.MultiheadAttention
        self._switches = any(isinstance(layer, fused) for layer in self.model.modules())
        with torch.no_grad():
            own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
            for name, value in (mean | fixed).items():  # the tangent's point; what is frozen is there already
                own[name].copy_(value)

    @cached_property
    def _draws(self) -> Draws:
        return Draws(Runner(self.model, self._tangent), self.mean, self.precision.fill)

    def moments(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """f_mean(x) [B, ...] and J Σ Jᵀ [B, K, K]; x is in the network's units."""
        # Where kernels are switched, no thread may run under another's, or put back what another has switched.
        alone = ONE_AT_A_TIME if self._switches else nullcontext()
        with alone, outside_inference_mode(), self._noise.seeded(0):
            return propagate(self.model, ordinary(x), self.precision, list(self.mean))

    def networks(self, count: int, generator: torch.Generator) -> Iterator[Network]:
        """f_mean(x) + J(x) δ, one δ ~ N(0, Σ) for all x: a Jacobian-vector product, about three passes of the module.

        The link plays no part: it is a shortcut of predictions.
        """
        return super().networks(count, generator)

    def _tangent(self, module: nn.Module, direction: Parameters, x: Inputs) -> Tensor:
        with _one_at_a_time():
            if not self._switches:
                try:
                    return self._along(module, direction, x)
                except ValueError:  # of a kernel without a forward derivative, or of inputs that do not fit
                    pass
            with _plain_kernels():
                found = self._along(module, direction, x)
            self._switches = True
            return found

    def _along(self, module: nn.Module, direction: Parameters, x: Inputs) -> Tensor:
        """f_mean(x) + J(x) δ by the kernels that torch uses now."""

        def at(mean: Parameters) -> Tensor:
            return modules.try_call(module, x, mean | self.fixed)

        found: tuple[Tensor, Tensor] = jvp(at, (self.mean,), (direction,))  # type: ignore[assignment]
        return found[0] + found[1]

    def marginals(self, x: Inputs, samples: int, generator: torch.Generator) -> Tensor:
        """Points of every example's own normal law, or the one output that the link makes of it.

        Up to `WIDE` outputs an example; wider ones are those of `networks`.
        """
        first = self._first(x)
        if first.numel() > WIDE:
            if self.link != "sampling":
                raise ValueError(f"link {self.link!r} is for up to {WIDE} outputs of an example: take 'sampling'")
            return self.outputs(x, samples, generator)
        check_memory(samples, inputs.length(x), first)
        noise = normals(samples, first.numel(), generator)
        parts = []
        for f, covariance in self._in_blocks(x, first.numel()):
            parts.append(self._linked(f, covariance, noise))
        return torch.cat(parts, 1)

    def _in_blocks(self, x: Inputs, width: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Moments of a few examples at a time: a covariance takes width² numbers."""
        if tracing.active():
            yield self.moments(x)
            return
        for rows in torch.split(torch.arange(inputs.length(x)), max(1, BLOCK // width**2)):
            yield self.moments(inputs.take(x, rows))

    def _linked(self, f: Tensor, covariance: Tensor, noise: Tensor) -> Tensor:
        """Outputs [S, B, ...] as the link makes them."""
        classes = isinstance(self.likelihood, Categorical)
        if self.link == "sampling" and classes:
            # What all logits share, softmax does not see. Left in, it would take up points that are few.
            covariance = centred(f, covariance)
        if self.link == "sampling":
            return normal_draws(f, covariance, noise)
        if not classes:
            return probit(f, covariance.diagonal(dim1=1, dim2=2).reshape(f.shape))[None]
        link = probit_of_classes if self.link == "probit" else bridge
        return positions(link, f, covariance)[None]

    def mixture(self, x: Inputs, samples: int, generator: torch.Generator) -> Prediction:
        """In closed form where there is one, up to `WIDE` outputs an example; else from points or networks."""
        first = self._first(x)
        closed = isinstance(self.likelihood, likelihoods.Gaussian)
        closed |= self.link == "sampling" and isinstance(self.likelihood, Categorical | Bernoulli)
        if not closed or first.numel() > WIDE:
            return super().mixture(x, samples, generator)
        parts = []
        for f, covariance in self._in_blocks(x, first.numel()):
            parts.append(predict_normal(self.likelihood, f, covariance, samples, generator))
        return type(parts[0]).cat(parts)

    def _first(self, x: Inputs) -> Tensor:
        """The network's output for the first example, [1, ...]."""
        with torch.no_grad(), self._noise.seeded(0):
            return modules.try_call(self.model, inputs.take(x, torch.arange(1)))

    def state(self) -> Tree:
        """Those of the Gaussian, and the link."""
        return super().state() | {"link": self.link}

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Linearised:
        """From all of these."""
        plain = Gaussian.from_state(state, context)
        return cls(plain.mean, plain.precision, plain.fixed, context, state["link"], plain.beside, plain.spread)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Within this block no other thread takes a forward derivative: torch counts their levels for the process."""
    with ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(torch.jit.script|TF32)")  # of torch about itself
        yield


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Within this block torch uses kernels that have a forward derivative, in all threads.

    None of the fused ones has it: of attention, of transformer layers, of oneDNN's recurrences.
    """
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
