"""What is not known about y at x: a distribution over targets, by kind of target."""

from bayesrule.predictions.base import Prediction, per_example, tails
from bayesrule.predictions.binary import Binary
from bayesrule.predictions.classes import Classes
from bayesrule.predictions.conformal import Conformal, Group, calibrate, class_scores, conformity, needed, threshold
from bayesrule.predictions.counts import Counts
from bayesrule.predictions.numbers import Continuous, Numbers
from bayesrule.predictions.positive_reals import PositiveReals
from bayesrule.predictions.reals import Reals
from bayesrule.predictions.selective import Answers, Selective, needed_answers, select
from bayesrule.predictions.tailed_reals import TailedReals
from bayesrule.predictions.tokens import TokenClasses

__all__ = [
    "Answers",
    "Binary",
    "Classes",
    "Conformal",
    "Continuous",
    "Counts",
    "Group",
    "Numbers",
    "PositiveReals",
    "Prediction",
    "Reals",
    "Selective",
    "TailedReals",
    "TokenClasses",
    "calibrate",
    "class_scores",
    "conformity",
    "needed",
    "needed_answers",
    "per_example",
    "select",
    "tails",
    "threshold",
]
