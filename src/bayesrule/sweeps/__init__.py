"""Search for settings: random search and TPE, by Optuna, over the training of a method.

=================  =====================================================================
``sweep``          many trainings, each scored on held-out data
``Sweep``          what came out: ``best``, ``table()``, ``importance()``
``Trial``          one training
``SweepProgress``  what callbacks are told after a trial
``Log``            any positive number of a range, all orders of magnitude alike
``Uniform``        any number of a range
``Whole``          any whole number of a range
``Choice``         one of several options
``default_space``  the usual ranges of a method
``parse_space``    ranges from words
=================  =====================================================================
"""

from __future__ import annotations

from bayesrule.sweeps.ranges import Choice, Log, Range, Uniform, Whole, literal
from bayesrule.sweeps.results import Callback, Sweep, SweepProgress, Trial
from bayesrule.sweeps.search import SAMPLERS, sweep
from bayesrule.sweeps.space import Space, default_space, parse_space

__all__ = [
    "SAMPLERS",
    "Callback",
    "Choice",
    "Log",
    "Range",
    "Space",
    "Sweep",
    "SweepProgress",
    "Trial",
    "Uniform",
    "Whole",
    "default_space",
    "literal",
    "parse_space",
    "sweep",
]
