"""Figures of the literature on the same data, to stand beside measured ones."""

from __future__ import annotations

from typing import NamedTuple

PUBLISHED = "published"
MEASURED = "measured elsewhere"  # by someone else's code, and in no paper
UNCHECKED = "published, not checked against the paper"
AIM = "aim"  # the best that is known of any method, which need not be the same on two boards


class Published(NamedTuple):
    """A figure with its standard error, if one was printed, where it is from, and how that is known."""

    source: str
    score: str
    value: float
    error: float | None = None
    how: str = PUBLISHED


SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
UCI: dict[str, str] = {
    "PBP (Hernández-Lobato and Adams 2015)": (
        "-2.574 .089, -3.161 .019, -2.042 .019, .896 .006, 3.731 .006, -2.837 .009, -2.973 .003, -.968 .014, "
        "-1.634 .016"
    ),
    "dropout, 4000 epochs, searched (DropoutUncertaintyExps)": (
        "-2.402 .042, -2.937 .025, -1.212 .005, 1.136 .007, 4.450 .002, -2.808 .009, -2.871 .001, -.928 .013, "
        "-1.250 .015"
    ),
    "deep ensembles (Lakshminarayanan et al. 2017)": "-2.41, -3.06, -1.38, 1.20, 5.63, -2.79, -2.83, -.94, -1.18",
    "noisy K-FAC (Zhang et al. 2018)": (
        "-2.446 .029, -3.039 .025, -1.421 .005, 1.148 .007, 7.079 .034, -2.776 .011, -2.836 .002, -.969 .014, "
        "-2.316 .006"
    ),
    "HMC (Bui et al. 2016)": "-2.27 .03, -2.72 .02, -.93 .01, 1.35, 7.31, -2.70, -2.77, -.91 .02, -1.62 .01",
    "NGBoost, 20 random splits (Duan et al. 2020)": "-2.43, -3.04, -.60, .49, 5.34, -2.79, -2.81, -.91, -.20",
    "Gaussian process, 20 random splits (the same)": "-2.37, -3.03, -.66, 1.11, 4.98, -2.81, -2.89, -.95, -.10",
    "deep ensembles, tuned (DUN)": "-2.45, -2.89, -1.30, .81, 5.08, -2.66, -2.56, -1.12, -2.44",
    "dropout, tuned (DUN)": "-2.88, -3.05, -.98, 1.23, 5.43, -2.79, -2.62, -1.00, -1.33",
    "CatBoost, RMSEWithUncertainty, splits 0 to 4": "-2.40, -3.21, -1.87, –, –, –, –, -.97, -.80",
    "the best of all": "-2.13, -2.50, -.31, 1.36, 7.3, -2.65, -2.55, -.91, 1.2",
}
"""Test log-likelihood and standard error on the standard splits: one hidden layer of 50 units, of 100 for protein, down
to HMC; what comes after it is for other splits or networks, as its name says.

What is printed for deep ensembles beside the means has the size of standard deviations, and is left out; zeros, too.
"""
HOW = {"CatBoost, RMSEWithUncertainty, splits 0 to 4": MEASURED, "the best of all": AIM}


def _scores(
    source: str, accuracy: float, nll: float | None = None, ece: float | None = None, how: str = PUBLISHED
) -> list[Published]:
    found = {"accuracy": accuracy, "nll": nll, "ece": ece}
    return [Published(source, name, value, how=how) for name, value in found.items() if value is not None]


PICTURES: dict[str, list[Published]] = {
    "mnist": [
        *_scores("Bayes by Backprop, MLP 1200-1200 (Blundell et al. 2015)", 0.9868),
        *_scores("dropout, MLP 800-800 (the same)", 0.9867),
        *_scores("LeNet-5 (Book 2020)", 0.9905),
        *_scores("Bayesian LeNet-5 (Book 2020)", 0.9774),
    ],
    "cifar10/lenet-5": [
        *_scores("LeNet-5 with augmentation and weight decay (Book 2020)", 0.7623),
        *_scores("Bayesian LeNet-5 without augmentation (Book 2020)", 0.5938),
        *_scores("Adam, LeNet-5, 210 epochs (Osawa et al. 2019)", 0.6767, 0.937, 0.021, UNCHECKED),
        *_scores("Bayes by Backprop, LeNet-5 (Osawa et al. 2019)", 0.6461, 1.018, 0.045, UNCHECKED),
        *_scores("dropout, LeNet-5 (Osawa et al. 2019)", 0.6765, 0.99, 0.087, UNCHECKED),
        *_scores("VOGN, LeNet-5 (Osawa et al. 2019)", 0.6732, 0.938, 0.046, UNCHECKED),
    ],
    "cifar10/resnet-20": [
        *_scores("SGD, ResNet-20-FRN-Swish, flips and crops (bdlx)", 0.904, 0.414),
        *_scores("AdamW, ResNet-20-FRN-Swish, flips and crops (bdlx)", 0.911, 0.374),
        *_scores("IVON's mean, ResNet-20-FRN-Swish, flips and crops (bdlx)", 0.912, 0.297),
        *_scores("bSAM's mean, ResNet-20-FRN-Swish, flips and crops (bdlx)", 0.912, 0.284),
    ],
}


def on(board: str) -> list[Published]:
    """What is known of a board.

    >>> [(found.source.split(" (")[0], found.value) for found in on("uci/yacht")][:2]
    [('PBP', 1.634), ('dropout, 4000 epochs, searched', 1.25)]
    """
    family, _, name = board.partition("/")
    if family != "uci":
        return list(PICTURES.get(board, ()))
    found = []
    for source, cells in UCI.items():
        cell = cells.split(", ")[SETS.index(name)]
        if cell != "–":
            value, *error = cell.split()
            known = float(error[0]) if error else None
            found.append(Published(source, "nll", -float(value), known, HOW.get(source, PUBLISHED)))
    return found
