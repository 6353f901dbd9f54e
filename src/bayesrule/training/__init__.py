"""The loop around every method: order, seeds, checkpoints, resume, progress and guards."""

from __future__ import annotations

from bayesrule.training.callbacks import Callback, EarlyStopping, Progress
from bayesrule.training.folder import Folder
from bayesrule.training.loop import Diverged, fit, resume
from bayesrule.training.rates import RangeTest, range_test

__all__ = ["Callback", "Diverged", "EarlyStopping", "Folder", "Progress", "RangeTest", "fit", "range_test", "resume"]
