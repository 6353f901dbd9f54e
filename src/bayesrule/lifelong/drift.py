"""Has the world changed? A watch over what a posterior predicts of a stream, with a stated false-alarm rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesrule import files
from bayesrule.data import Data, Inputs, as_data, as_inputs, inputs
from bayesrule.files import Tree
from bayesrule.lifelong.martingale import Floats, Martingale, least_reference
from bayesrule.naming import unknown
from bayesrule.posteriors import Posterior
from bayesrule.predictions import Prediction, per_example

Score = Literal["loss", "epistemic", "uncertainty"]
SCORES: dict[str, str] = {"loss": "losses", "epistemic": "epistemic uncertainties", "uncertainty": "uncertainties"}
ROWS = 1024
"""Examples that are predicted at a time."""
BITS = 16
"""Of a score's mantissa. What a network says of one example may differ in its last bits with those beside it."""


@dataclass(frozen=True)
class Level:
    """How well some examples are predicted: means over them.

    ``log_density``: log p(y|x, D), None without labels. ``epistemic_share``: the part of the uncertainty that is
    epistemic.
    """

    log_density: float | None
    epistemic_share: float


@dataclass(frozen=True)
class DriftReport:
    """What a watch has seen after ``examples`` of its stream; printed, a sentence.

    ``log_wealth``: log of the evidence, which raises the alarm at log(1/false_alarms). ``alarm_at``: the example that
    raised it, counted from 1, ``since``: about when the change began, ``larger``: whether scores grew or shrank; None
    before an alarm. ``batch``, ``reference``: the level of the examples of this update, and that of the reference.
    """

    examples: int
    log_wealth: float
    false_alarms: float
    score: Score
    alarm_at: int | None
    since: int | None
    larger: bool | None
    batch: Level
    reference: Level

    @property
    def alarmed(self) -> bool:
        """Whether the alarm was raised, now or earlier: it stays."""
        return self.alarm_at is not None

    def __str__(self) -> str:
        if not self.alarmed:
            return f"no sign of change in {self.examples} examples"
        return (
            f"the world has changed since about example {self.since}: {SCORES[self.score]} are "
            f"{'larger' if self.larger else 'smaller'} than the reference's; "
            f"false alarm in at most 1 of {int(1 / self.false_alarms + 1e-9)} streams"
        )


class Scored(NamedTuple):
    """A score for each example, and the level of all."""

    scores: Floats
    level: Level


class Watch:
    """A stream's scores against a reference, see `watch`. `update` changes it, and nothing else does."""

    def __init__(
        self, posterior: Posterior, score: Score, samples: int, martingale: Martingale, reference: Level
    ) -> None:
        self.posterior, self.score, self.samples = posterior, score, samples
        self.martingale, self.reference = martingale, reference

    def __repr__(self) -> str:
        found = self.martingale
        return (
            f"Watch(score={self.score!r}, false_alarms={found.level:g}, reference={found.reference}, "
            f"examples={found.seen}, log_wealth={found.log_wealth:.2f}, alarmed={found.alarm > 0})"
        )

    def update(self, x: Any, y: Any = None) -> DriftReport:
        """Look at the next examples of the stream, before anything learns from them.

        ``x``, ``y``: as for a fit, in the order in which they came; ``y`` may be missing where the score needs no
        labels. However a stream is cut into updates, the martingale is the same.
        """
        seen = scored(self.posterior, self._batches(x, y), self.score, self.samples, self.martingale.seed)
        self.martingale = self.martingale.after(seen.scores)
        found, alarmed = self.martingale, self.martingale.alarm > 0
        return DriftReport(
            found.seen,
            found.log_wealth,
            found.level,
            self.score,
            found.alarm if alarmed else None,
            found.since if alarmed else None,
            found.larger if alarmed else None,
            seen.level,
            self.reference,
        )

    def _batches(self, x: Any, y: Any) -> Iterator[tuple[Inputs, Tensor | None]]:
        if y is not None:
            return labelled(as_data((x, y)), "y")
        if isinstance(x, Data | Dataset | DataLoader):
            return labelled(as_data(x), "x")
        if self.score == "loss":
            raise ValueError(
                "y must be the labels of x where score is 'loss': got None; for a stream without labels make the watch "
                "with score='epistemic' or 'uncertainty'"
            )
        return unlabelled(x)

    def state_dict(self) -> Tree:
        """All that goes on from here, and which posterior it is of."""
        return {
            "posterior": files.digest(self.posterior.state()),
            "score": self.score,
            "samples": self.samples,
            "martingale": self.martingale.state(),
            "reference": asdict(self.reference),
        }

    def save(self, path: str | Path) -> None:
        """Write the watch to a file, without the posterior; `load_watch` goes on to the bit."""
        files.save(path, self.state_dict(), "watch")


