"""Figures of the literature on the same data, to stand beside measured ones."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A figure with its standard error, if one was printed, and where it is from."""

    source: str
    score: str
    value: float
    error: float | None = None


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
    "deep ensembles (Lakshminarayanan et al. 2017)": ("-2.41, -3.06, -1.38, 1.20, 5.63, -2.79, -2.83, -.94, -1.18"),
    "noisy K-FAC (Zhang et al. 2018)": (
        "-2.446 .029, -3.039 .025, -1.421 .005, 1.148 .007, 7.079 .034, -2.776 .011, -2.836 .002, -.969 .014, "
        "-2.316 .006"
    ),
    "HMC (Bui et al. 2016)": "-2.27 .03, -2.72 .02, -.93 .01, 1.35, 7.31, -2.70, -2.77, -.91 .02, -1.62 .01",
}
"""Test log-likelihood and standard error on the standard splits: one hidden layer of 50 units, of 100 for protein.

What is printed for deep ensembles beside the means has the size of standard deviations, and is left out; zeros, too.
"""
PICTURES: dict[str, tuple[Published, ...]] = {
    "mnist": (
        Published("Bayes by Backprop, MLP 1200-1200 (Blundell et al. 2015)", "accuracy", 0.9868),
        Published("dropout, MLP 800-800 (the same)", "accuracy", 0.9867),
    ),
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
        value, *error = cells.split(", ")[SETS.index(name)].split()
        found.append(Published(source, "nll", -float(value), float(error[0]) if error else None))
    return found
