"""Curvature of a model's loss: squared gradients, Jacobians, Gauss–Newton and Fisher matrices in several structures."""

from bayesrule.curvature.blocks import Block, Curvature, DenseBlock, DiagonalBlock, KroneckerBlock
from bayesrule.curvature.ggn import curvature
from bayesrule.curvature.jacobians import jacobians
from bayesrule.curvature.plans import last_layer
from bayesrule.curvature.squares import SquaredGradients

__all__ = [
    "Block",
    "Curvature",
    "DenseBlock",
    "DiagonalBlock",
    "KroneckerBlock",
    "SquaredGradients",
    "curvature",
    "jacobians",
    "last_layer",
]
