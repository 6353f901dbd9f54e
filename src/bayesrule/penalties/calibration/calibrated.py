"""How strong a penalty should be: the prior it stands for has the variance of an initialisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule.modules import Parameters, owners, parameters
from bayesrule.naming import unknown
from bayesrule.penalties.calibration.activations import Activation, neighbours
from bayesrule.penalties.calibration.mean_field import edge_of_chaos
from bayesrule.penalties.calibration.strengths import KINDS, Kind, Squares, kind_name
from bayesrule.priors import RULES, Prior, Product, centres, fans, group_laplace

EDGE = "edge-of-chaos"
REST = Squares()  # of biases, normalisation layers and embeddings


@dataclass(frozen=True, eq=False)
class Calibrated(Prior):
    """p(w) = Π_l exp(−λ_l r(w_l))/κ_l: a penalty with a factor for each layer, as a prior and as a penalty.

    kind: the penalty, by name. rule: where the variances are from.
    strengths: λ of each parameter; of those that sum over nothing, the λ of λ‖w − mean‖².
    means: where the penalty is least. shapes: of the parameters it was made for.
    layouts: of each weight under the penalty, where its groups are.
    """

    name: ClassVar[str] = "calibrated"
    kind: str
    rule: str
    strengths: Mapping[str, float]
    means: Mapping[str, float]
    shapes: Mapping[str, tuple[int, ...]]
    layouts: Mapping[str, group_laplace.Layout]

    @cached_property
    def prior(self) -> Prior:
        """The normalised density: a Gaussian for `l2`, else a product."""
        if isinstance(KINDS[self.kind], Squares):
            return REST.prior(self.strengths, self.means, self.layouts)
        parts = []
        for kind, own in ((KINDS[self.kind], True), (REST, False)):
            names = [name for name in self.strengths if (name in self.layouts) == own]
            strengths = {name: self.strengths[name] for name in names}
            means = {name: self.means[name] for name in names}
            parts.append((kind.prior(strengths, means, self.layouts), names))
        return Product.of(*parts)

    def resolve(self, module: nn.Module) -> Prior:
        """The density itself, once the module is seen to be the one that was calibrated."""
        self._check(parameters(module))
        return self.prior.resolve(module)

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Σ_l −λ_l r(w_l) − log κ_l."""
        return self.prior.log_prob(parameters)

    def divergence(self, mean: Tensor, std: Tensor, like: Mapping[str, Tensor]) -> Tensor | None:
        """KL(N(mean, std²)‖p), where it has a closed form."""
        return self.prior.divergence(mean, std, like)

    def penalty(self, model: nn.Module | Mapping[str, Tensor], n: int | None = None) -> Tensor:
        """Σ_l λ_l r(w_l), to be added to a loss that is a sum over all examples; of n examples, to their mean.

        ``model``: the module, or its parameters by name. ``n``: how many examples the training set has.

        >>> layer = nn.Linear(4, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = layer.weight.fill_(0.5)
        >>> calibrated = calibrate(layer, "l2")
        >>> calibrated.penalty(layer).item(), calibrated.penalty(layer, n=100).item()  # ½ fan-in ‖w‖²
        (2.0, 0.019999999552965164)
        """
        named = parameters(model) if isinstance(model, nn.Module) else dict(model)
        self._check(named, whole=False)
        total = torch.stack([self.strengths[name] * self._amount(name, w) for name, w in named.items()]).sum()
        if n is None:
            return total
        return total / examples(n)

    def sample(self, module: nn.Module, generator: torch.Generator | None = None) -> Parameters:
        """One draw of all the module's parameters from the prior."""
        named = parameters(module)
        self._check(named)
        found = {}
        for name, w in named.items():
            drawn = self._kind(name).draw(w, self._layout(name), self.strengths[name], generator)
            found[name] = drawn + self.means[name]
        return found

    def _amount(self, name: str, w: Tensor) -> Tensor:
        if self.means[name]:
            w = w - self.means[name]
        return self._kind(name).amount(w, self._layout(name))

    def _kind(self, name: str) -> Kind:
        return KINDS[self.kind] if name in self.layouts else REST

    def _layout(self, name: str) -> group_laplace.Layout:
        return self.layouts.get(name, (1, 1))

    def _check(self, named: Mapping[str, Tensor], whole: bool = True) -> None:
        """Refuse a module other than the calibrated one; with ``whole``, also a part of it."""
        names = [*named, *self.shapes] if whole else list(named)
        for name in names:
            want, have = self.shapes.get(name), None
            if name in named:
                have = tuple(named[name].shape)
            if want is None or have is None or tuple(want) != have:
                raise ValueError(
                    f"the penalty was calibrated for another model: parameter {name!r} is {_shape(want)} there and "
                    f"{_shape(have)} here; call br.penalties.calibrate on this model"
                )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