def watch(
    posterior: Posterior,
    reference: Any,
    *,
    false_alarms: float = 0.01,
    score: Score = "loss",
    samples: int = 32,
    seed: int = 0,
) -> Watch:
    """Watch a stream for the moment when it is no longer what the posterior knows.

    Of each new example the score s_n is ranked among those of the reference, s_1 … s_m, and of the stream so far, ties
    broken by uniform numbers u_n:

        p_n = (#{i ≤ n: s_i > s_n} + u_n #{i ≤ n: s_i = s_n}) / n,    n = m + 1, m + 2, …

    If reference and stream are exchangeable, independent draws from one world for instance, these are independent and
    uniform, exactly, whatever the network and however small m (Vovk, Nouretdinov and Gammerman 2003). Ranks among the
    reference alone are not independent: all of them hang on the same few scores. Bets with ∫ f_b(p) dp = 1 on p_n,
    which may begin at any example k of the stream, then make a fair game that starts with a wealth of 1,

        M_n = 1/B Σ_b Σ_{k≤n} π_k Π_{i=k}^n f_b(p_i) + Σ_{k>n} π_k,

    f_b(p) = κ p^(κ−1) and 1 + ε(1 − 2p) for several κ and ε, or the same of 1 − p. Σ_k π_k = 1, so what is not yet bet
    waits, and by Ville's inequality P(M_n ≥ 1/α for any n, ever) ≤ α = ``false_alarms``. So it may be looked at after
    each example. Half of the bets win when scores are larger than they were, which is what a changed world mostly
    gives, half when they are smaller: inputs that have become easier, or repeat themselves.

    A stream whose neighbours resemble each other is not exchangeable, and the alarm then says that, too. When the
    posterior learns from the stream, the scores are others: make a new watch, with a reference that it has not seen.

    Args:
        posterior: What predicts. It stays as it is.
        reference: Inputs and targets from the world as it was, as for training; none of them trained on. A few hundred
            are good; so few that the plainest change might go unseen are refused. For scores without labels inputs
            alone will do; a pair is inputs and targets.
        false_alarms: The share of unchanged streams that may ever raise an alarm.
        score: ``"loss"``, −log p(y|x, D); without labels ``"epistemic"``, what the networks disagree about, or
            ``"uncertainty"``, all that is not known of y. Each is the mean over an example's targets.
        samples: Networks per prediction.
        seed: Of the networks and of u_n.

    >>> import bayesrule as br
    >>> x, y = br.data.moons(n=900, seed=0)
    >>> model = br.models.build({"name": "mlp", "inputs": 2, "outputs": 2, "hidden": [16]}, seed=0)
    >>> posterior = br.fit(model, (x[:200], y[:200]), "laplace", epochs=30)
    >>> guard = watch(posterior, (x[200:500], y[200:500]))
    >>> print(guard.update(x[500:700], y[500:700]))
    no sign of change in 200 examples
    >>> print(guard.update(x[700:], 1 - y[700:]))
    the world has changed since about example 20...: losses are larger than the reference's; false alarm in at most 1 of
    100 streams
    """
    if not 0 < false_alarms < 1:
        raise ValueError(
            f"false_alarms must be between 0 and 1, both excluded: got {false_alarms:g}; 1 of 100 streams is "
            "false_alarms=0.01"
        )
    if score not in get_args(Score):
        raise unknown("score", score, get_args(Score))
    known = scored(posterior, _reference(reference, score), score, samples, seed)
    least = least_reference(false_alarms)
    if len(known.scores) < least:
        raise ValueError(
            f"reference must hold at least {least} examples where false_alarms is {false_alarms:g}, or even the "
            f"plainest change might go unseen: got {len(known.scores)}; hold out some hundreds"
        )
    if score == "epistemic" and not known.scores.any():
        raise ValueError(
            f"score 'epistemic' needs networks that disagree: got 0 for all of the reference from {posterior!r}; take "
            "score='uncertainty', or a posterior of more than one network"
        )
    return Watch(posterior, score, samples, Martingale.start(known.scores, false_alarms, seed), known.level)


