"""``br.evaluate``: scores of a posterior, and beside them what else can be asked of it."""

from __future__ import annotations

from bayesrule.evaluate.chains import chains
from bayesrule.evaluate.score import evaluate as scores


class Evaluate:
    """``br.evaluate(posterior, test)``: scores, see `bayesrule.evaluate.score.evaluate`.

    ``br.evaluate.chains(posterior, x)``: whether the chains of a sampler have mixed.
    """

    __call__ = staticmethod(scores)
    chains = staticmethod(chains)


evaluate = Evaluate()
