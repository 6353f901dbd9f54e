"""Variational modules: training devices whose result is a posterior over the original module's parameters."""

from __future__ import annotations

from bayesrule.nn.checks import GRADIENTS, check_settings
from bayesrule.nn.estimators import ESTIMATORS
from bayesrule.nn.initial import fan_ins
from bayesrule.nn.variational import Variational, bayesianize, inverse_softplus, log_normal
from bayesrule.nn.weights import kl_weights

__all__ = [
    "ESTIMATORS",
    "GRADIENTS",
    "Variational",
    "bayesianize",
    "check_settings",
    "fan_ins",
    "inverse_softplus",
    "kl_weights",
    "log_normal",
]
