"""Known algorithms as choices of a family, an estimate of E_q[ℓ] and a rate: a few lines each on the rule.

The page docs/learning-rule.md derives them one by one.
"""

from __future__ import annotations

from bayesrule.rule.algorithms.binary import bayesbinn, dropout, signs, straight_through
from bayesrule.rule.algorithms.chain import Chain
from bayesrule.rule.algorithms.descent import Scaled, adam, gradient_descent, newton, rmsprop
from bayesrule.rule.algorithms.latent import MixtureOfNormals, Regression, Topics
from bayesrule.rule.algorithms.messages import posterior, sweep
from bayesrule.rule.algorithms.quadratic import laplace, ridge
from bayesrule.rule.algorithms.search import evolution, exponential_weights, homotopy, newton_ensemble
from bayesrule.rule.algorithms.sequences import HiddenMarkov, LinearSystem, forward_backward

__all__ = [
    "Chain",
    "HiddenMarkov",
    "LinearSystem",
    "MixtureOfNormals",
    "Regression",
    "Scaled",
    "Topics",
    "adam",
    "bayesbinn",
    "dropout",
    "evolution",
    "exponential_weights",
    "forward_backward",
    "gradient_descent",
    "homotopy",
    "laplace",
    "newton",
    "newton_ensemble",
    "posterior",
    "ridge",
    "rmsprop",
    "signs",
    "straight_through",
    "sweep",
]
