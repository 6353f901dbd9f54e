"""``br.decide``: the act of least expected cost, and beside it bandits."""

from __future__ import annotations

import inspect

from bayesrule.decide import environments
from bayesrule.decide.agents import Agent, Retraining, load_agent
from bayesrule.decide.costs import Newsvendor, PiecewiseLinear
from bayesrule.decide.costs import decide as decided
from bayesrule.decide.policies import UCB, EpsilonGreedy, Greedy, Thompson
from bayesrule.decide.running import run


class Decide:
    """``br.decide(prediction, costs)``: the act of least expected cost, see `bayesrule.decide.costs.decide`.

    ``br.decide.Newsvendor``, ``br.decide.PiecewiseLinear``: costs over numbers. ``br.decide.run(environment, agent,
    steps)``: a contextual bandit, with an ``Agent`` and one of ``environments``, or your own.
    """

    __call__ = staticmethod(decided)
    __signature__ = inspect.signature(
        decided
    )  # for tooltips: of an object's call inspect leaves out the first argument
    Newsvendor, PiecewiseLinear = Newsvendor, PiecewiseLinear
    Agent, Retraining, load_agent = Agent, Retraining, staticmethod(load_agent)
    Thompson, UCB, EpsilonGreedy, Greedy = Thompson, UCB, EpsilonGreedy, Greedy
    environments = environments
    run = staticmethod(run)


decide = Decide()
