"""Acting under uncertainty: the act of least expected cost, and bandits that learn from what their acts bring."""

from bayesrule.decide import environments, policies
from bayesrule.decide.agents import Agent, Retraining, load_agent
from bayesrule.decide.costs import ClassCosts, Costs, Decision, Newsvendor, PiecewiseLinear
from bayesrule.decide.environments import Dealt, Environment
from bayesrule.decide.policies import UCB, EpsilonGreedy, Greedy, Policy, Thompson
from bayesrule.decide.running import Played, run
from bayesrule.decide.verb import decide

__all__ = [
    "UCB",
    "Agent",
    "ClassCosts",
    "Costs",
    "Dealt",
    "Decision",
    "Environment",
    "EpsilonGreedy",
    "Greedy",
    "Newsvendor",
    "PiecewiseLinear",
    "Played",
    "Policy",
    "Retraining",
    "Thompson",
    "decide",
    "environments",
    "load_agent",
    "policies",
    "run",
]
