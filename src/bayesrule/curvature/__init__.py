"""Curvature of a model's loss: squared gradients, Jacobians, Gauss–Newton and Fisher matrices in several structures."""

from bayesrule.curvature.evidence import Evidence, Grouping, Scatter, Tuning, definite_sum, group, rescaled
from bayesrule.curvature.general import ONE_AT_A_TIME
from bayesrule.curvature.ggn import Curvature, curvature
from bayesrule.curvature.jacobians import example_gradients, jacobians
from bayesrule.curvature.kernels import kernels
from bayesrule.curvature.limits import check_memory, check_outputs
from bayesrule.curvature.plans import STRUCTURES, Bill, StructureName, Subset, bill, chosen, last_layer
from bayesrule.curvature.propagation import Tangents, propagate
from bayesrule.curvature.roots import LABELS, Averaged, Labels, averaged, log_probs
from bayesrule.curvature.squares import SquaredGradients

__all__ = [
    "LABELS",
    "ONE_AT_A_TIME",
    "STRUCTURES",
    "Averaged",
    "Bill",
    "Curvature",
    "Evidence",
    "Grouping",
    "Labels",
    "Scatter",
    "SquaredGradients",
    "StructureName",
    "Subset",
    "Tangents",
    "Tuning",
    "averaged",
    "bill",
    "check_memory",
    "check_outputs",
    "chosen",
    "curvature",
    "definite_sum",
    "example_gradients",
    "group",
    "jacobians",
    "kernels",
    "last_layer",
    "log_probs",
    "propagate",
    "rescaled",
]
