"""What both experiments of this folder share: networks of digits by several methods, each fitted once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bayesrule.data import Split, load_set
from bayesrule.experiments.base import Setting
from bayesrule.experiments.findings import seeds
from bayesrule.methods import IVON, MAP, SWAG, Ensemble, Laplace, MCDropout, Method
from bayesrule.models import build, default_for
from bayesrule.posteriors import Posterior
from bayesrule.training import fit

METHODS: dict[str, Method] = {
    "map": MAP(),
    "ensemble": Ensemble(),
    "mc-dropout": MCDropout(),
    "swag": SWAG(),
    "laplace": Laplace(),
    "ivon": IVON(),
}
SINGLE = tuple(name for name in METHODS if name not in ("map", "ensemble"))
LENGTHS = {False: ("digits", 40), True: ("mnist", 3)}  # data and epochs
TESTED, SAMPLES = 2000, 16


@dataclass(frozen=True)
class Question:
    """One fit with the defaults of `br.fit`."""

    data: str
    method: str
    epochs: int
    seed: int


def questions(setting: Setting) -> list[Question]:
    """A fit by each method and seed."""
    data, epochs = LENGTHS[setting.full]
    return [Question(data, method, epochs, seed) for seed in seeds(setting) for method in METHODS]


def fitted(question: Question, data_dir: str | None) -> tuple[Posterior, Split]:
    """The data's default network, pixels as they are."""
    split = load_set(question.data, data_dir, seed=question.seed if question.data == "digits" else 0)
    model = build(default_for(split), question.seed)
    method, epochs, seed = METHODS[question.method], question.epochs, question.seed
    return fit(model, split.train, method, epochs=epochs, seed=seed), split


def told(question: Question, answer: dict[str, Any]) -> str:
    """A line about progress."""
    return f"{question.data} {question.method} (seed {question.seed}): accuracy {answer['accuracy']:.4f}"
