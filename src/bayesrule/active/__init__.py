"""Ask for the next example: acquisitions, oracles, rounds."""

from bayesrule.active import gaussian, information
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
    VariationRatios,
    View,
)

__all__ = [
    "AVAILABLE",
    "BALD",
    "EPIG",
    "Acquisition",
    "BatchBALD",
    "Entropy",
    "ExpectedVariance",
    "KCentre",
    "Random",
    "Relevance",
    "VariationRatios",
    "View",
    "gaussian",
    "information",
]
