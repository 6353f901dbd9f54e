"""What is known after the data: distributions over a module's parameters, all used in the same way."""

from __future__ import annotations

from bayesrule.posteriors.averages import predict_normal
from bayesrule.posteriors.base import Context, Posterior, from_tree, load
from bayesrule.posteriors.calibration import calibrate, recalibrated
from bayesrule.posteriors.central import central_state
from bayesrule.posteriors.distance import DistanceAware
from bayesrule.posteriors.dropout import Dropout, let_drop
from bayesrule.posteriors.features import Features, nearest
from bayesrule.posteriors.gaussian import Gaussian
from bayesrule.posteriors.guarantees import Guarantees
from bayesrule.posteriors.linearised import LINKS, WIDE, Linearised, check_link
from bayesrule.posteriors.marginals import normal_draws, normals
from bayesrule.posteriors.matching import match, most_probable, settled
from bayesrule.posteriors.mixture import Mixture
from bayesrule.posteriors.networks import Network, finite
from bayesrule.posteriors.particles import Chains, Particles
from bayesrule.posteriors.stacking import seats, stacked

__all__ = [
    "LINKS",
    "WIDE",
    "Chains",
    "Context",
    "DistanceAware",
    "Dropout",
    "Features",
    "Gaussian",
    "Guarantees",
    "Linearised",
    "Mixture",
    "Network",
    "Particles",
    "Posterior",
    "calibrate",
    "central_state",
    "check_link",
    "finite",
    "from_tree",
    "let_drop",
    "load",
    "match",
    "most_probable",
    "nearest",
    "normal_draws",
    "normals",
    "predict_normal",
    "recalibrated",
    "seats",
    "settled",
    "stacked",
]
