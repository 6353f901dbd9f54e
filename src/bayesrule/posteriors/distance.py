"""A posterior that knows less the further an input is from all examples it was trained on.

Far from the data a ReLU network is a linear function of its inputs: its outputs grow along every ray, so that it gets
surer, and all networks of most posteriors get surer together (Hein et al. 2019). What they leave out are functions that
agree at the data and nowhere else. `DistanceAware` adds one such function to each network of any posterior.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesrule import modules, tracing
from bayesrule.data import Inputs, as_data, inputs
from bayesrule.files import Tree
from bayesrule.likelihoods import Categorical
from bayesrule.posteriors.averages import predict_normal
from bayesrule.posteriors.base import KINDS, Context, Posterior
from bayesrule.posteriors.features import Features, nearest, standing
from bayesrule.posteriors.linearised import WIDE, Linearised
from bayesrule.posteriors.networks import Network, check_memory
from bayesrule.predictions import Prediction
from bayesrule.seeds import mixed

MOST = 2000
"""Training examples that are kept to measure distances from."""
NEIGHBOURS = 5
"""Of which the distance from the fifth nearest counts: one odd example makes no home."""
HOME = 0.99
"""The share of the training examples that are at home among the others."""


@dataclass(frozen=True, eq=False)
class Home:
    """Where the training examples are: features of some of them, and how far these are from each other.

    ::

        strangeness(x) = max(0, d(x) − edge)/width

    d(x) is the distance from the fifth nearest, ``edge`` the 99 % quantile of the examples' own distances from each
    other, ``width`` how far that is above their median: 0 at home, and growing with the distance elsewhere.
    """

    layer: str | None
    references: Tensor
    edge: float
    width: float

    def strangeness(self, features: Tensor) -> Tensor:
        """Of features [B, F], one number [B]."""
        apart = nearest(features.double(), self.references.double(), NEIGHBOURS)
        return (apart - self.edge).clamp(min=0) / self.width

    @classmethod
    def of(cls, features: Features, x: Inputs, seed: int = 0) -> Home:
        """Around the training inputs ``x``, in the network's units."""
        n = inputs.length(x)
        if n < 4 * NEIGHBOURS:
            raise ValueError(f"train must have at least {4 * NEIGHBOURS} examples to measure distances by, not {n}")
        some = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:MOST].sort().values
        references = features(inputs.take(x, some))
        apart = nearest(references.double(), references.double(), NEIGHBOURS, leave_out=True)
        edge, middle = float(apart.quantile(HOME)), float(apart.median())
        # Examples that are all alike have no width: what is beside them is far away, by the least that counts.
        width = max(edge - middle, 1e-3 * edge, torch.finfo(references.dtype).tiny)
        return cls(features.layer, references, edge, width)


