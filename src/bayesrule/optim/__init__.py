"""Optimisers and learning-rate schedules, by name.

=================  =====================================================================
``Recipe``         an optimiser by name with its options; ``build`` gives it parameters
``choose``         a recipe from a name
``AVAILABLE``      the names: sgd, rmsprop, adagrad, adam, amsgrad, radam, adabound,
                   amsbound, yellowfin
``IVON``           a Gaussian over the weights at the cost of Adam; ``VOGN``, ``OGN``,
                   ``VON``, ``Vadam``: its relatives; ``Natural``: what they share
``Path``           moments of the weights that any optimiser comes by, for SWAG
``YellowFin``      momentum SGD that tunes its own learning rate and momentum
``Schedule``       a factor on the learning rate: ``Constant``, ``WarmUp``, ``Cosine``,
                   ``Cyclic``, ``Plateau``, ``Ramp``
``schedule``       a schedule from a name
``SCHEDULES``      the names: constant, warm-up, cosine, cyclic, plateau, ramp
``Group``          a recipe, a learning rate and a schedule
``robust_region``  the learning rates that suit a momentum and a curvature
=================  =====================================================================
"""

from __future__ import annotations

from bayesrule.optim import natural
from bayesrule.optim.flat import check_settings
from bayesrule.optim.groups import Group
from bayesrule.optim.ivon import IVON
from bayesrule.optim.natural import Natural
from bayesrule.optim.path import Path
from bayesrule.optim.recipes import AVAILABLE, Recipe, choose
from bayesrule.optim.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Cyclic,
    History,
    Plateau,
    Ramp,
    Schedule,
    WarmUp,
    robust_region,
    schedule,
)
from bayesrule.optim.vadam import Vadam
from bayesrule.optim.vogn import OGN, VOGN
from bayesrule.optim.von import VON
from bayesrule.optim.yellowfin import YellowFin

__all__ = [
    "AVAILABLE",
    "IVON",
    "OGN",
    "SCHEDULES",
    "VOGN",
    "VON",
    "Constant",
    "Cosine",
    "Cyclic",
    "Group",
    "History",
    "Natural",
    "Path",
    "Plateau",
    "Ramp",
    "Recipe",
    "Schedule",
    "Vadam",
    "WarmUp",
    "YellowFin",
    "check_settings",
    "choose",
    "natural",
    "robust_region",
    "schedule",
]
