"""Temperatures by name: the cold posterior, and the one that balances likelihood and prior of a wide network.

A number is η of L^{1/η}·p(w), which tempers the likelihood alone. The two meanings of the literature, and what sets η
by the size of the network:

| temperature | posterior |
| --- | --- |
| ``0.1`` | L^{10}·p(w) |
| ``Cold(0.1)`` | (L·p(w))^{10} |
| ``Cold()`` | (L·p(w))^{1/T}, T = examples/parameters, at most 1 |
| ``Balanced(0.1)`` | L^{1/η}·p(w), η = 0.1·examples/parameters |

An example that has several targets, such as a picture whose pixels are labelled, counts as so many.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, TypeAlias

from torch import nn

from bayesrule import modules, naming
from bayesrule.naming import Named, unknown
from bayesrule.priors import Prior

COUNTS = ("parameters", "neurons")


class Temperature(Named, ABC):
    """What `resolve` makes a number η of, once model and data are known.

    ``str(temperature)`` is how the command line spells it, and `choose` reads that.
    """

    tempers_prior: ClassVar[bool] = False
    """Whether the prior, too, counts to the power 1/η."""

    def tempered(self, prior: Prior, eta: float) -> Prior:
        """The prior as it counts at η, of one that is bound to a model."""
        return prior.tempered(eta) if self.tempers_prior and eta != 1 else prior

    @abstractmethod
    def resolve(self, model: nn.Module, examples: float) -> float:
        """η for a model and so many examples."""

    @abstractmethod
    def says(self, model: nn.Module, examples: float) -> str:
        """What it came to, in a sentence."""


Tempering: TypeAlias = float | str | Temperature
"""What `br.fit` takes: η, a name with its numbers such as ``"cold:0.5"``, or an object."""


@dataclass(frozen=True)
class Cold(Temperature):
    """The cold posterior (L·p(w))^{1/T}: likelihood and prior are both tempered (Wenzel et al. 2020).

    The mode stays where it is at any T; below 1 the posterior is narrower around it. The prior N(m, σ²) becomes
    N(m, T·σ²), and Laplace's of scale s one of scale T·s. ``T``: None is p/N for p examples and N trainable parameters,
    at most 1. It is the default of variational methods where the prior is left open, too: a mean-field q of a network
    with more weights than examples is so wide at T = 1 that its predictions are far less sure than they could be.

    >>> Cold(0.5).resolve(nn.Linear(2, 1), examples=100), str(Cold(0.5))
    (0.5, 'cold:0.5')
    >>> Cold().resolve(nn.Linear(99, 10), examples=100), Cold().resolve(nn.Linear(2, 1), examples=100)
    (0.1, 1.0)
    """

    name: ClassVar[str] = "cold"
    tempers_prior: ClassVar[bool] = True
    T: float | None = None

    def __post_init__(self) -> None:
        if self.T is not None:
            _check_positive("T", self.T)

    def __str__(self) -> str:
        return "cold" if self.T is None else f"cold:{self.T:g}"

    def resolve(self, model: nn.Module, examples: float) -> float:
        """T: the likelihood counts to the power 1/T."""
        return min(1.0, examples / parameters(model)) if self.T is None else self.T

    def says(self, model: nn.Module, examples: float) -> str:
        """Which powers."""
        T = self.resolve(model, examples)
        sizes = f", {examples:g} examples for {parameters(model)} parameters" if self.T is None else ""
        return f"cold posterior: likelihood and prior both to the power 1/T = {1 / T:.4g}{sizes}"


@dataclass(frozen=True)
class Balanced(Temperature):
    """η = τ·p/N for p examples and a network of size N, so that no width makes the divergence outweigh the likelihood.

    At η = 1 the divergence KL(q‖prior) of a mean-field q grows with the network and the likelihood does not, so that
    the best q of a very wide network is the prior, whatever the data say (Huix et al. 2022). ``tau``: τ, of order one;
    below it the data count more. ``count``: N is the number of trainable ``"parameters"``, or of the ``"neurons"`` of a
    network with one hidden layer.

    >>> network = nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 1))
    >>> Balanced(0.1).resolve(network, examples=1000)  # 0.1 · 1000 / 301
    0.332...
    >>> Balanced(0.1, count="neurons").resolve(network, examples=1000)
    2.0
    """

    name: ClassVar[str] = "balanced"
    tau: float = 1.0
    count: str = "parameters"

    def __post_init__(self) -> None:
        _check_positive("tau", self.tau)
        if self.count not in COUNTS:
            raise unknown("count", str(self.count), COUNTS)

    def __str__(self) -> str:
        return f"balanced:{self.tau:g}:{self.count}"

    def size(self, model: nn.Module) -> int:
        """N of a network."""
        if self.count == "neurons":
            return hidden_neurons(model)
        return parameters(model)

    def resolve(self, model: nn.Module, examples: float) -> float:
        """τ·p/N."""
        return self.tau * examples / self.size(model)

    def says(self, model: nn.Module, examples: float) -> str:
        """The numbers in it."""
        eta = self.resolve(model, examples)
        return f"η = τ·p/N = {self.tau:g}·{examples:g}/{self.size(model)} = {eta:.4g}, N the number of {self.count}"


AVAILABLE: dict[str, type[Temperature]] = {kind.name: kind for kind in (Cold, Balanced)}


def choose(given: Tempering) -> float | Temperature:
    """The temperature that was asked for: a positive number, an object, or a name with its numbers after colons.

    >>> choose("cold:0.5"), choose("balanced"), choose("balanced:0.1:neurons"), choose("0.2")
    (Cold(T=0.5), Balanced(tau=1.0, count='parameters'), Balanced(tau=0.1, count='neurons'), 0.2)
    """
    if isinstance(given, Temperature):
        return given
    if isinstance(given, str):
        return _read(given)
    if isinstance(given, bool) or not isinstance(given, Real):
        kinds = "a positive number, br.Cold(T) or br.Balanced(tau)"
        raise TypeError(f"temperature must be {kinds}, not {type(given).__name__}: {given!r}")
    _check_positive("temperature", given)
    return float(given)


def from_spec(spec: Any) -> float | Temperature:
    """Undo `naming.to_spec` of a number or an object."""
    if isinstance(spec, dict):
        return naming.from_spec("temperature", spec, AVAILABLE)
    return choose(spec)


def parameters(model: nn.Module) -> int:
    """How many numbers of a network are learnt."""
    return sum(w.numel() for w in modules.parameters(model).values())


def hidden_neurons(model: nn.Module) -> int:
    """How many neurons the one hidden layer of a network has, of which `torch.nn.Linear` makes all layers.

    >>> hidden_neurons(nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 1)))
    50
    """
    advice = 'take br.Balanced(..., count="parameters")'
    layers: list[nn.Linear] = []
    for layer in modules.owners(model).values():
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f'count="neurons" is for networks of torch.nn.Linear layers, and this one has a '
                f"{type(layer).__name__}: {advice}"
            )
        if layer not in layers:  # which it is if its weight came before its bias
            layers.append(layer)
    widths = []
    for index, layer in enumerate(layers):
        # Hidden is what another layer takes in. By widths alone, so that a linear path beside the network is none.
        if any(after.in_features == layer.out_features for after in layers[index + 1 :]):
            widths.append(layer.out_features)
    if not widths:
        raise ValueError(f'count="neurons" needs a hidden layer, and the network has none: {advice}')
    if len(widths) > 1:
        raise ValueError(f'count="neurons" is for one hidden layer, and the network has {widths} neurons: {advice}')
    return widths[0]


def _read(text: str) -> float | Temperature:
    name, *values = text.split(":")
    if name not in AVAILABLE:
        try:
            return choose(float(text))
        except ValueError as error:
            if "must be" in str(error):
                raise
            raise unknown("temperature", text, (*AVAILABLE, "a number")) from None
    if name == "cold" and len(values) <= 1:
        return Cold(*[_number(text, value) for value in values])
    if name == "balanced" and len(values) <= 2:
        fields: dict[str, Any] = {}
        if values:
            fields["tau"] = _number(text, values[0])
        if values[1:]:
            fields["count"] = values[1]
        return Balanced(**fields)
    raise ValueError(f"temperature must be a number, cold, cold:T, balanced:TAU or balanced:TAU:COUNT, not {text!r}")


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"temperature {text!r} must have a number after the colon, not {value!r}") from None


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, not {value}")
