"""How rounds of questions go, and how each is learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from bayesrule import naming
from bayesrule.active.pools import Pool
from bayesrule.likelihoods import Likelihood
from bayesrule.priors import Prior
from bayesrule.temperatures import Tempering


@dataclass(frozen=True)
class Settings:
    """How rounds go, and how each is learnt.

    Args:
        start: how many rows to begin with, drawn at random, or which ones.
        batch: rows of a question.
        budget: labels in all, those to begin with included.
        balanced: begin with all classes alike, which has to know the labels.
        warm: each round goes on from the network of the last; else all begin with the same one.
        candidates: of how many rows, drawn anew in each round, to choose; None: all.
        samples: networks that are drawn to choose by.
        test_samples: networks that predict test examples.
        likelihood, prior, temperature, epochs, batch_size, val: as for `br.fit`. Numbers are shifted and scaled by the
            labels that are known.
        seed: of all that is random.
    """

    start: int | tuple[int, ...] = 20
    batch: int = 10
    budget: int = 100
    balanced: bool = False
    warm: bool = False
    candidates: int | None = None
    samples: int = 100
    test_samples: int = 32
    likelihood: str | Likelihood | None = None
    prior: str | float | Prior | None = None
    temperature: Tempering | None = None
    epochs: int | None = None
    batch_size: int | None = None
    val: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.start, int):
            object.__setattr__(self, "start", tuple(int(row) for row in self.start))
        for name in ("batch", "budget", "samples", "test_samples", "candidates", "start"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.candidates is not None and self.candidates < self.batch:
            raise ValueError(f"candidates must be at least the batch of {self.batch}, not {self.candidates}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """From arguments by name; one that does not exist is refused, with the nearest that does."""
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise naming.unknown("argument", name, names)
        return cls(**given)

    def fit(self) -> dict[str, Any]:
        """Arguments of `br.fit`."""
        return {name: getattr(self, name) for name in ("prior", "temperature", "epochs", "batch_size", "val")}

    def check(self, pool: Pool) -> None:
        """Refuse what a pool does not have."""
        if self.budget > len(pool):
            raise ValueError(f"budget must be at most the {len(pool)} rows of the pool, got {self.budget}")
        start = self.start if isinstance(self.start, int) else len(self.start)
        if not len(pool.known) and start > self.budget:
            raise ValueError(f"start must be at most the budget of {self.budget} labels, got {start}")
        if not isinstance(self.start, int):
            within = all(0 <= row < len(pool) for row in self.start)
            if not within or len(set(self.start)) < start or not start:
                raise ValueError(
                    f"start must be different rows from 0 to {len(pool) - 1}, at least one, got {self.start!r:.60}"
                )
        if self.balanced and (pool.labels is None or pool.kind != "classes"):
            raise ValueError("balanced must be of a pool whose labels are classes and known: leave it out")
