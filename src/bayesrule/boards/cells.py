"""A cell of the leaderboard: one method on one repetition of one board, a job of the one runner."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Literal, TypeAlias

from torch import Tensor

from bayesrule import jobs, likelihoods
from bayesrule.boards.base import AUTO, BOARDS, SAMPLES, Board, Own, network, settings
from bayesrule.data import Batch, Split, hold_out, load_set, moons
from bayesrule.data.intake import split_fingerprint
from bayesrule.evaluate import agreement, baselines, parts
from bayesrule.evaluate.score import Predictor, columns, of_columns, uncertain
from bayesrule.jobs import Answer
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Method, with_inner
from bayesrule.models import Spec, build, mlp
from bayesrule.naming import to_spec
from bayesrule.posteriors import Posterior, load
from bayesrule.report.provenance import commit
from bayesrule.training import fit

SIMULATIONS = 200  # of a calibrated prediction, behind the null of the ECE
STRANGE = 2000  # examples from elsewhere that are looked at
HELD = 0.2  # the share of the training examples that methods are chosen by

Part: TypeAlias = Literal["test", "validation"]


@dataclass(frozen=True)
class Terms:
    """What all methods have alike on a board; None: as the board has it, and a method that has its own there."""

    epochs: int | None = None
    hidden: tuple[int, ...] | None = None
    likelihood: str | Likelihood | None = None
    full: bool = False

    def epochs_on(self, board: Board) -> int | None:
        """Passes over the data: what was asked for, or else what the board has; None: as `br.fit` has it."""
        if self.epochs is not None:
            return self.epochs
        return board.epochs_in_full if self.full and board.epochs_in_full else board.epochs


@dataclass(frozen=True)
class Reference:
    """A posterior in a file that others are to agree with, on the network of the board or on one of its own."""

    path: str
    fingerprint: str
    model: dict[str, Any] | None = None


@dataclass(frozen=True)
class Cell:
    """One method on one repetition of one board.

    ``part``: what is scored, the test examples, or a fifth of the training examples, which are not trained on then.
    ``keep``: a file for the posterior, if others are to agree with it. ``own``: what the method has for itself there.
    """

    board: str
    method: str
    fields: Method
    repeat: int
    terms: Terms = Terms()
    part: Part = "test"
    reference: Reference | None = None
    keep: str | None = None
    own: Own | None = None

    @property
    def likelihood(self) -> str | Likelihood:
        """Of numbers: what all methods were asked for, or else the method's own, or else the board's."""
        own = None if self.own is None else self.own.likelihood
        return self.terms.likelihood or own or BOARDS[self.board].likelihood

    @property
    def samples(self) -> int:
        """Networks of a prediction."""
        return SAMPLES if self.own is None else self.own.samples

    @property
    def epochs(self) -> int | None:
        """Passes over the data; None: as many as `br.fit` has; chains of samplers are as their fields say."""
        if any(part.sampler for part in with_inner(self.fields)):
            return None
        return self.terms.epochs_on(BOARDS[self.board])

    def key(self, data_dir: str | None) -> dict[str, Any]:
        """All that decides the answer."""
        plain = jobs.plain(self)
        del plain["method"]  # which its fields say, too
        plain["keep"] = self.keep is not None
        board = BOARDS[self.board]
        terms = {"epochs": self.epochs, "hidden": self.terms.hidden or board.hidden, "likelihood": self.likelihood}
        about = {"terms": terms, "reference": self.reference and self.reference.fingerprint}
        return plain | about | {"data": fingerprint(self.board, self.repeat, data_dir)}


@dataclass(frozen=True)
class Simple:
    """The baselines on one repetition of one board."""

    board: str
    repeat: int

    def key(self, data_dir: str | None) -> dict[str, Any]:
        """All that decides the answer."""
        return jobs.plain(self) | {"data": fingerprint(self.board, self.repeat, data_dir)}


def ask(cell: Cell, data_dir: str | None) -> Answer:
    """Scores and seconds of processor time, or what went wrong."""
    _warm_up()
    return _answered(lambda: _measured(cell, data_dir))


def ask_simple(question: Simple, data_dir: str | None) -> Answer:
    """Scores and seconds of each baseline by its name, or what went wrong."""

    def measured() -> Answer:
        split = BOARDS[question.board].load(question.repeat, data_dir)
        strange = _strangers(BOARDS[question.board], split, data_dir)
        found = {}
        began = time.process_time()
        for baseline in baselines(split, question.repeat):
            trained = time.process_time() - began
            scores = _scores(baseline, split, strange, question.repeat)
            found[baseline.name] = {"scores": scores, "training": trained}
            began = time.process_time()
        return {"baselines": found}

    return _answered(measured)


def _answered(work: Callable[[], Answer]) -> Answer:
    """An answer with the warnings on the way; what goes wrong is an answer, too, so that the other cells go on."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            answer = work()
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}
    said = [str(warning.message) for warning in heard if issubclass(warning.category, UserWarning)]
    return answer | {"warnings": list(dict.fromkeys(said)), "commit": commit()}


def whole(answer: Answer) -> bool:
    """Whether an answer is one, and no failure: a failure is not kept, and tried again by the same command."""
    return "failed" not in answer


