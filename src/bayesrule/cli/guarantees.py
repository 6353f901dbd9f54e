"""``--guarantee`` and ``--recalibrate``: how many rows are spared for them, and what they allow to promise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from bayesrule import likelihoods
from bayesrule.cli.options import RunSettings
from bayesrule.cli.terminal import say
from bayesrule.data import Kind, Pair, Split, spare
from bayesrule.data.splits import Groups
from bayesrule.posteriors import Posterior, recalibrated
from bayesrule.predictions import needed, needed_answers
from bayesrule.seeds import mixed
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


def spared_rows(settings: RunSettings, n: int) -> int:
    """How many of ``n`` training rows are spared for recalibration and for the guarantee together."""
    promised = 0 if settings.guarantee is None else calibration_rows(settings.guarantee, n)
    count = promised + (0 if settings.recalibrate is None else _recalibration_rows(n))
    if 2 * count > n and settings.recalibrate is not None:
        raise ValueError(
            f"--recalibrate and --guarantee together need {count} rows, and of {n} training rows at most half can be "
            "spared: add rows, promise less, or leave one of them out"
        )
    return count


def _recalibration_rows(n: int) -> int:
    return min(round(SHARE * n), MOST)


def check_recalibration(settings: RunSettings, kind: Kind) -> None:
    """An error now, rather than after training, if the likelihood has no recalibration of the kind."""
    asked, likelihood = settings.recalibrate, likelihoods.choose(settings.likelihood or likelihoods.usual(kind))
    there = likelihood.recalibrations()
    if asked is not None and (asked not in there if asked != "all" else not there):
        known = ", ".join(there) or "none, since its noise is settled on held-out data anyway"
        raise ValueError(f"--recalibrate must be one that likelihood {likelihood.name} has ({known}), got {asked}")


def recalibrated_once(posterior: Posterior, unseen: Pair, settings: RunSettings, folder: Folder) -> Posterior:
    """The posterior after recalibration, written to its file; a finished run is left as it is."""
    before = posterior.info.get("calibration") or {}
    if before.get("asked") == settings.recalibrate:
        return posterior
    posterior = recalibrated(posterior, unseen, kinds=settings.recalibrate or ())
    told = posterior.info["calibration"] | {"asked": settings.recalibrate}
    posterior = posterior.with_context(info=posterior.info | {"calibration": told})
    posterior.save(folder.posterior)
    return posterior


def told_apart(split: Split, settings: RunSettings) -> tuple[Pair | None, Split]:
    """The spared rows to recalibrate on, and the split with those that are left for the guarantee.

    No row is in both: a promise is about a posterior that has not seen the rows it is calibrated on.
    """
    if settings.recalibrate is None or split.calibration is None:
        return None, split
    x, y = split.calibration
    count = len(y) if settings.guarantee is None else _recalibration_rows(len(y) + len(split.train[1]))
    left, mine = spare(len(y), count, mixed(settings.seed, 2))
    groups = split.groups
    if groups is not None:
        groups = groups._replace(calibration=tuple(groups.calibration[row] for row in left.tolist()))
    calibration = (x[left], y[left]) if len(left) else None
    return (x[mine], y[mine]), replace(split, calibration=calibration, groups=groups)


def check_groups(groups: Groups, level: float) -> None:
    """An error now, rather than after training, if a group has too few rows to calibrate on."""
    least, counts = needed(level), Counter(groups.calibration)
    for name, count in sorted(counts.items()):
        if count < least:
            raise ValueError(
                f"--groups must have at least {least} rows of each group to calibrate --guarantee {level:g} on, but of "
                f"{name!r} there are {count}: add rows, join groups, or promise less"
            )
    if strange := sorted(set(groups.test) - set(counts)):
        say(f"nothing is promised for groups without a row to calibrate on: {', '.join(strange[:10])}")


def promised(posterior: Posterior, split: Split, settings: RunSettings, folder: Folder) -> tuple[Posterior, list[str]]:
    """The posterior with its promises, written to its file, and what cannot be promised, in sentences.

    A run that was finished with its promises before is left as it is.
    """
    level, held = settings.guarantee, split.calibration
    assert level is not None
    assert held is not None
    rows, groups = len(held[1]), None if split.groups is None else split.groups.calibration
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
    posterior = posterior.conformalize(held, level, groups, seed=settings.seed)
    if answering:
        posterior = posterior.selective(held, error, CONFIDENCE, seed=settings.seed)
    posterior.save(folder.posterior)
    return posterior, notes
