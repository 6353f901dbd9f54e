"""Weights that come and go by neuron: the prior of the group lasso."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from bayesrule.modules import Parameters, owners, parameters
from bayesrule.naming import unknown
from bayesrule.priors.base import Prior
from bayesrule.priors.gaussian import Gaussian
from bayesrule.priors.independent import centres, check_scale
from bayesrule.priors.product import Product
from bayesrule.priors.scales import RULES, fans

Layout = tuple[int, int]
"""The layer's own groups, and the axis (1 or 2) of the view of `norms` whose entries are the neurons."""


@dataclass(frozen=True, eq=False)
class GroupLaplace(Prior):
    """p(w) = Π_g exp(−‖w_g‖₂/s)/κ with κ = 2 π^{n/2} Γ(n) sⁿ/Γ(n/2), over groups w_g of n weights each.

    A group is all weights that come into a neuron, or into an output channel of a convolution; with ``outgoing`` all
    that leave a neuron or an input channel. MAP under it is the group lasso λ‖w‖₂,₁ with λ = 1/s: whole neurons go to
    zero. The radius ‖w_g‖ is Gamma(n, rate 1/s), so the variance of a weight is (n + 1)s². At n = 1 this is Laplace's.

    ``scale``: s as one number; a rule for the standard deviation of a weight; or a mapping from the name of each
    weight. Biases, normalisation layers and embeddings sum over nothing: they are normal with scale 1.

    >>> layer = nn.Linear(3, 5, bias=False)
    >>> prior = GroupLaplace("fan-in").resolve(layer)
    >>> round(1 / prior.scale["weight"] ** 2, 12)  # λ² = P(P + 1)
    12.0
    """

    name: ClassVar[str] = "group-laplace"
    scale: float | str | Mapping[str, float] = "fan-in"
    outgoing: bool = False
    layouts: Mapping[str, Layout] | None = None

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def resolve(self, module: nn.Module) -> Prior:
        """One scale for each weight that sums over inputs, and a normal for the rest."""
        layers, weights = owners(module), summing(module)
        if not weights:
            raise ValueError(
                f"the model ({type(module).__name__}) has no weights that sum over inputs, such as those of Linear or "
                "Conv: there are no groups; take br.priors.Gaussian"
            )
        found = {name: layout(layers[name], self.outgoing) for name in weights}
        bound = GroupLaplace(self._scales(weights, layers, found), self.outgoing, found)
        rest = [name for name in parameters(module) if name not in weights]
        if not rest:
            return bound
        means = centres(module)
        normal = Gaussian(dict.fromkeys(rest, 1.0), {name: means[name] for name in rest})
        return Product.of((bound, list(weights)), (normal, rest))

    def _scales(
        self, weights: Mapping[str, Tensor], layers: Mapping[str, nn.Module], layouts: Mapping[str, Layout]
    ) -> dict[str, float]:
        if isinstance(self.scale, Mapping):
            for name in self.scale:
                if name not in weights:
                    raise unknown("name in the prior's scale", name, weights)
        found = {}
        for name, w in weights.items():
            if isinstance(self.scale, str):
                pair = fans(layers[name], w)
                assert pair is not None
                found[name] = math.sqrt(RULES[self.scale](*pair) / (size(w, layouts[name]) + 1))
            elif isinstance(self.scale, Mapping):
                if name not in self.scale:
                    raise ValueError(f"the prior has no scale for parameter {name!r}: add it")
                found[name] = float(self.scale[name])
            else:
                found[name] = float(self.scale)
        return found

    def tempered(self, temperature: float) -> GroupLaplace:
        """exp(−‖w_g‖/s)^{1/T} has the scale T·s."""
        scales, layouts = self._bound()
        return GroupLaplace({name: s * temperature for name, s in scales.items()}, self.outgoing, layouts)

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Σ_g −‖w_g‖/s − log κ."""
        scales, layouts = self._bound()
        terms = []
        for name, w in parameters.items():
            radii = norms(w, layouts[name])
            constant = radii.numel() * log_normaliser(size(w, layouts[name]), scales[name])
            terms.append(-radii.sum() / scales[name] - constant)
        return torch.stack(terms).sum()

    def sample(self, module: nn.Module, generator: torch.Generator | None = None) -> Parameters:
        """One draw of the module's weights that are in groups."""
        bound = self._alone(module) if self.layouts is None else self
        scales, layouts = bound._bound()
        named, drawn = parameters(module), {}
        for name, scale in scales.items():
            drawn[name] = draw(named[name], layouts[name], generator) * scale
        return drawn

    def _alone(self, module: nn.Module) -> GroupLaplace:
        prior = self.resolve(module)
        part = prior.parts[0] if isinstance(prior, Product) else prior
        assert isinstance(part, GroupLaplace)
        return part

    def _bound(self) -> tuple[Mapping[str, float], Mapping[str, Layout]]:
        if not isinstance(self.scale, Mapping) or self.layouts is None:
            raise ValueError("this prior is not bound to a module yet: call prior.resolve(module) first")
        return self.scale, self.layouts


def summing(module: nn.Module) -> Parameters:
    """The trainable weights whose outputs are sums over inputs: those that have a fan."""
    layers = owners(module)
    return {name: w for name, w in parameters(module).items() if fans(layers[name], w)}


def layout(layer: nn.Module, outgoing: bool) -> Layout:
    """Where the neurons of a layer's weight are: its own groups, and the axis of the view of `norms`."""
    backward = isinstance(layer, _ConvTransposeNd)  # weight[in, out / groups, ...] instead of weight[out, in / groups]
    axis = 2 if outgoing != backward else 1
    return int(getattr(layer, "groups", 1)), axis


def _view(w: Tensor, blocks: int) -> Tensor:
    """The weight as [groups, first / groups, second, pixels of the kernel]."""
    return w.reshape(blocks, w.shape[0] // blocks, w.shape[1], -1)


def norms(w: Tensor, layout: Layout) -> Tensor:
    """‖w_g‖₂ of each group; its gradient at zero is zero.

    >>> norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), (1, 1))
    tensor([[5., 0.]])
    """
    blocks, axis = layout
    return torch.linalg.vector_norm(_view(w, blocks), dim=(3 - axis, 3))


def size(w: Tensor, layout: Layout) -> int:
    """n: how many weights a group has."""
    blocks, axis = layout
    return w.numel() // (_view(w, blocks).shape[axis] * blocks)


def log_normaliser(n: int, scale: float) -> float:
    """log κ = log 2 + n/2 log π + log Γ(n) − log Γ(n/2) + n log s.

    >>> math.isclose(log_normaliser(1, 0.3), math.log(2 * 0.3))  # Laplace's
    True
    """
    gammas = math.lgamma(n) - math.lgamma(n / 2)
    return math.log(2) + 0.5 * n * math.log(math.pi) + gammas + n * math.log(scale)


def draw(like: Tensor, layout: Layout, generator: torch.Generator | None = None) -> Tensor:
    """One weight at s = 1: a radius from Gamma(n, 1), which is a sum of n exponentials, and a direction at random."""
    blocks, axis = layout
    # torch.distributions.Gamma takes no generator; exponential numbers can be drawn from one
    view = _view(torch.empty_like(like, memory_format=torch.contiguous_format), blocks)
    across = (3 - axis, 3)
    normal = torch.randn(view.shape, generator=generator, dtype=like.dtype, device=like.device)
    radius = torch.empty_like(view).exponential_(generator=generator).sum(across, keepdim=True)
    return (normal * (radius / torch.linalg.vector_norm(normal, dim=across, keepdim=True))).reshape(like.shape)
