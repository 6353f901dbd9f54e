"""Ask for the next example: acquisitions, oracles, rounds."""

from bayesrule.active import encoders, gaussian, information, pools, questions, tables
from bayesrule.active.acquisition import (
    AVAILABLE,
    BALD,
    EPIG,
    Acquisition,
    BatchBALD,
    Entropy,
    ExpectedVariance,
    KCentre,
    Random,
    Relevance,
    Screened,
    VariationRatios,
    View,
)
from bayesrule.active.encoders import SimCLR
from bayesrule.active.pools import Pool
from bayesrule.active.results import Result
from bayesrule.active.running import Session, run
from bayesrule.active.settings import Settings

__all__ = [
    "AVAILABLE",
    "BALD",
    "EPIG",
    "Acquisition",
    "BatchBALD",
    "Entropy",
    "ExpectedVariance",
    "KCentre",
    "Pool",
    "Random",
    "Relevance",
    "Result",
    "Screened",
    "Session",
    "Settings",
    "SimCLR",
    "VariationRatios",
    "View",
    "encoders",
    "gaussian",
    "information",
    "pools",
    "questions",
    "run",
    "tables",
]