def told(question: Cell | Simple, answer: Answer) -> str:
    """A line about progress."""
    what = question.method if isinstance(question, Cell) else "baselines"
    part = " (validation)" if isinstance(question, Cell) and question.part == "validation" else ""
    found = f"FAILED: {answer['failed']}" if "failed" in answer else "done"
    if "scores" in answer:
        found = f"NLL {answer['scores']['nll']:.4f}"
    return f"{question.board} {what}, repetition {question.repeat}{part}: {found}"


def protocol(name: str, repeat: int, terms: Terms, data_dir: str | None, methods: Collection[str] = ()) -> str:
    """What all methods have alike on a board, and what some have for themselves, in words."""
    board = BOARDS[name]
    split = board.load(repeat, data_dir)
    spec = board.spec(split, likelihoods.usual(split.kind), terms.hidden)
    epochs = terms.epochs_on(board)
    what = split.what.removesuffix(f", split {repeat}")
    if board.splits:
        what = f"{len(split.train[1])} rows to train on, {what}"
    words = [what, f"network {network(spec)}", f"{epochs} epochs" if epochs else "as long as br.fit trains"]
    if board.augment:
        words.append(" and ".join(board.augment))
    if split.kind != "classes":
        words.append(_noise(terms.likelihood or board.likelihood))
    return "; ".join([*words, *(f"{method}: {own}" for method, own in board.own.items() if method in methods)])


def _noise(likelihood: str | Likelihood) -> str:
    if likelihood == AUTO:
        return "the noise that training rows prefer"
    chosen = likelihoods.choose(likelihood)
    return f"noise {chosen.name} {settings(chosen)}".strip()


@cache
def fingerprint(board: str, repeat: int, data_dir: str | None) -> str:
    """Of all examples of a repetition: cells of other files by the same name are not taken for it."""
    return split_fingerprint(BOARDS[board].load(repeat, data_dir))


def _measured(cell: Cell, data_dir: str | None) -> Answer:
    board = BOARDS[cell.board]
    split = board.load(cell.repeat, data_dir)
    if cell.part == "validation":
        split = _without_test(split, cell.repeat)
    likelihood = _likelihood(split, cell)
    spec = board.spec(split, likelihood, cell.terms.hidden, cell.own)
    began = time.process_time()
    posterior = _fitted(board, cell, split, spec, likelihood)
    trained = time.process_time()
    posterior.predict(split.test[0], samples=cell.samples, seed=cell.repeat)
    seconds = {"training": trained - began, "prediction": time.process_time() - trained}
    if cell.keep is not None:
        posterior.save(cell.keep)
    scores = _scores(posterior, split, _strangers(board, split, data_dir), cell.repeat, cell.samples)
    if cell.reference is not None:
        other = load(cell.reference.path, build(cell.reference.model or spec))
        scores |= dict(agreement(posterior, other, split.test[0], bootstrap=0, seed=cell.repeat))
    return {"scores": scores, **seconds, "likelihood": likelihood.name, "network": spec, "method": to_spec(cell.fields)}


def _fitted(board: Board, cell: Cell, split: Split, spec: Spec, likelihood: Likelihood) -> Posterior:
    """All methods have the same data, epochs and seed, and but for their own the same network and likelihood."""
    train: Any = likelihood.standardized(split.train) if board.standardized else split.train
    return fit(
        build(spec, cell.repeat),
        train,
        cell.fields,
        likelihood,
        prior=None if cell.own is None else cell.own.prior,
        epochs=cell.epochs,
        seed=cell.repeat,
        augment=board.augment or None,
    )


def _likelihood(split: Split, cell: Cell) -> Likelihood:
    """The usual one of classes; of numbers the one that was asked for, or that training rows prefer."""
    if split.kind == "classes":
        return likelihoods.usual(split.kind)
    if cell.likelihood == AUTO:
        return likelihoods.choose(likelihoods.best(split.train, cell.repeat, split.kind).name)
    return likelihoods.choose(cell.likelihood)


def _without_test(split: Split, seed: int) -> Split:
    """A fifth of the training examples in the place of the test examples, which nobody sees."""
    x, y = split.train
    train, held = hold_out(y, HELD, seed)
    return replace(split, training=(x[train], y[train]), test=(x[held], y[held]), ood=None)


def _strangers(board: Board, split: Split, data_dir: str | None) -> dict[str, Tensor]:
    """Inputs from elsewhere by the name of their score, as far as their files are there."""
    if split.ood is None:
        return {}
    found = {"auroc_ood": split.ood[:STRANGE]}
    for name in board.strangers:
        with suppress(FileNotFoundError):
            found[f"auroc_{name}"] = load_set(name, data_dir).test[0][:STRANGE]
    return found


def _scores(
    one: Predictor, split: Split, strange: dict[str, Tensor], seed: int, samples: int = SAMPLES
) -> dict[str, float]:
    """On the test examples, the ECE with its null, and how well each kind of strangers is told."""
    home = columns(one, parts.of_batch(Batch(*split.test), samples), samples, seed)
    scores = of_columns(home, None, SIMULATIONS, seed)
    found = dict(scores)
    if "ece" in scores.nulls:
        found["ece_null"] = scores.null("ece").mean
    for name, inputs in strange.items():
        outside = uncertain(one, parts.of_inputs(inputs, samples, split.test[1][:1].numel()), samples, seed)
        found[name] = of_columns(home, outside, 0, seed)["auroc_ood"]
    return found


@lru_cache(maxsize=1)
def _warm_up() -> None:
    """The first fit of a process loads much of torch, which would count as time of the first method."""
    fit(mlp(2, 2, hidden=(2,)), moons(20), "map", epochs=1)
