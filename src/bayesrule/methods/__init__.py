"""Ways to a posterior, one file each."""

from __future__ import annotations

from bayesrule import naming, optim
from bayesrule.methods.auto import Auto
from bayesrule.methods.base import (
    Learner,
    Logs,
    Method,
    Needs,
    Plan,
    check_stoppable,
    check_weighted,
    default_epochs,
    with_inner,
)
from bayesrule.methods.bbb import BBB
from bayesrule.methods.dropout import MCDropout
from bayesrule.methods.ensemble import DropoutEnsemble, Ensemble
from bayesrule.methods.fields import assign, type_of
from bayesrule.methods.gradient import GradientLearner, Trained
from bayesrule.methods.hmc import HMC
from bayesrule.methods.laplace import Laplace
from bayesrule.methods.lmc import LMC
from bayesrule.methods.mala import MALA
from bayesrule.methods.mclmc import MCLMC
from bayesrule.methods.natural import IVON, OGN, VOGN, VON, Vadam
from bayesrule.methods.point import MAP, MLE
from bayesrule.methods.sampling import Sampler
from bayesrule.methods.sghmc import SGHMC
from bayesrule.methods.sgld import SGLD
from bayesrule.methods.swag import SWAG
from bayesrule.seeds import Noise

AVAILABLE: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Auto,
        MLE,
        MAP,
        MCDropout,
        Ensemble,
        DropoutEnsemble,
        SWAG,
        Laplace,
        BBB,
        IVON,
        VOGN,
        OGN,
        VON,
        Vadam,
        HMC,
        MALA,
        LMC,
        MCLMC,
        SGLD,
        SGHMC,
    )
}
# Made for one task after another: `br.fit` takes it as an object, and it is loaded when a file names it.
LATE = {"si": "bayesrule.lifelong.synaptic:SynapticIntelligence"}


def available() -> set[str]:
    """The names that ``br.fit(method=...)`` takes.

    >>> sorted(available())
    ['auto', 'bbb', 'dropout-ensemble', 'ensemble', 'hmc', 'ivon', 'laplace', 'lmc', 'mala', 'map', 'mc-dropout', ...]
    """
    return set(AVAILABLE)


def choose(given: str | Method) -> Method:
    """A method by name or as an object."""
    return naming.choose("method", given, AVAILABLE, Method)


def from_spec(spec: dict[str, object]) -> Method:
    """A method from its plain data."""
    parts: dict[str, type[naming.Named] | str] = {kind.name: kind for kind in (optim.Group, optim.Recipe)}
    method = naming.from_spec("method", spec, {**AVAILABLE, **parts, **optim.SCHEDULES, **LATE})
    assert isinstance(method, Method)
    return method


__all__ = [
    "AVAILABLE",
    "BBB",
    "HMC",
    "IVON",
    "LMC",
    "MALA",
    "MAP",
    "MCLMC",
    "MLE",
    "OGN",
    "SGHMC",
    "SGLD",
    "SWAG",
    "VOGN",
    "VON",
    "Auto",
    "DropoutEnsemble",
    "Ensemble",
    "GradientLearner",
    "Laplace",
    "Learner",
    "Logs",
    "MCDropout",
    "Method",
    "Needs",
    "Noise",
    "Plan",
    "Sampler",
    "Trained",
    "Vadam",
    "assign",
    "available",
    "check_stoppable",
    "check_weighted",
    "choose",
    "default_epochs",
    "from_spec",
    "type_of",
    "with_inner",
]
