"""p(w): what is believed of the weights before the data."""

from __future__ import annotations

from numbers import Real

from bayesrule import naming, structures
from bayesrule.priors import group_laplace, scales
from bayesrule.priors.base import Prior
from bayesrule.priors.by_layer import ByLayer
from bayesrule.priors.flat import Flat
from bayesrule.priors.functional import Functional, means_at
from bayesrule.priors.gaussian import Gaussian
from bayesrule.priors.group_laplace import GroupLaplace
from bayesrule.priors.independent import centres
from bayesrule.priors.inducing import Inducing, kernel, with_one
from bayesrule.priors.laplace import Laplace
from bayesrule.priors.mixture import ScaleMixture
from bayesrule.priors.product import Product
from bayesrule.priors.scales import RULES, fans
from bayesrule.priors.structured import Structured

AVAILABLE: dict[str, type[Prior]] = {kind.name: kind for kind in (Gaussian, Laplace, GroupLaplace, ScaleMixture, Flat)}
BOUND: dict[str, type[Prior]] = {
    kind.name: kind for kind in (Structured, Product, Functional, Inducing)
}  # made for one model
OPEN: dict[str, type[Prior]] = {ByLayer.name: ByLayer}  # for a fit to settle
# Made from a penalty. A file can hold them, and they are loaded when one does: no fit needs that room.
LATE = {
    "calibrated": "bayesrule.penalties:Calibrated",
    "implied": "bayesrule.penalties:Implied",
    "radial": "bayesrule.penalties:Radial",
    "table": "bayesrule.penalties:Table",
}


def choose(given: str | float | Prior) -> Prior:
    """The prior that was asked for: an object, a name, the name of a scale rule, or one scale for all weights.

    >>> choose("kaiming"), choose(0.5)
    (Gaussian(scale='kaiming', mean=None), Gaussian(scale=0.5, mean=None))
    """
    if isinstance(given, Real) and not isinstance(given, bool):
        return Gaussian(scale=float(given))
    if isinstance(given, str) and given in RULES:
        return Gaussian(scale=given)
    return naming.choose("prior", given, AVAILABLE | OPEN, Prior)


def from_spec(spec: dict[str, object]) -> Prior:
    """A prior from its plain data."""
    options: dict[str, type[naming.Named] | str] = {**structures.AVAILABLE, **AVAILABLE, **OPEN, **BOUND, **LATE}
    prior = naming.from_spec("prior", spec, options)
    assert isinstance(prior, Prior)
    return prior


__all__ = [
    "AVAILABLE",
    "OPEN",
    "RULES",
    "ByLayer",
    "Flat",
    "Functional",
    "Gaussian",
    "GroupLaplace",
    "Inducing",
    "Laplace",
    "Prior",
    "Product",
    "ScaleMixture",
    "Structured",
    "centres",
    "choose",
    "fans",
    "from_spec",
    "group_laplace",
    "kernel",
    "means_at",
    "scales",
    "with_one",
]
