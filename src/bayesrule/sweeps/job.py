"""One training of a sweep, and where its outcome goes."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bayesrule import modules
from bayesrule.data import Batch, Data, as_data
from bayesrule.evaluate import evaluate
from bayesrule.likelihoods import Likelihood
from bayesrule.naming import to_spec
from bayesrule.priors import Prior
from bayesrule.sweeps.results import Trial
from bayesrule.sweeps.space import Candidate, Space
from bayesrule.temperatures import Temperature
from bayesrule.training import fit

if TYPE_CHECKING:
    from bayesrule.sweeps.store import Store

SAMPLES = 32  # networks that a held-out score averages over
BROKEN = (ArithmeticError, ValueError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]  # what diverging ends in


@dataclass(frozen=True, eq=False)
class SweepJob:
    """What all trials of a sweep have in common."""

    model: nn.Module
    rest: Data
    held: Batch
    space: Space
    likelihood: Likelihood | None
    prior: Prior | None
    temperature: float | Temperature | None
    epochs: int | None
    batch_size: int | None
    seed: int
    make: Callable[[int], nn.Module] | None = None
    """The model of a width, where that is searched over; ``model`` is then that of the least one."""

    def about(self, data: Data) -> dict[str, str]:
        """All that decides what a trial gives, in words, for whoever continues the sweep."""
        # Shapes and dtypes, not weights, which a user may draw anew; nor the device, which may change on the way.
        signature = json.dumps(modules.signature(self.model)).encode()
        return {
            "data": data.fingerprint(),
            "held-out data": as_data(self.held).fingerprint(),
            "model": hashlib.sha256(signature).hexdigest(),
            "method": _words(self.space.method),
            "space": _words(self.space.words()),
            "likelihood": _words(self.likelihood),
            "prior": _words(self.prior),
            "temperature": _words(self.temperature),
            "epochs": _words(self.epochs),
            "batch size": _words(self.batch_size),
            "seed": _words(self.seed),
        }

    def temperature_of(self, candidate: Candidate) -> float | Temperature | None:
        """The candidate's, if the space has one, or that of all trials."""
        return candidate.fit.get("temperature", self.temperature)

    def model_of(self, candidate: Candidate) -> nn.Module:
        """The candidate's, if it has a width of its own, on the device of the others."""
        if self.make is None:
            return self.model
        return self.make(candidate.fit["width"]).to(modules.device_of(self.model))

    def train(self, candidate: Candidate, seed: int) -> dict[str, Any]:
        """Fit and score: ``scores`` and ``seconds``, or why it ``failed``."""
        began = time.perf_counter()
        try:
            posterior = fit(
                self.model_of(candidate),
                self.rest,
                candidate.method,
                self.likelihood,
                candidate.fit.get("prior", self.prior),
                self.temperature_of(candidate),
                candidate.fit.get("epochs", self.epochs),
                self.batch_size,
                seed,
            )
            scores = dict(evaluate(posterior, tuple(self.held), samples=SAMPLES, bootstrap=0, seed=self.seed))
            if not all(map(math.isfinite, scores.values())):
                raise FloatingPointError(f"the held-out NLL is {scores['nll']}")
        except BROKEN as error:
            return {"failed": " ".join(str(error).split()), "seconds": time.perf_counter() - began}
        return {"scores": scores, "seconds": time.perf_counter() - began}

    def trials(self, store: Store, wanted: int) -> Iterator[Trial]:
        """The trials that are done, as objects."""
        for index, kept in store.done(wanted).items():
            settings = {key: kept.params[key] for key in self.space.ranges if key in kept.params}
            candidate, outcome = self.space.candidate(settings), kept.user_attrs[the_store().OUTCOME]
            nll = math.inf
            if kept.value is not None:
                nll = kept.value
            yield Trial(
                index,
                settings,
                candidate.method,
                self.temperature_of(candidate),
                candidate.assignments,
                the_store().training_seed(self.seed, index),
                nll,
                outcome.get("scores", {}),
                outcome["seconds"],
                outcome.get("failed"),
            )


@dataclass(frozen=True)
class Where:
    """How to find a study."""

    url: str | None
    name: str
    sampler: str

    @contextmanager
    def opened(self, job: SweepJob) -> Iterator[Store]:
        """The study of a job."""
        with the_store().opened(self.url, self.name, self.sampler, job.seed, job.space.ranges) as store:
            yield store


def _words(thing: Any) -> str:
    return json.dumps(to_spec(thing), default=lambda part: to_spec(part) if hasattr(part, "name") else repr(part))


def the_store() -> Any:
    """The module that needs Optuna."""
    try:
        from bayesrule.sweeps import store
    except ImportError as error:
        raise ImportError('sweeps need the package optuna: pip install "bayesrule[sweep]"') from error
    return store
