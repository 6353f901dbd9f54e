"""Ways to a posterior, one file each."""

from __future__ import annotations

from bayesrule import naming
from bayesrule.methods.base import Learner, Method, Plan
from bayesrule.methods.dropout import MCDropout
from bayesrule.methods.ensemble import DropoutEnsemble, Ensemble
from bayesrule.methods.point import MAP, MLE
from bayesrule.methods.swag import SWAG

AVAILABLE: dict[str, type[Method]] = {
    method.name: method for method in (MLE, MAP, MCDropout, Ensemble, DropoutEnsemble, SWAG)
}


def available() -> set[str]:
    """The names that ``br.fit(method=...)`` takes.

    >>> sorted(available())
    ['dropout-ensemble', 'ensemble', 'map', 'mc-dropout', 'mle', 'swag']
    """
    return set(AVAILABLE)


def choose(given: str | Method) -> Method:
    """A method by name or as an object."""
    return naming.choose("method", given, AVAILABLE, Method)


def from_spec(spec: dict[str, object]) -> Method:
    """A method from its plain data."""
    return naming.from_spec("method", spec, AVAILABLE)


__all__ = [
    "AVAILABLE",
    "MAP",
    "MLE",
    "SWAG",
    "DropoutEnsemble",
    "Ensemble",
    "Learner",
    "MCDropout",
    "Method",
    "Plan",
    "available",
    "choose",
    "from_spec",
]
