"""How sure answers should be, settled after training on data that the weights have not seen.

What is settled is an unknown of the likelihood that training leaves at 1, such as the temperature of classes. It stays
there unless it makes held-out examples more probable that were not used to find it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrule.data import Batch, as_data
from bayesrule.likelihoods import Likelihood
from bayesrule.naming import unknown
from bayesrule.posteriors.base import Posterior
from bayesrule.posteriors.matching import held_out_log_prob, most_probable

FOLDS = 5  # of the held-out examples: what four of them tell is judged by the fifth
FEWEST = 20  # held-out examples that can tell anything
ODDS = math.log(20)  # nats, of all held-out examples together: 20 to 1


DEFAULT = ("temperature",)  # what a fit tries by itself
EVERY = ("temperature", "vector", "isotonic", "scale")


def recalibrated(posterior: Posterior, held: Any, samples: int = 32, kinds: str | Sequence[str] = DEFAULT) -> Posterior:
    """A posterior like this one whose answers are as sure as held-out data say, where they say it clearly.

    ``held``: ``(X, y)`` in the user's units that the fit has not seen. ``kinds``: of recalibration that are tried,
    ``"temperature"``, ``"vector"`` and ``"isotonic"`` of classes, ``"scale"`` of noise that a network tells; ``"all"``.
    ``info["calibration"]`` tells what was tried, see `calibrate`. Where there is none of these, as for a temperature
    that the user knows or noise that is settled already, the posterior stays as it is.
    """
    wanted = _chosen(kinds)
    if not posterior.likelihood.recalibrations().keys() & set(wanted):
        return posterior
    batch = held if isinstance(held, Batch) else as_data(held).raw()
    log_prob = held_out_log_prob(posterior, batch, samples)
    found, told = calibrate(posterior.likelihood, log_prob, wanted, log_prob.width)
    return posterior.with_context(likelihood=found, info=posterior.info | {"calibration": told})


def _chosen(kinds: str | Sequence[str]) -> tuple[str, ...]:
    """The names that were asked for."""
    names = EVERY if kinds == "all" else (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for name in names:
        if name not in EVERY:
            raise unknown("kind of recalibration", name, ("all", *EVERY))
    return names


def calibrate(
    likelihood: Likelihood, log_prob: Callable[[Likelihood], Tensor], kinds: Sequence[str] = DEFAULT, width: int = 1
) -> tuple[Likelihood, dict[str, Any]]:
    """The likelihood, or that of its recalibrations under which held-out examples are clearly more probable.

    ``log_prob``: of every held-out example, [n]. The unknowns u of a recalibration maximise Σ_i log p(y_i|u) − ½‖u‖²,
    a prior of deviation 1 about what training takes them for: a few examples that are all right do not ask for
    certainty. It is worth Σ_i log p(y_i|u) − log p(y_i) over examples that u was not found on, in five folds; only
    3 nats, 20 to 1, are believed, and log K more where K ``kinds`` were tried. ``width``: outputs of an example.

    Also what was tried: the ``chosen`` one or None, how many ``examples`` told it, their mean ``nll`` as training left
    it, and of every recalibration its ``value`` and the mean NLL in folds that it was not found on.

    >>> from bayesrule.likelihoods import Bernoulli
    >>> logits, y = torch.full((400,), 4.0), torch.tensor([0.0, 1.0, 1.0, 1.0] * 100)  # says .98 where it is .75
    >>> found, told = calibrate(Bernoulli(), lambda likelihood: likelihood.log_prob(logits, y))
    >>> told["chosen"], round(float(found.temperature), 1)  # 4/log 3 = 3.6
    ('temperature', 3.6)
    """
    plain = likelihood.uncalibrated()
    with torch.no_grad():
        before = log_prob(plain)
    n = len(before)
    told: dict[str, Any] = {"chosen": None, "examples": n, "nll": -float(before.mean()), "tried": {}}
    candidates = {name: one for name, one in plain.recalibrations(width).items() if name in kinds}
    best, least = plain, ODDS + math.log(max(1, len(candidates)))
    if n < FEWEST:
        return best, told
    for name, candidate in candidates.items():
        found = _settled(candidate, log_prob, torch.ones_like(before, dtype=torch.bool))
        unseen = _unseen(found, log_prob, before)
        told["tried"][name] = {"value": getattr(found, name).tolist(), "nll": -float(unseen.mean())}
        gain = float((unseen - before).sum())
        if gain > least:
            best, least, told["chosen"] = found, gain, name
    return best, told


def _unseen(start: Likelihood, log_prob: Callable[[Likelihood], Tensor], like: Tensor) -> Tensor:
    """Log p(y_i|u) [n], u found without the fold that i is in; the search begins at ``start``, to be short."""
    shuffled = torch.randperm(len(like), generator=torch.Generator().manual_seed(0))  # rows may come in some order
    fold = shuffled.to(like.device) % FOLDS
    unseen = torch.empty_like(like)
    for k in range(FOLDS):
        found = _settled(start, log_prob, fold != k)
        with torch.no_grad():
            unseen[fold == k] = log_prob(found)[fold == k]
    return unseen


def _settled(candidate: Likelihood, log_prob: Callable[[Likelihood], Tensor], seen: Tensor) -> Likelihood:
    """The candidate with its most probable unknowns for some of the examples."""
    count = int(seen.sum())

    def of_seen(likelihood: Likelihood) -> Tensor:
        size = torch.stack([u.square().sum() for u in likelihood.unknowns().values()]).sum()
        return log_prob(likelihood)[seen] - size.to(seen.device) / (2 * count)

    return most_probable(candidate, of_seen)
