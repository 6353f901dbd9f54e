"""Curvature of a model's loss: squared gradients of every example."""

from bayesrule.curvature.squares import SquaredGradients

__all__ = ["SquaredGradients"]
