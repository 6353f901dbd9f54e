"""What a fit was asked to do, as objects and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

from bayesrule import likelihoods, methods, priors, temperatures
from bayesrule.data import Scaling, augmentations
from bayesrule.data.augmentations import Augmentation
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Method, with_inner
from bayesrule.naming import from_spec, to_spec
from bayesrule.posteriors import Posterior
from bayesrule.priors import ByLayer, Prior
from bayesrule.temperatures import Cold, Temperature

DATA = "data"  # stands for held-out data that the user gave, which a file does not keep


@dataclass(frozen=True, eq=False)
class FitSettings:
    """The arguments of a fit, but for model, data and callbacks.

    ``val`` is a share of the data, None, or `DATA`. ``scaling`` is that of a posterior which is the prior.
    ``output``: the part of what the model returns that is meant. ``augment``: what is done to pictures, one after the
    other.
    ``to_convergence``: whether ``epochs`` are the default, and not what the user asked for.
    """

    method: Method
    likelihood: Likelihood | None
    prior: Prior | None
    temperature: float | Temperature
    epochs: int
    batch_size: int
    seed: int
    val: float | str | None
    autocast: str | None = None
    scaling: Scaling | None = None
    to_convergence: bool = False
    output: str | int | None = None
    augment: tuple[Augmentation, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
            object.__setattr__(self, name, int(value))
        if not self.epochs and not self.method.post_hoc:
            able = ", ".join(sorted(name for name, kind in methods.AVAILABLE.items() if kind.post_hoc))
            raise ValueError(f"epochs must be at least 1 for {self.method.name}: 0 is for {able} on a trained module")

    def state(self) -> dict[str, Tree]:
        """Plain data, for a file."""
        plain = {f.name: to_spec(getattr(self, f.name)) for f in fields(self)}
        return plain | {"scaling": None if self.scaling is None else self.scaling.state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FitSettings:
        """Undo `state`; a method of the user's own must be in ``br.methods.AVAILABLE``."""
        likelihood, prior = state["likelihood"], state["prior"]
        objects = {
            "method": methods.from_spec(state["method"]),
            "likelihood": likelihood and from_spec("likelihood", likelihood, likelihoods.AVAILABLE),
            "prior": prior and priors.from_spec(prior),
            "temperature": temperatures.from_spec(state["temperature"]),
            "scaling": None if state["scaling"] is None else Scaling.from_state(state["scaling"]),
        }
        specs = state.get("augment", ())  # a checkpoint of an earlier version has none
        chain = tuple(_augmentation(spec) for spec in specs)
        return cls(**{**state, **objects, "augment": chain})


def _augmentation(spec: Mapping[str, Any]) -> Augmentation:
    """From plain data, in which a file has lists for tuples."""
    shape = spec["fields"]["shape"]
    plain = {**spec["fields"], "shape": None if shape is None else tuple(shape)}
    return from_spec("augmentation", {"name": spec["name"], "fields": plain}, augmentations.AVAILABLE)


def default_batch_size(n: int) -> int:
    """A tenth of the data, from 8 to 32; 128 where there are 10 000 examples or more, and 512 from 100 000 on.

    >>> [default_batch_size(n) for n in (20, 200, 2000, 60_000, 200_000)]
    [8, 20, 32, 128, 512]
    """
    if n >= 100_000:  # ten epochs are 2000 steps and more still, and a step of few examples leaves the machine idle
        return 512
    if n >= 10_000:
        return 128
    return min(max(n // 10, 8), 32)


def is_open(prior: object) -> bool:
    """Whether the fit is to settle how wide the prior is."""
    return prior is None or prior == ByLayer.name or isinstance(prior, ByLayer)


def default_temperature(method: Method, prior: object) -> float | Temperature:
    """Where nobody says: what an example counted in a posterior that is the prior, it counts now; a cold posterior for
    variational methods that also settle their prior; one otherwise."""
    if isinstance(prior, Posterior):
        return float(prior.info.get("temperature", 1.0))
    if is_open(prior) and any(part.variational for part in with_inner(method)):
        return Cold()
    return 1.0
