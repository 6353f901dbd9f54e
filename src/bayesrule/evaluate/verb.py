"""``br.evaluate``: scores of a posterior, and beside them what else can be asked of it."""

from __future__ import annotations

import inspect

from bayesrule.evaluate.agreement import agreement
from bayesrule.evaluate.chains import chains
from bayesrule.evaluate.collapse import collapse
from bayesrule.evaluate.guarantees import guarantees
from bayesrule.evaluate.score import evaluate as scores
from bayesrule.evaluate.shift import under_shift
from bayesrule.evaluate.strangers import strangers


class Evaluate:
    """``br.evaluate(posterior, test)``: scores, see `bayesrule.evaluate.score.evaluate`.

    ``br.evaluate.collapse(posterior)``: whether it still listens to the data. ``br.evaluate.agreement(posterior,
    reference, x)``: how near its predictions are to those of another posterior. ``br.evaluate.chains(posterior, x)``:
    whether the chains of a sampler have mixed. ``br.evaluate.guarantees(posterior, test)``: whether its promises hold.
    ``br.evaluate.under_shift(posterior, test, shift)``: how its scores fall on the way from home.
    ``br.evaluate.strangers(posterior, test, ood)``: whether it tells examples from elsewhere.
    """

    __call__ = staticmethod(scores)
    __signature__ = inspect.signature(scores)  # for tooltips: of an object's call inspect leaves out the first argument
    collapse = staticmethod(collapse)
    agreement = staticmethod(agreement)
    chains = staticmethod(chains)
    guarantees = staticmethod(guarantees)
    under_shift = staticmethod(under_shift)
    strangers = staticmethod(strangers)


evaluate = Evaluate()