def load_watch(path: str | Path, posterior: Posterior) -> Watch:
    """Read a watch back, for the posterior that it is of: it goes on as if it had never been away, to the bit."""
    tree = files.load(path, "watch")
    if tree["posterior"] != files.digest(posterior.state()):
        raise files.FileError(f"{path}: is of another posterior; load the one it was made with, or make a new watch")
    martingale = Martingale.from_state(tree["martingale"])
    return Watch(posterior, tree["score"], tree["samples"], martingale, Level(**tree["reference"]))


def _reference(given: Any, score: Score) -> Iterator[tuple[Inputs, Tensor | None]]:
    pair = isinstance(given, tuple) and len(given) in (2, 3)
    try:
        if score == "loss" or pair or isinstance(given, Data | Dataset | DataLoader):
            return labelled(as_data(given), "reference")
        return unlabelled(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"reference must hold examples that the posterior was not trained on: {error}") from error


def labelled(data: Data, name: str) -> Iterator[tuple[Inputs, Tensor | None]]:
    """Inputs and targets, some at a time, in the user's units."""
    if data.weight is not None:
        raise ValueError(f"{name} must have no weights, since ranks do not know them: give inputs and targets alone")
    return _in_users_units(data)


def _in_users_units(data: Data) -> Iterator[tuple[Inputs, Tensor | None]]:
    for batch in data.ordered(ROWS):
        x, y = batch
        if data.scaling.inputs is not None:
            x = inputs.each(data.scaling.inputs.inverse, x)
        if data.scaling.targets is not None:
            y = data.scaling.targets.inverse(y)
        yield x, y


def unlabelled(x: Any) -> Iterator[tuple[Inputs, Tensor | None]]:
    """Inputs alone, some at a time."""
    given = as_inputs(x)
    parts = torch.split(torch.arange(inputs.length(given)), ROWS)
    return ((inputs.take(given, rows), None) for rows in parts)


def scored(
    posterior: Posterior, batches: Iterator[tuple[Inputs, Tensor | None]], score: Score, samples: int, seed: int
) -> Scored:
    """The score of each example, and the level of all: by the same networks for every batch."""
    scores, densities, epistemic, total = [], [], [], []
    for x, y in batches:
        prediction = posterior.predict(x, samples=samples, seed=seed)
        epistemic.append(_plain(prediction.epistemic))
        total.append(_plain(prediction.total))
        if y is not None:
            densities.append(_plain(prediction.log_prob(y)))
        scores.append(-densities[-1] if score == "loss" else _doubt(prediction, score, epistemic[-1]))
    share = float(np.concatenate(epistemic).mean() / max(np.concatenate(total).mean(), np.finfo(float).tiny))
    density = float(np.concatenate(densities).mean()) if densities else None
    return Scored(_rounded(_finite(np.concatenate(scores), score)), Level(density, share))


def _doubt(prediction: Prediction, score: Score, epistemic: Floats) -> Floats:
    return epistemic if score == "epistemic" else _plain(prediction.uncertainty)


def _plain(values: Tensor) -> Floats:
    found: Floats = per_example(values.detach().double()).cpu().numpy()
    return found


def _finite(scores: Floats, score: Score) -> Floats:
    bad = ~np.isfinite(scores)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"scores must be finite to be ranked: the {score} of row {row} is {scores[row]:g}; look at this example, "
            "and drop it or mend it"
        )
    return scores


def _rounded(scores: Floats) -> Floats:
    """To `BITS` of their mantissa, so that equal examples of two batches tie."""
    mantissa, exponent = np.frexp(scores)
    found: Floats = np.ldexp(np.round(mantissa * 2**BITS), exponent - BITS)
    return found
