"""Many trainings that differ in a thing or two, side by side, each kept when it is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from statistics import mean, stdev
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesrule import jobs
from bayesrule.data import Arrays, Split, load_set, standardize
from bayesrule.evaluate import evaluate
from bayesrule.experiments.base import Setting
from bayesrule.methods import Method
from bayesrule.models import Spec, build, default_for
from bayesrule.posteriors import Posterior
from bayesrule.priors import Prior
from bayesrule.training import fit

SAMPLES = 16  # networks that a test score averages over
TESTED = 5000  # test examples that a score looks at

Look: TypeAlias = Callable[[Posterior, Split], dict[str, Any]]  # plain values; a module's own function, known by name


@dataclass(frozen=True)
class Training:
    """One training: ``what`` names it in a figure; the data's default network, or a fully connected one if ``hidden``.

    The prior is Kaiming's and the batches have 100 examples, as in Book (2020). ``held``: the share of the training
    examples that are kept apart, to choose by. ``look``: what else to see.
    """

    what: str
    data: str
    method: Method
    epochs: int
    seed: int
    prior: str | Prior = "kaiming"
    temperature: float = 1.0
    batch_size: int = 100
    hidden: tuple[int, ...] | None = None
    held: float = 0.0
    look: Look | None = None
    device: str = "cpu"

    def key(self) -> dict[str, Any]:
        """All that decides what this training gives, whatever it is called."""
        plain = jobs.plain(self)
        del plain["what"]
        return plain


@dataclass(frozen=True)
class Outcome:
    """What a training gave: test scores, the mean logs of each epoch, and why it broke off, if it did.

    ``loss`` is the last epoch's nll + divergence, or the nll alone of a method that tells no divergence; ``held``: the
    accuracy on what was kept apart; ``seen``: by ``look``. One that broke off has chance's accuracy.
    """

    what: str
    data: str
    seed: int
    accuracy: float
    nll: float
    ece: float
    loss: float
    divergence: float
    history: list[dict[str, float]]
    failed: str | None = None
    held: float | None = None
    seen: dict[str, Any] = field(default_factory=dict)


def run(asked: Sequence[Training], setting: Setting) -> list[Outcome]:
    """All trainings in the order of ``asked``, in as many processes and on the device that the setting says."""
    asked = [replace(training, device=setting.device) for training in asked]
    answers = setting.answers(train, asked, Training.key, _said)
    outcomes = []
    for training, answer in zip(asked, answers, strict=True):
        outcomes.append(Outcome(**{**answer, "what": training.what}))  # the cache may know it by another name
    return outcomes


def train(training: Training, data_dir: str | None) -> dict[str, Any]:
    """Fit and score: a `Outcome` as plain data."""
    return asdict(_trained(training, data_dir))


def _said(training: Training, answer: dict[str, Any]) -> str:
    outcome = answer["failed"] or f"accuracy {answer['accuracy']:.4f}, loss {answer['loss']:.4f}"
    return f"{training.data} {training.what} (seed {training.seed}): {outcome}"


def _trained(training: Training, data_dir: str | None) -> Outcome:
    split, data, held = _data(training.data, data_dir, training.held)
    try:
        posterior = fit(
            build(_spec(split, training.hidden), training.seed, training.device),
            data,
            training.method,
            prior=training.prior,
            temperature=training.temperature,
            epochs=training.epochs,
            batch_size=training.batch_size,
            seed=training.seed,
            val=0,
        )
        scores = evaluate(posterior, tuple(part[:TESTED] for part in split.test), samples=SAMPLES)
    except (FloatingPointError, ValueError) as error:
        if isinstance(error, ValueError) and "NaN" not in str(error):
            raise
        classes = len(split.classes)
        chance = 1 / classes, math.log(classes), 0.0, math.inf, math.inf
        return Outcome(training.what, training.data, training.seed, *chance, history=[], failed=str(error))
    last = posterior.info["history"][-1]
    held_accuracy = None
    if held is not None:
        held_accuracy = float(evaluate(posterior, held, samples=SAMPLES, bootstrap=0)["accuracy"])
    seen = {}
    if training.look is not None:
        seen = training.look(posterior, split)
    return Outcome(
        training.what,
        training.data,
        training.seed,
        accuracy=float(scores["accuracy"]),
        nll=float(scores["nll"]),
        ece=float(scores["ece"]),
        loss=last["nll"] + last["penalty"] if "nll" in last else last["loss"],
        divergence=last.get("penalty", math.nan),
        history=posterior.info["history"],
        held=held_accuracy,
        seen=seen,
    )


@cache
def _data(name: str, data_dir: str | None, held: float) -> tuple[Split, Arrays, tuple[Tensor, ...] | None]:
    """The split, what to train on, and a share of the training examples that is kept apart, always the same."""
    split = load_set(name, data_dir)
    if not held:
        return split, standardize(split.train), None
    rows = torch.randperm(len(split.train[0]), generator=torch.Generator().manual_seed(0))
    count = round(held * len(rows))
    apart, kept = rows[:count], rows[count:]
    x, y = split.train
    return split, standardize((x[kept], y[kept])), (x[apart], y[apart])


def _spec(split: Split, hidden: tuple[int, ...] | None) -> Spec:
    spec = default_for(split)
    if hidden is None:
        return spec
    inputs = math.prod(split.test[0].shape[1:])
    return {"name": "mlp", "inputs": inputs, "outputs": spec["outputs"], "hidden": list(hidden)}


def average(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; the error of one value is not known, nor of infinite ones.

    >>> average([1.0, 3.0])
    (2.0, 1.0)
    """
    error = math.nan
    if len(values) > 1 and all(map(math.isfinite, values)):
        error = stdev(values) / math.sqrt(len(values))
    return mean(values), error


def said(values: Sequence[float], digits: int = 4) -> str:
    """A mean and its standard error in words."""
    centre, error = average(values)
    if math.isnan(error):
        return f"{centre:.{digits}f}"
    return f"{centre:.{digits}f} ± {error:.{digits}f}"
