"""At which learning rates does a fit learn? One short run with a rate that rises tells."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import nn

from bayesrule import methods, seeds
from bayesrule.data import Batch
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import GradientLearner, Method, Noise, Plan, Trained
from bayesrule.optim import Ramp
from bayesrule.priors import Prior
from bayesrule.task import Task
from bayesrule.training.settings import default_batch_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW = 10  # steps that a moving average of the loss is over
BROKEN = 3.0  # the run ends where the loss has risen by this many times what it had fallen
Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RangeTest:
    """The rates of a range test, the mean −log p(y|f) about each, and the rate to start from.

    ``suggestion`` is where the loss falls fastest; `low` and `high` are where it starts to fall and where it is least,
    bounds for a cyclic schedule.
    """

    lr: tuple[float, ...]
    loss: tuple[float, ...]
    suggestion: float
    low: float
    high: float

    def draw(self, axes: Axes) -> None:
        """The loss over the rate, with what is suggested."""
        axes.plot(self.lr, self.loss)
        axes.axvspan(self.low, self.high, alpha=0.15, label="the loss falls")
        axes.axvline(self.suggestion, linestyle="--", label=f"suggestion {self.suggestion:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axes.legend()

    def save(self, path: str | Path) -> None:
        """The picture as a file."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3.2), layout="constrained")
        self.draw(figure.add_subplot())
        figure.savefig(path, dpi=150)


def range_test(
    model: nn.Module,
    train: Any,
    method: str | Method = "bbb",
    likelihood: str | Likelihood | None = None,
    prior: str | float | Prior | None = None,
    *,
    low: float = 1e-5,
    high: float = 10.0,
    steps: int = 200,
    batch_size: int | None = None,
    seed: int = 0,
) -> RangeTest:
    """Train for a few steps while the learning rate rises from ``low`` to ``high`` (Smith 2017).

    Methods that go by gradients can be tested: map, mle, bbb. The rates of several groups rise together, at the
    ratios that they have in the method.

    >>> import torch
    >>> X = torch.linspace(-1, 1, 64)[:, None]
    >>> test = range_test(nn.Linear(1, 1), (X, 2 * X[:, 0]), method="map", likelihood="gaussian")
    >>> 1e-3 < test.suggestion < 10
    True
    """
    if not 0 < low < high < math.inf:
        raise ValueError(f"low and high must be rates, 0 < low < high, not {low} and {high}")
    if steps < 2 * WINDOW:
        raise ValueError(f"steps must be at least {2 * WINDOW}, not {steps}")
    task = Task.create(model, train, likelihood, prior)
    if task.data.weight is not None:
        methods.check_weighted(methods.choose(method))
    if batch_size is None:
        batch_size = default_batch_size(task.data.n)
    plan = Plan(1, steps, batch_size)
    noise = Noise.on(task.device)
    with seeds.untouched(task.device):
        noise.seed(shared=seed, own=seed)
        learner = methods.choose(method).start(task, plan, noise)
        if not isinstance(learner, GradientLearner):
            raise ValueError(f"method must go by gradients, as map, mle and bbb do, not {methods.choose(method).name}")
        learner.trained = _rising(learner, low, high)
        losses = list(_losses(learner, islice(_batches(task, plan.batch_size, seed), steps)))
    lr, ramp = learner.trained[0].lr, learner.trained[0].schedule
    rates = [lr * ramp((step + 0.5) / steps) for step in range(len(losses))]
    return _read(np.array(rates), np.array(losses))


def _rising(learner: GradientLearner, low: float, high: float) -> list[Trained]:
    """All groups at rising rates, but for the unknowns of the likelihood, which are the last."""
    factor = high / learner.trained[0].lr
    weights = len(learner.trained) - bool(learner.unknowns)
    rising = [
        each._replace(lr=factor * each.lr, schedule=Ramp(low / high), reach=None) for each in learner.trained[:weights]
    ]
    return rising + learner.trained[weights:]


def _batches(task: Task, size: int, seed: int) -> Iterator[Batch]:
    for epoch in count():
        yield from task.batches(size, seed + epoch)


def _losses(learner: GradientLearner, batches: Iterator[Batch]) -> Iterator[float]:
    """The loss of each step, until it breaks."""
    recent: list[float] = []
    first, best = math.nan, math.inf
    for batch in batches:
        try:
            loss = float(learner.step(batch)["nll"])
        except (FloatingPointError, ValueError):
            return
        recent = [*recent, loss][-WINDOW:]
        level = sum(recent) / len(recent)
        if len(recent) == WINDOW:
            if math.isnan(first):
                first = level
            best = min(best, level)
            if level - best > BROKEN * max(first - best, 0.1 * abs(first)):
                return
        if not math.isfinite(level):
            return
        yield loss


def _read(rates: Array, losses: Array) -> RangeTest:
    """Where the loss, as a moving average, falls, and where it falls fastest."""
    if len(losses) < 2 * WINDOW:
        raise ValueError(f"the loss broke after {len(losses)} steps, at the lowest rates: take a smaller low")
    window = np.full(WINDOW, 1 / WINDOW)
    rates, losses = np.exp(np.convolve(np.log(rates), window, "valid")), np.convolve(losses, window, "valid")
    least = int(losses.argmin())
    drop = losses[0] - losses[least]
    if drop <= 0:
        raise ValueError("the loss fell at no rate: take other bounds than low and high, or more steps")
    start = int(np.flatnonzero(losses[: least + 1] > losses[0] - 0.1 * drop)[-1])
    slope = np.gradient(losses, np.log(rates))[start : least + 1]
    return RangeTest(
        tuple(rates.tolist()),
        tuple(losses.tolist()),
        suggestion=float(rates[start + int(slope.argmin())]),
        low=float(rates[start]),
        high=float(rates[least]),
    )
