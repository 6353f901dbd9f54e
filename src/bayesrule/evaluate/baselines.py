"""What any method has to beat: the base rate, a linear model and boosting, as predictions like all others.

=========== ========================== =============================== ==========================================
name        classes                    reals                           counts
=========== ========================== =============================== ==========================================
base rate   how frequent each class is the mean, called ``mean``       the mean, called ``mean``
linear      logistic regression        ridge regression                Poisson regression
boosting    trees on gradients         the same                        the same, of the Poisson likelihood
=========== ========================== =============================== ==========================================

All are scikit-learn's as they come. Of a column that is numbers of categories they see what each tells of the target
(`sklearn.preprocessing.TargetEncoder`: means over other rows, shrunk). Those of reals give no noise: it is the
deviation of predictions of rows that they were not trained on. A training row of weight w counts as w rows.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesrule.data import Split
from bayesrule.predictions import Classes, Counts, Prediction, Reals

LEAST_ROWS = 10
"""With fewer rows there is only the base rate."""
MOST_VALUES = 20_000_000
"""Rows × inputs × classes that baselines are trained on, within a minute; of more rows a random share."""
MANY = 10_000
"""Up to so many rows noise is that of five folds, and the model of all rows; of more one fold is enough for both."""
LEAST = 1e-6
"""The least probability of a class, or rate: sure and wrong is not infinitely bad."""

Array: TypeAlias = NDArray[Any]


class Rows(NamedTuple):
    """Training examples: inputs ``[rows, inputs]``, targets, and how many times each row counts; None: once."""

    x: Array
    y: Array
    weight: Array | None

    def take(self, which: Array) -> Rows:
        """Some of the rows."""
        return Rows(self.x[which], self.y[which], None if self.weight is None else self.weight[which])


@dataclass(frozen=True, eq=False)
class Baseline:
    """A simple model that was trained: its name, how long it took, on how many rows, and its law of y at inputs."""

    name: str
    seconds: float
    rows: int
    law: Callable[[Array], Prediction]

    def predict(self, x: Tensor, samples: int = 1, seed: int = 0) -> Prediction:
        """The prediction at inputs ``x``; it is one model, so that nothing is drawn."""
        return self.law(_flat(x))


def baselines(split: Split, seed: int = 0) -> Iterator[Baseline]:
    """The baselines of a data set, trained on its training examples.

    >>> from bayesrule.data import load_set
    >>> [baseline.name for baseline in baselines(load_set("moons"))]
    ['base rate', 'linear', 'boosting']
    """
    if split.train[1].ndim != 1:  # several targets for an example: scikit-learn's models have one
        return
    rows = _some(split, seed)
    y = rows.y
    fits = {"base rate" if split.kind == "classes" else "mean": _constant}
    if len(y) >= LEAST_ROWS and len(np.unique(y)) > 1:
        fits |= {"linear": _linear, "boosting": _boosting}
    for name, fit in fits.items():
        start = time.perf_counter()
        # Threads of boosting wait for each other by spinning: where others use the cores, too, seconds become minutes.
        with warnings.catch_warnings(), one_thread():
            warnings.simplefilter("ignore")  # a baseline that has not quite converged is one still
            law = fit(rows, split, seed)
        yield Baseline(name, time.perf_counter() - start, len(y), law)


@contextmanager
def one_thread() -> Iterator[None]:
    """Within this block scikit-learn computes on one thread."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


Law: TypeAlias = Callable[[Array], Prediction]


def _constant(rows: Rows, split: Split, seed: int) -> Law:
    y, weight = rows.y, rows.weight
    if split.kind == "classes":
        counts = np.bincount(y, weight, minlength=len(split.classes))
        rates = counts / counts.sum()
        return lambda at: _classes(np.tile(rates, (len(at), 1)))
    mean = np.average(y, weights=weight)
    if split.kind == "counts":
        return lambda at: _counts(np.full(len(at), mean))
    deviation = float(np.sqrt(np.average((y - mean) ** 2, weights=weight)))
    return lambda at: _reals(np.full(len(at), mean), deviation, y)


def _linear(rows: Rows, split: Split, seed: int) -> Law:
    from sklearn.linear_model import LogisticRegression, PoissonRegressor, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    models = {
        "classes": LogisticRegression(max_iter=1000),
        "counts": PoissonRegressor(max_iter=1000),
        "reals": RidgeCV(np.logspace(-3, 4, 15)),
    }
    return _trained(make_pipeline(StandardScaler(), models[split.kind]), rows, split, seed)


