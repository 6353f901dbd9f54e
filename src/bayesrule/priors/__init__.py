"""p(w): what is believed of the weights before the data."""

from __future__ import annotations

from bayesrule import naming, structures
from bayesrule.priors import penalties, translations
from bayesrule.priors.base import Prior
from bayesrule.priors.calibration.calibrated import Calibrated, calibrate
from bayesrule.priors.calibration.explanation import Explanation, explain
from bayesrule.priors.calibration.mean_field import MeanField, edge_of_chaos, mean_field
from bayesrule.priors.equivalence.beliefs import prior_of
from bayesrule.priors.equivalence.divergences import penalty_of
from bayesrule.priors.equivalence.implied import Implied
from bayesrule.priors.equivalence.lines import Table
from bayesrule.priors.equivalence.radial import Radial
from bayesrule.priors.equivalence.verdicts import Verdict
from bayesrule.priors.flat import Flat
from bayesrule.priors.gaussian import Gaussian
from bayesrule.priors.group_laplace import GroupLaplace
from bayesrule.priors.laplace import Laplace
from bayesrule.priors.mixture import ScaleMixture
from bayesrule.priors.product import Product
from bayesrule.priors.scales import RULES
from bayesrule.priors.structured import Structured

AVAILABLE: dict[str, type[Prior]] = {kind.name: kind for kind in (Gaussian, Laplace, GroupLaplace, ScaleMixture, Flat)}
BOUND: dict[str, type[Prior]] = {kind.name: kind for kind in (Structured, Product, Calibrated)}  # made for one model
IMPLIED: dict[str, type[naming.Named]] = {kind.name: kind for kind in (Implied, Radial, Table)}  # made from a penalty


def choose(given: str | Prior) -> Prior:
    """The prior that was asked for: an object, a name, or the name of a scale rule.

    >>> choose("kaiming")
    Gaussian(scale='kaiming', mean=None)
    """
    if isinstance(given, str) and given in RULES:
        return Gaussian(scale=given)
    return naming.choose("prior", given, AVAILABLE, Prior)


def from_spec(spec: dict[str, object]) -> Prior:
    """A prior from its plain data."""
    options: dict[str, type[naming.Named]] = {**structures.AVAILABLE, **AVAILABLE, **BOUND, **IMPLIED}
    prior = naming.from_spec("prior", spec, options)
    assert isinstance(prior, Prior)
    return prior


__all__ = [
    "AVAILABLE",
    "RULES",
    "Calibrated",
    "Explanation",
    "Flat",
    "Gaussian",
    "GroupLaplace",
    "Implied",
    "Laplace",
    "MeanField",
    "Prior",
    "Product",
    "Radial",
    "ScaleMixture",
    "Structured",
    "Verdict",
    "calibrate",
    "choose",
    "edge_of_chaos",
    "explain",
    "from_spec",
    "mean_field",
    "penalties",
    "penalty_of",
    "prior_of",
    "translations",
]
