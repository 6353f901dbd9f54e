"""Answers that are wrong as rarely as promised: a threshold on doubt, by Learn then Test.

The doubt of an answer is 1 − p of the most probable class. Below a threshold t it is given, and R(t) is the share of
wrong ones among all that are given at t. For each of a few thresholds, fixed beforehand, R(t) > error is a hypothesis:
if it were true, at most k wrong ones of n given would have probability at most P(Bin(n, error) ≤ k), the exact
binomial p-value. What is rejected is safe (Angelopoulos et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.files import Tree
from bayesrule.predictions.base import Prediction, fraction
from bayesrule.predictions.binary import Binary
from bayesrule.predictions.classes import Classes
from bayesrule.predictions.frames import percent

STRICT = (16, 8, 4, 2)  # halvings of ``error``: thresholds for predictions that are too sure


class Answers(NamedTuple):
    """A prediction, and which of its examples are answered, a mask ``[B]``."""

    prediction: Prediction
    answered: Tensor


@dataclass(frozen=True, eq=False)
class Selective:
    """Which doubts are small enough for an answer: those up to ``doubt``; None where no threshold could be promised.

    With probability ``confidence`` over the choice of the ``rows`` that it was found on, at most a share ``error`` of
    the answers to new examples is wrong. ``share`` of the rows were answered. ``samples`` and ``seed`` are those of the
    predictions.
    """

    error: float
    confidence: float
    doubt: float | None
    rows: int
    share: float
    samples: int = 32
    seed: int = 0

    def answers(self, prediction: Prediction) -> Answers:
        """What is answered of a prediction."""
        doubts = doubt(prediction)
        if self.doubt is None:
            return Answers(prediction, torch.zeros_like(doubts, dtype=torch.bool))
        return Answers(prediction, doubts <= self.doubt)

    @property
    def says(self) -> str:
        """The promise in words.

        >>> Selective(0.05, 0.95, 0.2, 400, 0.88).says.split("; ")[0]
        'of 100 answers given, at most 5 wrong, with 95 % confidence, as calibrated on 400 rows'
        """
        share, unit = Fraction(str(self.error)), 100
        while (share * unit).denominator != 1 and unit < 10**6:
            unit *= 10
        most = f"{float(share * unit):g}"
        sure = f"with {percent(self.confidence)} % confidence, as calibrated on {self.rows} rows"
        if self.doubt is None:
            return f"nothing is answered: that at most {most} of {unit} answers are wrong cannot be promised {sure}"
        answered = f"{percent(round(self.share, 2))} % of them were answered"
        return f"of {unit} answers given, at most {most} wrong, {sure}; {answered}"

    def state(self) -> Tree:
        """All of it, for a file."""
        return dict(self.__dict__)

    @classmethod
    def from_state(cls, state: Tree) -> Selective:
        """Undo `state`; a `ValueError` for what no calibration can have made."""
        found = cls(**state)
        allowed = (None, *thresholds(found.error))
        if found.doubt not in allowed or found.rows < needed_answers(found.error, found.confidence):
            raise ValueError(f"its threshold of doubt is {found.doubt} by {found.rows} rows")
        if not 0 <= found.share <= 1 or found.samples < 1:
            raise ValueError(f"its share of answers is {found.share:g} by {found.samples} networks")
        return found


def thresholds(error: float) -> tuple[float, ...]:
    """The thresholds of doubt that are tried, the strictest first; the last answers everything.

    >>> thresholds(0.1)[-5:]
    (0.1, 0.2, 0.4, 0.8, 1.0)
    """
    strict = [fraction("error", error) / 2**halvings for halvings in STRICT]
    looser, step = [], error
    while step < 1:
        looser.append(step)
        step *= 2
    return (*strict, *looser, 1.0)


def needed_answers(error: float, confidence: float) -> int:
    """The fewest rows that any promise can be made from, all answered and none wrong: (1 − error)ⁿ ≤ δ/K.

    >>> needed_answers(0.05, 0.95), needed_answers(0.01, 0.95)
    (104, 546)
    """
    delta = (1 - fraction("confidence", confidence)) / len(thresholds(error))
    return ceil(log(delta) / log(1 - error))


def select(prediction: Prediction, y: Tensor, error: float = 0.01, confidence: float = 0.95) -> Selective:
    """The largest threshold of doubt for which R ≤ error can be promised, by the fallback procedure (Wiens 2003).

    Each of the K thresholds, from the strictest on, is tested at δ/K with δ = 1 − confidence, and if the one before it
    was rejected, at what that was tested at besides. With probability ``confidence`` no true hypothesis is rejected,
    whatever the prediction is worth.

    >>> from bayesrule.predictions import Binary
    >>> sure = Binary(torch.full((1, 200), 6.0))
    >>> select(sure, torch.ones(200), error=0.05).doubt, select(sure, torch.arange(200) % 5 > 0, error=0.05).doubt
    (1.0, None)
    """
    least = needed_answers(error, confidence)
    found, wrong = doubt(prediction), prediction.point != prediction.target(y)
    if len(found) < least:
        raise ValueError(
            f"held must have at least {least} examples for error={error:g} at confidence={confidence:g}: got "
            f"{len(found)}; hold out more, or promise less"
        )
    tried = torch.tensor(thresholds(error), dtype=torch.float64, device=found.device)
    given = found[:, None] <= tried
    chances = binomial_cdf((given & wrong[:, None]).sum(0), given.sum(0), error).tolist()
    own = (1 - confidence) / len(tried)
    spent, chosen = 0.0, None
    for place, chance in enumerate(chances):
        spent += own
        if chance <= spent:
            chosen = place
        else:
            spent = 0.0
    if chosen is None:
        return Selective(error, confidence, None, len(found), 0.0)
    share = float(given[:, chosen].double().mean())
    return Selective(error, confidence, float(tried[chosen]), len(found), share)


def doubt(prediction: Prediction) -> Tensor:
    """1 − p of the most probable class ``[B]``, in double precision: the sum of all other classes' probabilities."""
    if not isinstance(prediction, Classes | Binary):
        raise TypeError("answers that may be wrong are of classes: for numbers use conformalize(held, level=0.9)")
    classes = prediction.classes if isinstance(prediction, Binary) else prediction
    if len(classes.shape) > 1:
        raise ValueError(f"an example must have one label to be answered or not: got labels {list(classes.shape)}")
    probs = classes.logits.double().softmax(2).mean(0)
    return probs.scatter(1, classes.label.unsqueeze(1), 0.0).sum(1)


def binomial_cdf(k: Tensor, n: Tensor, p: float) -> Tensor:
    """P(Bin(n, p) ≤ k), summed term by term in double precision; 1 where n = 0.

    >>> binomial_cdf(torch.tensor([0, 1]), torch.tensor([2, 2]), 0.5)
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    k, n = k.double(), n.double()
    i = torch.arange(float(k.max()) + 1, dtype=torch.float64, device=k.device)[:, None]
    ways = torch.lgamma(n + 1) - torch.lgamma(i + 1) - torch.lgamma((n - i).clamp(min=0) + 1)
    terms = ways + i * log(p) + (n - i) * log(1 - p)
    return terms.masked_fill(i > k, -torch.inf).logsumexp(0).exp().clamp(max=1)