class DistanceAware(Posterior):
    """f(x) + s·strangeness(x)·g, f a network of ``base`` and g ~ N(0, I) one number for each output and network.

    At home, where strangeness is 0, it predicts as the base does. Elsewhere networks disagree by more and more, in
    units of s, the deviation of the base's own outputs over the training examples: that outgrows their growth along a
    ray, and classes become equally probable. Distances are in the features of the last layer at the base's centre, or
    in the inputs where outputs are not those of one layer, as of `br.models.tabular`.

    >>> import bayesrule as br
    >>> x, y = br.data.moons(seed=0)
    >>> posterior = br.fit(br.models.mlp(2, 2, hidden=(16,)), (x, y), "map", epochs=20)
    >>> aware = DistanceAware.around(posterior, (x, y))
    >>> far = [[40.0, 40.0]]
    >>> float(posterior.predict(far).epistemic) < 0.01 < 0.3 < float(aware.predict(far).epistemic)
    True
    """

    kind: ClassVar[str] = "distance-aware"

    def __init__(self, base: Posterior, home: Home, scale: float, context: Context) -> None:
        super().__init__(context)
        self.base, self.home, self.scale = base, home, scale
        self._features = Features(modules.shell(self.model), standing(base), home.layer)

    @classmethod
    def around(cls, posterior: Posterior, train: Any, seed: int = 0) -> DistanceAware:
        """A posterior with the data it was fitted to, ``(X, y)`` in the user's units.

        At most 2000 examples, a random sample by the seed, are kept: their features, not the examples.
        """
        if isinstance(posterior, DistanceAware):
            posterior = posterior.base
        x = posterior.inputs(as_data(train).raw().x)
        home = Home.of(Features.of(posterior, x), x, seed)
        some = inputs.each(lambda t: t[:MOST], x)
        generator = torch.Generator(modules.device_of(posterior.model)).manual_seed(seed)
        with torch.no_grad():
            outputs = posterior.marginals(some, 8, generator).double()
        if outputs.ndim > 3:
            raise ValueError(f"distances are for one target of each example, but outputs are {list(outputs.shape[1:])}")
        if isinstance(posterior.likelihood, Categorical):  # what all logits share, nobody sees
            outputs = outputs - outputs.mean(2, keepdim=True)
        scale = float((outputs - outputs.mean((0, 1))).square().mean().sqrt())
        return cls(posterior, home, scale or 1.0, posterior.context)

    def strangeness(self, x: Any) -> Tensor:
        """How far inputs in the user's units are from home: 0 there, and growing."""
        return self.home.strangeness(self._features(self.inputs(x)))

    def _deviation(self, x: Inputs) -> Tensor:
        """Of what is added to the outputs of each example [B]."""
        return self.scale * self.home.strangeness(self._features(x))

    def networks(self, count: int, generator: torch.Generator) -> Iterator[Network]:
        """Each network of the base with as many functions as make up the count."""
        seed = generator.initial_seed()
        times, index = self._times(count), 0
        for network in self.base.networks(count, generator):
            for _ in range(times):
                index += 1
                yield _Added(network, self, mixed(seed, index))

    def count(self, samples: int) -> int:
        """About as many as are asked for, even where the base has one network."""
        return self.base.count(samples) * self._times(samples)

    def _times(self, samples: int) -> int:
        return max(1, samples // self.base.count(samples))

    def marginals(self, x: Inputs, samples: int, generator: torch.Generator) -> Tensor:
        """Those of the base, each several times, and what is added to them."""
        base = self.base.marginals(x, samples, generator)
        times = max(1, samples // len(base))
        check_memory(len(base) * times, inputs.length(x), base[0])
        outputs = base.repeat_interleave(times, 0)
        shape = (len(outputs), 1, *outputs.shape[2:])
        with tracing.outside():
            added = torch.randn(shape, generator=generator, dtype=outputs.dtype, device=outputs.device)
        return outputs + _spread(self._deviation(x), outputs[0]) * added

    def mixture(self, x: Inputs, samples: int, generator: torch.Generator) -> Prediction:
        """At home the base's own prediction; in closed form where the base has a normal law."""
        base = self.base.with_context(likelihood=self.likelihood)
        if isinstance(base, Linearised) and base.link == "sampling":
            return self._normal(base, x, samples, generator)
        return super().mixture(x, samples, generator)

    def _normal(self, base: Linearised, x: Inputs, samples: int, generator: torch.Generator) -> Prediction:
        """N(f, J Σ Jᵀ + s²·strangeness²·I)."""
        f, covariance = base.moments(x)
        if f[0].numel() > WIDE:
            return super().mixture(x, samples, generator)
        deviation = self._deviation(x).to(covariance)
        eye = torch.eye(covariance.shape[1], dtype=covariance.dtype, device=covariance.device)
        covariance = covariance + deviation.square()[:, None, None] * eye
        return predict_normal(self.likelihood, f, covariance, samples, generator)

    def verify(self) -> None:
        """A sound base, and a home of numbers."""
        self.base.verify()
        home = self.home
        if home.references.ndim != 2 or len(home.references) < NEIGHBOURS or not home.references.isfinite().all():
            raise ValueError(f"references must be finite features of at least {NEIGHBOURS} examples")
        for name, value in (("edge", home.edge), ("width", home.width), ("scale", self.scale)):
            if not math.isfinite(value) or value < 0 or (not value and name != "edge"):
                raise ValueError(f"{name} must be positive and finite, not {value}")
        if home.layer is not None:
            self.model.get_submodule(home.layer)

    def state(self) -> Tree:
        """The base, and what was measured of the training examples."""
        home = self.home
        return {
            "base": {"kind": self.base.kind, "state": self.base.state()},
            "layer": home.layer,
            "references": home.references,
            "edge": home.edge,
            "width": home.width,
            "scale": self.scale,
        }

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> DistanceAware:
        """From all of these."""
        base = KINDS[state["base"]["kind"]].from_state(state["base"]["state"], context)
        home = Home(state["layer"], state["references"], state["edge"], state["width"])
        return cls(base, home, state["scale"], context)


@dataclass(frozen=True, eq=False)
class _Added:
    """One network of the base and one function that is added to it."""

    network: Network
    posterior: DistanceAware
    seed: int

    def __call__(self, x: Inputs) -> Tensor:
        """f(x) + s·strangeness(x)·g."""
        outputs = self.network(x)
        generator = torch.Generator(outputs.device).manual_seed(self.seed)
        g = torch.randn(outputs.shape[1:], generator=generator, dtype=outputs.dtype, device=outputs.device)
        return outputs + _spread(self.posterior._deviation(x), outputs) * g


def _spread(deviation: Tensor, outputs: Tensor) -> Tensor:
    """A number for each example [B] in the shape of its outputs [B, ...]."""
    return deviation.to(outputs).reshape(-1, *[1] * (outputs.ndim - 1))
