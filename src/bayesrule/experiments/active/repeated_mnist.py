"""A pool in which every picture comes three times, with a little noise: what a batch tells twice."""

from __future__ import annotations

from dataclasses import replace

from bayesrule.experiments.active import curves
from bayesrule.experiments.active.active_mnist import FULL, QUICK, draw, runs_of
from bayesrule.experiments.active.curves import SOURCES
from bayesrule.experiments.base import Result, Setting

# Among few candidates of a large pool no picture would come twice: the pool is small, and all of it is looked at.
REPEATED = {
    False: replace(QUICK, candidates=None, budgets=(100, 100, 100, 100), copies=3, noise=0.1),
    True: replace(FULL, candidates=None, budgets=(160, 160, 160, 160), pictures=700, copies=3, noise=0.1),
}


def run(setting: Setting) -> Result:
    """Learning curves of each acquisition on copies."""
    scale = REPEATED[setting.full]
    runs = runs_of(setting, scale)
    where = " where each picture comes three times, ten labels at a time"
    source = SOURCES["batchbald"]
    claims = (
        curves.ahead(runs, "batchbald", "random", source, where),
        curves.ahead(runs, "epig", "random", SOURCES["epig"], where),
        curves.ahead(runs, "random", "bald", source, where),
        curves.ahead(runs, "batchbald", "bald", source, where),
    )
    return Result(claims, curves.data_of(runs), lambda figure: draw(figure, runs), (7.0, 3.6), (scale.cut,))
