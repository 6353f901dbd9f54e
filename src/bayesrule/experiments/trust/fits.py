"""What the experiments of this folder share: networks of pictures by several methods, each fitted once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bayesrule.data import Split, augmentations, load_set, standardize
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


STANDARDIZED = ("cifar10",)  # of these the network sees standardised pixels, of others pixels as they are


@dataclass(frozen=True)
class Question:
    """One fit with the defaults of `br.fit`. ``augment``: how pictures change while training, names with commas."""

    data: str
    method: str
    epochs: int
    seed: int
    augment: str | None = None


def questions(setting: Setting) -> list[Question]:
    """A fit by each method and seed."""
    data, epochs = LENGTHS[setting.full]
    return [Question(data, method, epochs, seed) for seed in seeds(setting) for method in METHODS]


def fitted(question: Question, data_dir: str | None) -> tuple[Posterior, Split]:
    """The data's default network."""
    split = load_set(question.data, data_dir, seed=question.seed if question.data == "digits" else 0)
    model = build(default_for(split), question.seed)
    method, epochs, seed = METHODS[question.method], question.epochs, question.seed
    train: Any = standardize(split.train, "keep") if question.data in STANDARDIZED else split.train
    augment = augmentations.choose(question.augment, split.image_shape)
    return fit(model, train, method, epochs=epochs, seed=seed, augment=augment or None), split


def told(question: Question, answer: dict[str, Any]) -> str:
    """A line about progress."""
    changed = f" with {question.augment}" if question.augment else ""
    return f"{question.data} {question.method}{changed} (seed {question.seed}): accuracy {answer['accuracy']:.4f}"
