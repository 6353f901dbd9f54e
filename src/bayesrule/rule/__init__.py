"""The Bayesian learning rule: λ ← λ − ρ∇_μ(E_q[ℓ] − H(q)), for any loss and any family (Khan & Rue 2023)."""

from __future__ import annotations

from bayesrule.rule import algorithms
from bayesrule.rule.base import Rule
from bayesrule.rule.trace import State, Trace

__all__ = ["Rule", "State", "Trace", "algorithms"]
