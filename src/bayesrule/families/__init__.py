"""Exponential families: natural and expectation parameters, and gradients of expectations with respect to the latter.

A family is a kind of distribution, q(w) = h(w) exp(⟨λ, T(w)⟩ − A(λ)). Its natural parameters λ and expectation
parameters μ = E_q[T(w)] = ∇A(λ) are tuples of tensors, one per sufficient statistic.
"""

from __future__ import annotations

from bayesrule.families.base import Estimator, Family, How, Natural, added, inner
from bayesrule.families.diagonal_gaussian import DiagonalGaussian
from bayesrule.families.dirichlet import Beta, Dirichlet
from bayesrule.families.discrete import Bernoulli, Categorical
from bayesrule.families.dropped_gaussian import DroppedGaussian
from bayesrule.families.fixed_gaussian import GaussianMean
from bayesrule.families.full_gaussian import FullGaussian
from bayesrule.families.gamma import Gamma
from bayesrule.families.losses import Loss, LossLike, Point
from bayesrule.families.mixture import GaussianMixture
from bayesrule.families.product import Product
from bayesrule.families.spike_and_slab import SpikeAndSlab

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "DiagonalGaussian",
    "Dirichlet",
    "DroppedGaussian",
    "Estimator",
    "Family",
    "FullGaussian",
    "Gamma",
    "GaussianMean",
    "GaussianMixture",
    "How",
    "Loss",
    "LossLike",
    "Natural",
    "Point",
    "Product",
    "SpikeAndSlab",
    "added",
    "inner",
]
