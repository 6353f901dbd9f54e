"""How good predictions are: scores with bootstrap intervals, and curves for pictures."""

from bayesrule.evaluate.curves import quantile_calibration, reliability, risk_coverage
from bayesrule.evaluate.score import evaluate, score
from bayesrule.evaluate.scores import Scores

__all__ = ["Scores", "evaluate", "quantile_calibration", "reliability", "risk_coverage", "score"]
