"""Penalties and priors: which prior a penalty stands for, the penalty of a prior, and how strong it should be.

No fit needs this room and `import bayesrule` does not load it: ``br.penalties`` does, the first time it is used.
"""

from __future__ import annotations

from bayesrule.penalties import translations
from bayesrule.penalties.calibration.calibrated import Calibrated, calibrate
from bayesrule.penalties.calibration.explanation import Explanation, explain
from bayesrule.penalties.calibration.mean_field import MeanField, edge_of_chaos, mean_field
from bayesrule.penalties.equivalence.beliefs import prior_of
from bayesrule.penalties.equivalence.divergences import penalty_of
from bayesrule.penalties.equivalence.implied import Implied
from bayesrule.penalties.equivalence.lines import Table
from bayesrule.penalties.equivalence.pictures import plot_belief
from bayesrule.penalties.equivalence.radial import Radial
from bayesrule.penalties.equivalence.verdicts import Verdict
from bayesrule.penalties.functions import L1, L2, Cosine, Function, GroupLasso, Penalty, PenaltySum, Polynomial

__all__ = [
    "L1",
    "L2",
    "Calibrated",
    "Cosine",
    "Explanation",
    "Function",
    "GroupLasso",
    "Implied",
    "MeanField",
    "Penalty",
    "PenaltySum",
    "Polynomial",
    "Radial",
    "Table",
    "Verdict",
    "calibrate",
    "edge_of_chaos",
    "explain",
    "mean_field",
    "penalty_of",
    "plot_belief",
    "prior_of",
    "translations",
]