def calibrate(
    model: nn.Module,
    penalty: object = "l2",
    rule: str = "fan-in",
    *,
    activation: Activation | None = None,
    bias: float = 0.0,
) -> Calibrated:
    """λ for each layer, so that exp(−λ·penalty)/κ has the variance that a rule of initialisation gives a weight.

    With v the variance, 1/fan-in under the rule ``"fan-in"``: λ = 1/(2v) for ‖w‖², √(2/v) for ‖w‖₁, √((n + 1)/v) for
    Σ_g ‖w_g‖₂ over groups of n weights. Biases, normalisation layers and embeddings have ½‖w − mean‖², as in
    `br.priors.Gaussian`.

    Args:
        model: the module; of a convolution, fan-in is channels of its group times pixels of its kernel.
        penalty: ``"l2"``, ``"l1"``, ``"group"`` (what comes into a neuron or an output channel), ``"group-transposed"``
            (what leaves a neuron or an input channel); or L2, L1, GroupLasso of `br.penalties`, whose own factor
            does not count, with axis 0 for what comes in and 1 for what leaves.
        rule: ``"fan-in"``, ``"glorot"``, ``"kaiming"``, or ``"edge-of-chaos"``: σ_w²/fan-in with χ = 1.
        activation: for the edge of chaos, that of layers which are not in an `nn.Sequential` with one.
        bias: for the edge of chaos, σ_b; if it is above zero, biases have this scale.

    >>> model = nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> {name: round(s, 3) for name, s in calibrate(model, "l1").strengths.items()}  # √(2·8), ½, √(2·3), ½
    {'0.weight': 4.0, '0.bias': 0.5, '2.weight': 2.449, '2.bias': 0.5}
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    kind = kind_name(penalty)
    if rule not in (*RULES, EDGE):
        raise unknown("rule", rule, (*RULES, EDGE))
    if rule != EDGE and (activation is not None or bias != 0):
        raise ValueError(f"activation and bias belong to rule='{EDGE}', and the rule is {rule!r}: leave them out")
    variances = _critical(model, activation, bias) if rule == EDGE else _by_rule(model, rule)
    if not variances:
        raise ValueError(
            f"the model ({type(model).__name__}) has no trainable weights that sum over inputs, such as those of "
            "Linear or Conv: there is nothing to calibrate"
        )
    return _calibrated(model, kind, rule, variances)


def _calibrated(model: nn.Module, kind: str, rule: str, variances: Mapping[str, float]) -> Calibrated:
    """λ of each parameter for its variance, which is one where none is given."""
    layers, named = owners(model), parameters(model)
    layouts = {name: KINDS[kind].layout(layers[name]) for name in group_laplace.summing(model)}
    strengths = {name: REST.strength(variances.get(name, 1.0), 1) for name in named}
    for name, where in layouts.items():
        strengths[name] = KINDS[kind].strength(variances[name], group_laplace.size(named[name], where))
    means = {name: float(mean) for name, mean in centres(model).items()}
    shapes = {name: tuple(w.shape) for name, w in named.items()}
    return Calibrated(kind, rule, strengths, means, shapes, layouts)


def _by_rule(model: nn.Module, rule: str) -> dict[str, float]:
    """The variance of each weight under a rule of fans."""
    layers, found = owners(model), {}
    for name, w in group_laplace.summing(model).items():
        pair = fans(layers[name], w)
        assert pair is not None
        found[name] = RULES[rule](*pair)
    return found


def _critical(model: nn.Module, activation: Activation | None, bias: float) -> dict[str, float]:
    """σ_w²/fan-in of each weight, and σ_b² of its bias, at the edge of chaos of the activation beside it."""
    layers, near = owners(model), neighbours(model)
    found = {}
    for name, variance in _by_rule(model, "fan-in").items():
        beside = near.get(layers[name], activation)
        if beside is None:
            layer = f"{name.rpartition('.')[0] or 'model'!r} ({type(layers[name]).__name__})"
            raise ValueError(
                f"rule='{EDGE}' needs the activation beside layer {layer}, and finds it only in an nn.Sequential: "
                "pass activation=, for example activation='relu'"
            )
        found[name] = edge_of_chaos(beside, bias).weight_variance * variance
    if bias > 0:
        summers = {layers[name] for name in found}
        for name, owner in layers.items():
            # "in", not "==": recurrent layers have bias_ih_l0 and the like
            if owner in summers and name not in found and "bias" in name.rpartition(".")[2]:
                found[name] = bias**2
    return found


def examples(n: int) -> int:
    """The number of training examples, checked."""
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(f"n must be a whole number of at least 1, not {n!r}: it is the number of training examples")
    return int(n)
