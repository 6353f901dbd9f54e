"""Fine-tuning by adapters of low rank, and a language model: AdamW beside IVON and Laplace's method.

A small transformer learns the next word of the package's own docstrings, by AdamW and by IVON. Then the one that AdamW
has trained is frozen, and adapters (LoRA) and a head learn which folder a docstring is from, of 300 that are labelled.
Settings were chosen on the docstrings of Python's standard library, `TUNED_ON`, by one seed that is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from matplotlib.figure import Figure
from torch.optim import Optimizer

from bayesrule.data import Batch
from bayesrule.evaluate import evaluate
from bayesrule.experiments import trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.findings import differences, seeds, with_answers
from bayesrule.experiments.large.training import Recipe, adamw, ivon, train
from bayesrule.experiments.large.transformer import LanguageModel, adapted, fresh
from bayesrule.experiments.large.words import ROOMS, Words, words
from bayesrule.likelihoods import Tokens
from bayesrule.methods import Laplace
from bayesrule.optim import IVON
from bayesrule.posteriors import Posterior
from bayesrule.training import fit

TUNED_ON = "python"
SEQUENCES, TESTED, SAMPLES = (
    600,
    500,
    16,
)  # of running text that is learnt from, and tested on; networks of a prediction
KEPT = 0.01  # accuracy that a method may lose
SHEN, YANG = "Shen et al. 2024", "Yang et al. 2024"
NEXT_WORD = Tokens(shift=1)
# Of each method the setting with the lowest NLL on `TUNED_ON`, which is not judged: of the language model among six of
# AdamW and five of IVON, of adapters among two of AdamW, six of IVON and four of Laplace's method.
LANGUAGE = {
    "adamw": Recipe(steps=500, batch=32, lr=3e-3, weight_decay=1.0),
    "ivon": Recipe(steps=500, batch=32, lr=0.2, weight_decay=1e-4, beta=0.995),
}
ADAPTERS = {
    "adamw": Recipe(steps=300, batch=32, lr=3e-3, weight_decay=0.01),
    "ivon": Recipe(steps=300, batch=32, lr=0.2, weight_decay=3e-3, beta=0.99, std=0.05),
}
FULL = 4  # times as many steps


@dataclass(frozen=True)
class Question:
    """All trainings of one seed."""

    source: str
    seed: int
    full: bool


def run(setting: Setting) -> Result:
    """Three seeds of splits, starts and batches."""
    asked = [Question("package", seed, setting.full) for seed in seeds(setting)]
    answers = setting.answers(answer, asked, say=_told)
    found = with_answers(asked, answers)
    claims = (_language(found), *(_adapters(found, name) for name in ("ivon", "laplace")))
    return Result(claims, {"runs": found}, lambda figure: _draw(figure, found), (8.0, 4.5))


def answer(question: Question, data_dir: str | None = None) -> dict[str, Any]:
    """Scores of each method on the text and on the task."""
    texts = words(question.source, question.seed)
    models, language = _language_models(texts, question)
    return {"language": language, "adapters": _adapted(texts, models["adamw"], question)}


def _language_models(texts: Words, question: Question) -> tuple[dict[str, LanguageModel], dict[str, Any]]:
    """Models of running text from the same start, and their scores."""
    known, asked = (Batch(ids, ids) for ids in (texts.train[:SEQUENCES], texts.test[:TESTED]))
    count = known.y[:, 1:].numel()  # the loss is a mean over words: N counts them
    models, scores = {}, {}
    for name, recipe in LANGUAGE.items():
        model = models[name] = fresh(question.seed)
        optimizer = _trained(model, known, name, recipe, count, question)
        scores[name] = _scores(_posterior(model, optimizer, known, NEXT_WORD), asked)
    return models, scores


def _adapted(texts: Words, base: LanguageModel, question: Question) -> dict[str, Any]:
    """Scores of adapters on one frozen model, by each method; Laplace's method takes those of AdamW."""
    scores = {}
    for name, recipe in ADAPTERS.items():
        model = fresh(question.seed)
        model.load_state_dict(base.state_dict())
        classifier = adapted(model, ROOMS, question.seed)
        optimizer = _trained(classifier, texts.labelled, name, recipe, len(texts.labelled.y), question)
        scores[name] = _scores(_posterior(classifier, optimizer, texts.labelled, "categorical"), texts.asked)
        if name == "adamw":
            method = Laplace("all", "kronecker", tune="evidence")
            posterior = fit(classifier, texts.labelled, method, "categorical", prior=1.0, epochs=0)
            scores["laplace"] = _scores(posterior, texts.asked)
    return scores


