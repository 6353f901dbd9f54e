"""The loop around every method: order, seeds, checkpoints, resume, progress and guards."""

from __future__ import annotations

from bayesrule.training.callbacks import Callback, EarlyStopping, Progress
from bayesrule.training.folder import Folder
from bayesrule.training.holdout import check_held_out
from bayesrule.training.loop import Diverged, fit
from bayesrule.training.members import fit_members
from bayesrule.training.rates import RangeTest, range_test
from bayesrule.training.resuming import fit_or_resume, resume
from bayesrule.training.settings import FitSettings, default_batch_size, default_temperature

__all__ = [
    "Callback",
    "Diverged",
    "EarlyStopping",
    "FitSettings",
    "Folder",
    "Progress",
    "RangeTest",
    "check_held_out",
    "default_batch_size",
    "default_temperature",
    "fit",
    "fit_members",
    "fit_or_resume",
    "range_test",
    "resume",
]
