"""What a posterior promises of its predictions, calibrated on data that it has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bayesrule.data import Batch, as_data
from bayesrule.files import Tree
from bayesrule.predictions import Conformal, Selective, calibrate, needed, needed_answers, select

if TYPE_CHECKING:
    from bayesrule.posteriors.base import Posterior


@dataclass(frozen=True, eq=False)
class Guarantees:
    """The promises of a posterior: sets or intervals that hold the truth, and answers that are rarely wrong.

    They are of its predictions as they were, so that a posterior with another likelihood or in other units has none.
    """

    conformal: Conformal | None = None
    selective: Selective | None = None

    def __iter__(self) -> Iterator[Conformal | Selective]:
        """The promises that there are."""
        return (promise for promise in (self.conformal, self.selective) if promise is not None)

    def state(self) -> Tree:
        """For a file: no example that they were calibrated on is in it."""
        promises = {"conformal": self.conformal, "selective": self.selective}
        return {name: promise.state() for name, promise in promises.items() if promise is not None}

    @classmethod
    def from_state(cls, state: Tree) -> Guarantees:
        """Undo `state`."""
        if stray := set(state) - {"conformal", "selective"}:
            raise ValueError(f"it promises what is not known: {', '.join(sorted(stray))}")
        conformal, selective = state.get("conformal"), state.get("selective")
        return cls(
            None if conformal is None else Conformal.from_state(conformal),
            None if selective is None else Selective.from_state(selective),
        )


def conformal(
    posterior: Posterior, held: Any, level: float, groups: Any, score: str, samples: int, seed: int
) -> Conformal:
    """The thresholds of a posterior's predictions of held-out data."""
    needed(level)  # an error now if it is no share
    x, y = _unseen(posterior, held)
    prediction = posterior.predict(x, samples=samples, seed=seed)
    return replace(calibrate(prediction, y, level, groups, score, seed), samples=samples)


def selective(posterior: Posterior, held: Any, error: float, confidence: float, samples: int, seed: int) -> Selective:
    """The threshold of doubt of a posterior's answers to held-out data."""
    needed_answers(error, confidence)  # an error now if either is no share
    x, y = _unseen(posterior, held)
    found = select(posterior.predict(x, samples=samples, seed=seed), y, error, confidence)
    return replace(found, samples=samples, seed=seed)


def _unseen(posterior: Posterior, held: Any) -> Batch:
    """Held-out data in the user's units, or an error if the posterior was fitted to them and tells so."""
    data = as_data(held)
    if data.weight is not None:
        raise ValueError("guarantees do not know weights of examples: give held=(X, y)")
    for part, name in (("data", "trained on"), ("val", "fitted with, as val")):
        known = posterior.info.get(part)
        if known is None:
            continue
        # in their own units, and in those that the fit had made of them
        if known in (data.fingerprint(), data.scaled(posterior.context.scaling).fingerprint()):
            raise ValueError(
                f"held must be data that the posterior has not seen: these are the very examples that it was {name}, "
                "where predictions look better than they are; give others"
            )
    return data.raw()