def _trained(
    model: torch.nn.Module, data: Batch, name: str, recipe: Recipe, count: int, question: Question
) -> Optimizer:
    """Train in place; ``count`` is N."""
    if question.full:
        recipe = recipe.longer(FULL)
    optimizer = (ivon if name == "ivon" else adamw)(model, recipe, count)
    train(model, data, optimizer, recipe, question.seed)
    return optimizer


def _posterior(model: torch.nn.Module, optimizer: Optimizer, data: Batch, likelihood: str | Tokens) -> Posterior:
    """What the optimiser has learnt: IVON's Gaussian, or the network as it is."""
    if isinstance(optimizer, IVON):
        return optimizer.to_posterior(model, likelihood)
    return fit(model, data, "mle", likelihood, epochs=0)


def _scores(posterior: Posterior, asked: Batch) -> dict[str, float]:
    found = evaluate(posterior, asked, samples=SAMPLES, bootstrap=0)
    return {name: float(found[name]) for name in ("nll", "ece", "accuracy")}


def _told(question: Question, answer: dict[str, Any]) -> str:
    return f"{question.source} (seed {question.seed}): {answer}"


def _values(found: Sequence[dict[str, Any]], task: str, method: str, score: str) -> list[float]:
    return [run[task][method][score] for run in found]


def _said(found: Sequence[dict[str, Any]], task: str, methods: Sequence[str]) -> str:
    parts = []
    for name in methods:
        means = [trials.average(_values(found, task, name, score))[0] for score in ("nll", "ece", "accuracy")]
        parts.append(f"{name} NLL {means[0]:.4f}, ECE {means[1]:.4f}, accuracy {means[2]:.4f}")
    return "; ".join(parts)


def _mean_gain(found: Sequence[dict[str, Any]], task: str, method: str, score: str) -> float:
    """By how much a score of AdamW is above that of a method, on average over seeds."""
    gains = differences(_values(found, task, "adamw", score), _values(found, task, method, score))
    return trials.average(gains)[0]


def _language(found: Sequence[dict[str, Any]]) -> Claim:
    gains = [_mean_gain(found, "language", "ivon", score) for score in ("nll", "ece")]
    return Claim(
        SHEN,
        "a language model by IVON has no higher perplexity than by AdamW, and a lower ECE: means of three seeds",
        _said(found, "language", ("adamw", "ivon")),
        gains[0] >= 0 and gains[1] > 0,
    )


def _adapters(found: Sequence[dict[str, Any]], method: str) -> Claim:
    gains = [_mean_gain(found, "adapters", method, score) for score in ("nll", "ece")]
    lost = _mean_gain(found, "adapters", method, "accuracy")
    return Claim(
        SHEN if method == "ivon" else YANG,
        f"adapters by {method} have lower NLL and ECE than by AdamW, and keep the accuracy within a point: means of "
        "three seeds",
        _said(found, "adapters", ("adamw", method)),
        min(gains) > 0 and lost <= KEPT,
    )


def _draw(figure: Figure, found: Sequence[dict[str, Any]]) -> None:
    shown = product(("language", "adapters"), ("nll", "ece"))
    for ax, (task, score) in zip(panels(figure, 4, rows=2), shown, strict=True):
        for place, method in enumerate(found[0][task]):
            values = _values(found, task, method, score)
            ax.plot([place] * len(values), values, "o", alpha=0.7)
        ax.set_xticks(range(len(found[0][task])), list(found[0][task]))
        ax.set(title=f"{task}: {score}")
