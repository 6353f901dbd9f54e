"""Curvature of a model's loss: squared gradients, Jacobians, Gauss–Newton and Fisher matrices in several structures."""

from bayesrule.curvature.evidence import Evidence, Scatter, Tuning
from bayesrule.curvature.ggn import Curvature, curvature
from bayesrule.curvature.jacobians import example_gradients, jacobians
from bayesrule.curvature.plans import last_layer
from bayesrule.curvature.propagation import propagate
from bayesrule.curvature.squares import SquaredGradients

__all__ = [
    "Curvature",
    "Evidence",
    "Scatter",
    "SquaredGradients",
    "Tuning",
    "curvature",
    "example_gradients",
    "jacobians",
    "last_layer",
    "propagate",
]
