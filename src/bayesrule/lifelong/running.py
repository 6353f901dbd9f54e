"""Runs: a strategy over a stream, task by task, judged on all tasks after each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesrule import files, likelihoods, models, modules
from bayesrule.data import inputs
from bayesrule.evaluate import judged
from bayesrule.lifelong import streams
from bayesrule.lifelong.fits import Fits
from bayesrule.lifelong.memory import Memory
from bayesrule.lifelong.scores import Result
from bayesrule.lifelong.strategies import Past, Strategy, chosen
from bayesrule.lifelong.streams import Chapter, Examples, Stream
from bayesrule.likelihoods import Likelihood
from bayesrule.locks import held
from bayesrule.modules import outputs_of
from bayesrule.naming import to_spec
from bayesrule.posteriors import Context, Particles
from bayesrule.seeds import mixed, untouched


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
) -> Result:
    """Learn the tasks of a stream one after another, and judge what is known of each after every one of them.

    Args:
        stream: a `Stream`, or any iterable of ``(name, train, test)``.
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

    >>> result = run(streams.toy(tasks=2), "finetune", epochs=2)
    >>> len(result.accuracy), result.tasks
    (2, ['stretch 1', 'stretch 2'])
    """
    stream, strategy = streams.of(stream), chosen(method)
    if strategy.needs_boundaries and not stream.boundaries:
        raise ValueError(
            f"{stream.name} does not tell where a task ends, which {to_spec(strategy)['name']} has to know: take "
            "'finetune', 'vcl', 'ivon', 'vogn', 'ewc' or 'kfac-laplace'"
        )
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    folder = None if out is None else Path(out)
    if folder is None:
        return _run(stream, strategy, model, epochs, batch_size, likelihood, hidden, seed, samples, None, tell)
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        return _run(stream, strategy, model, epochs, batch_size, likelihood, hidden, seed, samples, folder, tell)


def _run(
    stream: Stream,
    strategy: Strategy,
    model: nn.Module | None,
    epochs: int,
    batch_size: int,
    likelihood: str | Likelihood | None,
    hidden: tuple[int, ...],
    seed: int,
    samples: int,
    folder: Path | None,
    tell: Callable[[str], object] | None,
) -> Result:
    chapters: list[Chapter] = []
    first = stream[0]
    fresh = _network(stream, first, hidden, seed) if model is None else modules.twin(model)
    chosen_likelihood = _likelihood(likelihood, fresh, first)
    settings: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "samples": samples, "tasks": stream.count}
    settings["network"] = modules.signature(fresh)
    # as it comes back from a file, where tuples are lists
    about = json.loads(json.dumps(to_spec(strategy) | {"settings": settings}))
    result = Result(stream.name, about, seed)
    known = _stored(folder, result)
    past = Past()
    for index in range(stream.count):
        chapter = first if index == 0 else stream[index]
        _check(chapter, chapters, stream)
        chapters.append(chapter)
        fits = Fits(
            fresh,
            chosen_likelihood,
            epochs,
            batch_size,
            mixed(seed, index),
            len(chapter.train[1]),
            None if folder is None else folder / f"task-{index + 1:02}",
        )
        began = time.perf_counter()
        past = strategy.learn(past, chapter, fits)
        seconds = time.perf_counter() - began
        if known is not None and index < len(known.accuracy):  # judged before the run was cut short
            result = _prefix(known, index + 1)
            continue
        following = [stream[index + 1].test] if index + 1 < stream.count else []
        tests = [each.test for each in chapters] + following
        _add(result, chapter, past, tests, fresh, fits, samples, seconds)
        _store(folder, result)
        if tell is not None:
            tell(f"task {index + 1}/{stream.count}, {chapter.name}: average {result.average:.4f}, {seconds:.1f} s")
    result = Result(**{**result.__dict__, "finished": True})
    if folder is not None and past.memory.parts:
        past.memory.save(folder / "memory.safetensors")
    _store(folder, result)
    return result


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
        return models.MultiHead(body, hidden[-1], stream.count, outputs)


def _likelihood(given: str | Likelihood | None, network: nn.Module, first: Chapter) -> Likelihood:
    if given is not None:
        return likelihoods.choose(given)
    x, y = first.train
    few = inputs.take(x, torch.arange(min(8, len(y))))
    with torch.no_grad():
        outputs = modules.try_call(modules.twin(network).eval(), few)
    return likelihoods.infer(outputs, y)


def _check(chapter: Chapter, before: list[Chapter], stream: Stream) -> None:
    """Refuse inputs of another shape, and labels that were not announced."""
    found, first = ([list(t.shape[1:]) for _, t in inputs.named(c.train[0])] for c in (chapter, [*before, chapter][0]))
    if found != first:
        raise ValueError(
            f"all tasks of a stream must have inputs of one shape, but {chapter.name!r} has {found} and the first task "
            f"{first}; what was learnt before is kept"
        )
    for part, (_, y) in (("train", chapter.train), ("test", chapter.test)):
        if stream.classes and not y.is_floating_point() and len(y) and int(y.max()) >= stream.classes:
            raise ValueError(
                f"{part} of {chapter.name!r} has the label {int(y.max())}, but the stream announced classes 0 to "
                f"{stream.classes - 1}: give it as many classes as all its tasks have together"
            )


def _add(
    result: Result,
    chapter: Chapter,
    past: Past,
    tests: list[Examples],
    fresh: nn.Module,
    fits: Fits,
    samples: int,
    seconds: float,
) -> None:
    """One row more."""
    if not result.first:
        result.first.append(0.0)  # of the first task, which nothing comes before
    assert past.posterior is not None
    rows = [judged(past.posterior, test, samples) for test in tests]
    result.tasks.append(chapter.name)
    for name in ("accuracy", "nll", "ece", "unsure"):
        getattr(result, name).append([row[name] for row in rows])
    if len(tests) > len(result.tasks):
        result.first.append(_right(fresh, tests[-1], fits.likelihood))
    result.seconds.append(seconds)
    result.bytes.append(held_bytes(past))


def _right(network: nn.Module, test: Examples, likelihood: Likelihood) -> float:
    """The accuracy of a network that has learnt nothing yet."""
    likelihood = likelihood.matched(outputs_of(network, test[0]), test[1])  # noise has no value before a fit
    return judged(Particles.of([network], Context(network, likelihood)), test, 1)["accuracy"]


def held_bytes(past: Past) -> int:
    """What a strategy holds between tasks: the tensors of its posteriors, and its examples."""
    total = past.memory.bytes + Memory(past.seen).bytes
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
    return found


def _store(folder: Path | None, result: Result) -> None:
    if folder is not None:
        files.write_atomically(folder / "result.json", json.dumps(result.to_json(), indent=1))
