"""Markov chains on flat tensors: kernels, how they are tuned, and whether chains have mixed.

A kernel knows of no network: chains are rows of a tensor ``[C, P]``, and the density a function of them.
"""

from __future__ import annotations

from bayesrule.samplers.base import Kernel, Move, Scales, State, Target, began, normal
from bayesrule.samplers.convergence import e_bfmi, ess_bulk, ess_tail, r_hat
from bayesrule.samplers.hamiltonian import Hamiltonian
from bayesrule.samplers.microcanonical import Microcanonical
from bayesrule.samplers.stochastic import Kinetic, Overdamped
from bayesrule.samplers.tuning import ByAcceptance, ByEnergy, ByRate, Tuner

__all__ = [
    "ByAcceptance",
    "ByEnergy",
    "ByRate",
    "Hamiltonian",
    "Kernel",
    "Kinetic",
    "Microcanonical",
    "Move",
    "Overdamped",
    "Scales",
    "State",
    "Target",
    "Tuner",
    "began",
    "e_bfmi",
    "ess_bulk",
    "ess_tail",
    "normal",
    "r_hat",
]
