"""How good predictions are: scores with bootstrap intervals, and curves for pictures."""

from bayesrule.evaluate.agreement import agreement
from bayesrule.evaluate.baselines import Baseline, baselines
from bayesrule.evaluate.brief import judged
from bayesrule.evaluate.chains import Mixing, chains
from bayesrule.evaluate.collapse import collapse
from bayesrule.evaluate.curves import quantile_calibration, reliability, risk_coverage
from bayesrule.evaluate.guarantees import guarantees
from bayesrule.evaluate.null import Null
from bayesrule.evaluate.score import score
from bayesrule.evaluate.scores import Scores
from bayesrule.evaluate.shift import ShiftCurves, under_shift
from bayesrule.evaluate.strangers import StrangerScores, strangers
from bayesrule.evaluate.verb import evaluate
from bayesrule.evaluate.weighted import flat, risk_curve

__all__ = [
    "Baseline",
    "Mixing",
    "Null",
    "Scores",
    "ShiftCurves",
    "StrangerScores",
    "agreement",
    "baselines",
    "chains",
    "collapse",
    "evaluate",
    "flat",
    "guarantees",
    "judged",
    "quantile_calibration",
    "reliability",
    "risk_coverage",
    "risk_curve",
    "score",
    "strangers",
    "under_shift",
]
