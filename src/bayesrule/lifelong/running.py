"""Runs: a strategy over a stream, task by task, judged on all tasks after each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesrule import files, likelihoods, models, modules
from bayesrule.data import inputs
from bayesrule.evaluate import judged
from bayesrule.lifelong import streams
from bayesrule.lifelong.base import Past, Strategy
from bayesrule.lifelong.blocks import Blocks, Part
from bayesrule.lifelong.fits import Fits
from bayesrule.lifelong.memory import Memory
from bayesrule.lifelong.scores import Result
from bayesrule.lifelong.strategies import chosen
from bayesrule.lifelong.streams import Chapter, End, Examples, Stream
from bayesrule.likelihoods import Likelihood
from bayesrule.locks import held
from bayesrule.modules import outputs_of
from bayesrule.naming import to_spec
from bayesrule.posteriors import Context, Particles, Posterior
from bayesrule.seeds import mixed, untouched

KEPT = "what was learnt before is kept where the run has a directory, out="


def run(
    stream: Stream | Iterable[tuple[str, Any, Any]],
    method: str | Strategy = "kfac-laplace",
    model: nn.Module | None = None,
    *,
    epochs: int = 10,
    batch_size: int = 128,
    likelihood: str | Likelihood | None = None,
    hidden: tuple[int, ...] = (100, 100),
    seed: int = 0,
    samples: int = 16,
    out: str | Path | None = None,
    tell: Callable[[str], object] | None = None,
    progress: bool = False,
) -> Result:
    """Learn the tasks of a stream one after another, and judge what is known of each after every one of them.

    Args:
        stream: a `Stream`, or any iterable of ``(name, train, test)``, each read when those before it are learnt; see
            `br.lifelong.streams.of` for one with many heads or later classes.
        method: the name of a strategy (`br.lifelong.strategies`) or an object such as
            ``br.lifelong.Functions(points=40)``.
        model: the network before the first task, ``model(x)``, or ``model(x, task)`` of a stream with many heads; None:
            fully connected, with the layers ``hidden``.
        epochs: passes over the data of each task.
        likelihood: a name or object; None: by the targets of the first task.
        samples: networks of a posterior that predict.
        out: a directory that keeps every fit and the result after each task: the same call with it goes on where it
            was cut short, and gives the same to the bit.
        tell: called with a line after each task.
        progress: show how far each fit is, and the time that it will still take.

    >>> result = run(streams.toy(tasks=2), "finetune", epochs=2)
    >>> len(result.accuracy), result.tasks
    (2, ['stretch 1', 'stretch 2'])
    """
    stream, strategy = streams.of(stream), chosen(method)
    check_fitting(strategy, stream)
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    first = _made(stream, [])
    fresh = _network(stream, first, hidden, seed) if model is None else modules.twin(model)
    folder = None if out is None else Path(out)
    life = _Life(
        stream,
        strategy,
        fresh,
        _likelihood(likelihood, fresh, first),
        epochs,
        batch_size,
        seed,
        samples,
        folder,
        progress,
    )
    if folder is None:
        return life.learn(tell)
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        return life.learn(tell)


@dataclass(frozen=True, eq=False)
class _Life:
    """One run: fields as of `run`, ``fresh`` the network before the first task."""

    stream: Stream
    strategy: Strategy
    fresh: nn.Module
    likelihood: Likelihood
    epochs: int
    batch_size: int
    seed: int
    samples: int
    folder: Path | None
    progress: bool

    def learn(self, tell: Callable[[str], object] | None) -> Result:
        """Task after task; those whose fits and judgement the folder holds are read."""
        result = self._beginning()
        known = _stored(self.folder, result)
        past, chapters, blocks = Past(), list[Chapter](), Blocks(self.stream)
        chapter, trouble = self._read([])
        while chapter is not None:
            chapters.append(chapter)
            began = time.process_time()  # of the processor: ratios of it say something on a busy machine, too
            past = self._learnt(past, blocks.after(chapter))
            seconds = time.process_time() - began
            following, trouble = self._read(chapters)
            if following is None and trouble is None:
                past = self._learnt(past, blocks.rest())
            if known is not None and len(chapters) <= len(known.accuracy):  # judged before the run was cut short
                result = _prefix(known, len(chapters))
            else:
                self._judge(result, past, chapters, following)
                result.seconds.append(seconds)
                _store(self.folder, result)
                if tell is not None:
                    tell(f"{self._place(chapters)}: average {result.average:.4f}, {seconds:.1f} s of processor")
            chapter = following
        if trouble is not None:
            raise trouble
        return self._finished(result, past)

    def _finished(self, result: Result, past: Past) -> Result:
        result = Result(**{**result.__dict__, "finished": True})
        if self.folder is not None and past.memory.parts:
            past.memory.save(self.folder / "memory.safetensors")
        _store(self.folder, result)
        return result

    def _learnt(self, past: Past, parts: list[Part]) -> Past:
        """What is known after some more tasks, or blocks of examples."""
        for index, part in parts:
            past = self.strategy.learn(past, part, self._fits(index, part))
        return past

    def _read(self, before: list[Chapter]) -> tuple[Chapter | None, Exception | None]:
        """The next task if there is one, and what is wrong with it, which is said once what came before is stored."""
        try:
            return _made(self.stream, before), None
        except End:
            return None, None
        except (ValueError, TypeError) as error:
            return None, error

    def _place(self, chapters: list[Chapter]) -> str:
        of = "" if self.stream.count is None else f"/{self.stream.count}"
        return f"task {len(chapters)}{of}, {chapters[-1].name}"

    def _beginning(self) -> Result:
        """The result before the first task."""
        settings: dict[str, Any] = {"epochs": self.epochs, "batch_size": self.batch_size, "samples": self.samples}
        settings |= {"tasks": self.stream.count, "network": modules.signature(self.fresh)}
        if not self.stream.boundaries:
            settings["block"] = self.stream.block
        # as it comes back from a file, where tuples are lists
        about = json.loads(json.dumps(to_spec(self.strategy) | {"settings": settings}))
        return Result(self.stream.name, about, self.seed)

    def _fits(self, index: int, chapter: Chapter) -> Fits:
        folder = None if self.folder is None else self.folder / f"task-{index + 1:02}"
        seed, examples = mixed(self.seed, index), len(chapter.train[1])
        return Fits(self.fresh, self.likelihood, self.epochs, self.batch_size, seed, examples, folder, self.progress)

    def _judge(self, result: Result, past: Past, chapters: list[Chapter], following: Chapter | None) -> None:
        """One row more: all tasks so far, and the next before it is learnt."""
        if not result.first:
            result.first.append(0.0)  # of the first task, which nothing comes before
        tests = [chapter.test for chapter in chapters]
        if following is not None:
            tests.append(following.test)
            result.first.append(judged(self._untaught(following.test), following.test, 1)["accuracy"])
        posterior = past.posterior
        if posterior is None:  # a block may be longer than the first task
            posterior = self._untaught(tests[0])
        rows = [judged(posterior, test, self.samples) for test in tests]
        result.tasks.append(chapters[-1].name)
        for name in ("accuracy", "nll", "ece", "unsure"):
            getattr(result, name).append([row[name] for row in rows])
        result.bytes.append(held_bytes(past))

    def _untaught(self, test: Examples) -> Posterior:
        """The network before the first task."""
        likelihood = self.likelihood.matched(
            outputs_of(self.fresh, test[0]), test[1]
        )  # noise has no value before a fit
        return Particles.of([self.fresh], Context(self.fresh, likelihood))


def _network(stream: Stream, first: Chapter, hidden: tuple[int, ...], seed: int) -> nn.Module:
    """Fully connected layers, drawn by the seed; with many heads, one for each task."""
    x, y = first.train
    outputs = stream.classes or (y[0].numel() if y.ndim > 1 else 1)
    (_, numbers), *_ = inputs.named(x)
    width = numbers[0].numel()
    with untouched(torch.device("cpu")):
        torch.manual_seed(mixed(seed, 7))
        if stream.heads == "one":
            return models.mlp(width, outputs, hidden)
        body = nn.Sequential(models.mlp(width, hidden[-1], hidden[:-1]), nn.ReLU())
        if stream.count is None:
            raise ValueError(
                f"{stream.name} must say how many tasks it has, since each has a head: give a list of tasks, or a model"
            )
        return models.MultiHead(body, hidden[-1], stream.count, outputs)


def _likelihood(given: str | Likelihood | None, network: nn.Module, first: Chapter) -> Likelihood:
    if given is not None:
        return likelihoods.choose(given)
    x, y = first.train
    few = inputs.take(x, torch.arange(min(8, len(y))))
    with torch.no_grad():
        outputs = modules.try_call(modules.twin(network).eval(), few)
    return likelihoods.infer(outputs, y)


def check_fitting(strategy: Strategy, stream: Stream) -> None:
    """Refuse a stream that the strategy is not for."""
    if strategy.needs_boundaries and not stream.boundaries:
        raise ValueError(
            f"{stream.name} does not tell where a task ends, which {strategy.name} has to know: take 'finetune', "
            "'ewc', 'kfac-laplace', 'vcl', 'ivon', 'vogn' or 'si'"
        )
    if strategy.heads not in (None, stream.heads):
        wanted = "one head for all tasks" if strategy.heads == "one" else "a head for each task"
        raise ValueError(f"{strategy.name} is for streams with {wanted}, which {stream.name} is not")


def _made(stream: Stream, before: list[Chapter]) -> Chapter:
    """The next task of the stream, if it is like those before it; `End` if there is none."""
    index = len(before)
    if index == stream.count:
        raise End
    try:
        chapter = stream[index]
    except End:
        raise
    except Exception as error:
        announced = "" if stream.count is None else f" of {stream.count}"
        raise ValueError(
            f"task {index + 1}{announced} of {stream.name} cannot be had ({type(error).__name__}: {error}); {KEPT}"
        ) from error
    _check(chapter, before, stream)
    return chapter


def _check(chapter: Chapter, before: list[Chapter], stream: Stream) -> None:
    """Refuse inputs of another shape, and labels that were not announced."""
    first = _shapes([*before, chapter][0].train)
    for part, examples in (("train", chapter.train), ("test", chapter.test)):
        if (found := _shapes(examples)) != first:
            raise ValueError(
                f"all tasks of a stream must have inputs of one shape, but {part} of {chapter.name!r} has {found} and "
                f"the first task {first}; {KEPT}"
            )
    for part, (_, y) in (("train", chapter.train), ("test", chapter.test)):
        if stream.classes and not y.is_floating_point() and len(y) and int(y.max()) >= stream.classes:
            raise ValueError(
                f"{part} of {chapter.name!r} has the label {int(y.max())}, but the stream announced classes 0 to "
                f"{stream.classes - 1}: give it as many classes as all its tasks have together, as in "
                f"br.lifelong.streams.of(tasks, classes={int(y.max()) + 1}); {KEPT}"
            )


def _shapes(examples: Examples) -> list[list[int]]:
    return [list(part.shape[1:]) for _, part in inputs.named(examples[0])]


def held_bytes(past: Past) -> int:
    """What a strategy holds between tasks: the tensors of its posteriors, its examples, and what is known there."""
    total = past.memory.bytes + files.size(past.functions) + Memory(past.seen).bytes
    for posterior in {id(p): p for p in (past.posterior, past.belief) if p is not None}.values():
        total += files.size(posterior.state())
    return total


def _prefix(known: Result, count: int) -> Result:
    """The result as it was after so many tasks."""
    plain = asdict(known) | {"finished": False}
    for name in ("tasks", "accuracy", "nll", "ece", "unsure", "seconds", "bytes"):
        plain[name] = plain[name][:count]
    plain["first"] = plain["first"][: count + 1]
    return Result(**plain)


def _stored(folder: Path | None, like: Result) -> Result | None:
    """What the folder holds of the same run; a run of something else is refused."""
    if folder is None or not (path := folder / "result.json").is_file():
        return None
    plain = json.loads(path.read_text(encoding="utf-8"))
    plain.pop("summary", None)
    found = Result(**plain)
    if [like.stream, like.strategy, like.seed] != [found.stream, found.strategy, found.seed]:
        raise FileExistsError(
            f"{folder} holds another run ({found.stream}, {found.strategy['name']}, seed {found.seed}): give the same "
            "stream, method, settings and seed to go on with it, or choose another directory"
        )
    count = len(found.accuracy)
    if count and len(found.accuracy[-1]) == count and not found.finished:
        return _prefix(found, count - 1)  # the last task was judged before the next was there to be judged beside it
    return found


def _store(folder: Path | None, result: Result) -> None:
    if folder is not None:
        files.write_atomically(folder / "result.json", json.dumps(result.to_json(), indent=1))