def _boosting(rows: Rows, split: Split, seed: int) -> Law:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    # Stopping early would take a share of every class, and a class of one row has none.
    models = {
        "classes": HistGradientBoostingClassifier(early_stopping=False, random_state=seed),
        "counts": HistGradientBoostingRegressor(loss="poisson", early_stopping=False, random_state=seed),
        "reals": HistGradientBoostingRegressor(early_stopping=False, random_state=seed),
    }
    return _trained(models[split.kind], rows, split, seed)


def _trained(model: Any, rows: Rows, split: Split, seed: int) -> Law:
    """The law of a model of scikit-learn."""
    if split.categories:
        model = _encoded(model, split, seed)
    if split.kind == "classes":
        _fit(model, rows)
        return lambda at: _classes(_all_classes(model, at, len(split.classes)))
    if split.kind == "counts":
        _fit(model, rows)
        return lambda at: _counts(model.predict(at))
    noise = _noise(model, rows, seed)
    return lambda at: _reals(model.predict(at), noise, rows.y)


def _encoded(model: Any, split: Split, seed: int) -> Any:
    """A model that is given, in the place of a category's number, what it tells of the target."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import TargetEncoder

    kind = "auto" if split.kind == "classes" else "continuous"
    encoder = TargetEncoder(target_type=kind, random_state=seed)
    coded = slice(-len(split.categories), None)
    steps = [step for _, step in getattr(model, "steps", [("", model)])]
    return make_pipeline(ColumnTransformer([("codes", encoder, coded)], remainder="passthrough"), *steps)


def _fit(model: Any, rows: Rows) -> None:
    """Train a model of scikit-learn; in a pipeline every step that can counts the rows by their weights."""
    from sklearn.utils.validation import has_fit_parameter

    weights: dict[str, Array] = {}
    if rows.weight is not None:
        steps = [f"{name}__" for name, step in getattr(model, "steps", []) if has_fit_parameter(step, "sample_weight")]
        weights = {f"{step}sample_weight": rows.weight for step in steps or [""]}
    model.fit(rows.x, rows.y, **weights)


def _noise(model: Any, rows: Rows, seed: int) -> float:
    """Train a model of reals; the root mean square of its errors on rows that it was not trained on."""
    from sklearn.model_selection import KFold

    errors, counts = [], []
    for train, held in KFold(5, shuffle=True, random_state=seed).split(rows.x):
        _fit(model, rows.take(train))
        errors.append(rows.y[held] - model.predict(rows.x[held]))
        counts.append(np.ones(len(held)) if rows.weight is None else rows.weight[held])
        if len(rows.y) > MANY:
            break
    else:
        _fit(model, rows)
    return float(np.sqrt(np.average(np.concatenate(errors) ** 2, weights=np.concatenate(counts))))


def _all_classes(model: Any, at: Array, count: int) -> Array:
    """Probabilities of all classes, also of those that the training rows have not."""
    probs = np.zeros((len(at), count))
    probs[:, model.classes_] = model.predict_proba(at)
    return probs


def _classes(probs: Array) -> Classes:
    return Classes(torch.from_numpy(np.log(np.clip(probs, LEAST, None)))[None])  # a softmax makes the sum 1 again


def _counts(rates: Array) -> Counts:
    return Counts(torch.from_numpy(np.log(np.clip(rates, LEAST, None)))[None])


def _reals(means: Array, noise: float, y: Array) -> Reals:
    least = LEAST * float(y.std() or 1.0)  # a perfect fit has no noise, and a normal law must have some
    return Reals(torch.from_numpy(means)[None], torch.tensor(max(noise, least), dtype=torch.float64))


def _some(split: Split, seed: int) -> Rows:
    """The training examples that count, or a random share if there are very many."""
    rows = Rows(_flat(split.train[0]), split.train[1].cpu().numpy(), None)
    if rows.y.dtype.kind == "f":
        rows = rows._replace(y=rows.y.astype(np.float64))
    if split.weight is not None:
        weight = split.weight.cpu().double().numpy()
        rows = rows._replace(weight=weight).take(np.flatnonzero(weight > 0))
    each = rows.x.shape[1] * (len(split.classes) if len(split.classes) > 2 else 1)
    most = MOST_VALUES // max(each, 1)
    if len(rows.y) <= most:
        return rows
    return rows.take(np.sort(np.random.default_rng(seed).permutation(len(rows.y))[:most]))


def _flat(x: Tensor) -> Array:
    """Inputs as [rows, inputs] in double precision."""
    return x.detach().cpu().flatten(1).double().numpy()
