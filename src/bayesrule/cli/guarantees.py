"""``--guarantee``: how many rows are spared for it, and what they allow to promise."""

from __future__ import annotations

from bayesrule.cli.options import RunSettings
from bayesrule.cli.terminal import say
from bayesrule.data import Pair
from bayesrule.posteriors import Posterior
from bayesrule.predictions import needed, needed_answers
from bayesrule.training import Folder

SHARE, MOST = 0.2, 1000  # of the training rows, and at most so many: the level is then met to about a percent
CONFIDENCE = 0.95  # of the promise about answers


def calibration_rows(level: float, n: int) -> int:
    """How many of ``n`` training rows are spared: a fifth, up to 1000, but as many as the level needs.

    >>> calibration_rows(0.9, 600), calibration_rows(0.99, 300), calibration_rows(0.9, 50_000)
    (120, 99, 1000)
    """
    least = needed(level)
    if least > n // 2:
        raise ValueError(
            f"--guarantee {level:g} needs at least {least} rows to calibrate on, and of {n} training rows at most half "
            "can be spared: add rows, or promise less"
        )
    return max(least, min(round(SHARE * n), MOST))


def promised(posterior: Posterior, held: Pair, settings: RunSettings, folder: Folder) -> tuple[Posterior, list[str]]:
    """The posterior with its promises, written to its file, and what cannot be promised, in sentences.

    A run that was finished with its promises before is left as it is.
    """
    level, rows = settings.guarantee, len(held[1])
    assert level is not None
    error = float(f"{1 - level:.12g}")  # 0.1 for 0.9, where the difference of floats is beside it
    answering, notes = posterior.likelihood.kind == "classes", []
    if answering and rows < (least := needed_answers(error, CONFIDENCE)):
        answering = False
        notes.append(
            f"how often answers are wrong is not promised: {least} rows to calibrate on are needed for --guarantee "
            f"{level:g}, and there are {rows}"
        )
    for note in notes:
        say(note)
    if posterior.guarantees.conformal is not None:
        return posterior, notes
    posterior = posterior.conformalize(held, level, seed=settings.seed)
    if answering:
        posterior = posterior.selective(held, error, CONFIDENCE, seed=settings.seed)
    posterior.save(folder.posterior)
    return posterior, notes
