"""Settings of strategies of life-long learning, tried on held-out training examples of a long stream.

    python benchmarks/lifelong.py perm-mnist --methods si,vcl --jobs 2 --cache results/settings --out docs/results
    python benchmarks/lifelong.py seq-mnist --examples 12000 --epochs 15

Ten permuted or five split tasks of MNIST, the permutations others than those of the benchmark; a share of the training
examples is held out, and the test examples are not looked at. The best average after the last task is chosen; of two
that are within a standard error of the held-out share, the one that stands first, which is the one in use. A run is
short by default: fewer examples and epochs forget less and leave a task less settled, so the best two are to be tried
again at full length (``--examples 60000 --epochs 10 --only LABEL,LABEL``).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from bayesrule import jobs
from bayesrule.data import load_set
from bayesrule.files import write_atomically
from bayesrule.lifelong import Coreset, Functions, Sequential, Strategy, Stream, SynapticIntelligence, streams
from bayesrule.lifelong import run as learn
from bayesrule.lifelong.benchmarks import BENCHMARKS, SPLIT_FROMP, keeps_points, strategy
from bayesrule.methods import BBB, IVON, VOGN
from bayesrule.report import provenance

SHARE = 1 / 12  # of the training examples is held out
ORDERS = 1000  # the seed of the permutations, which is not the benchmark's
TRIED = ("perm-mnist", "seq-mnist")

Candidates = Mapping[str, Strategy]


def _grid(make: Any, *rows: tuple[float, ...]) -> dict[str, Strategy]:
    """A strategy for each row of numbers, by these numbers."""
    return {" ".join(f"{number:g}" for number in row): make(*row) for row in rows}


def si(strength: float, damping: float, lr: float) -> Strategy:
    """c, ξ and Adam's rate."""
    return Sequential(SynapticIntelligence(strength, damping, lr), predicts="mean")


def vcl(scale: float, temperature: float, strength: float) -> Strategy:
    """The first prior's deviation, η, and the factor on the past."""
    return Sequential(BBB(), scale, temperature=temperature, strength=strength)


def coreset(scale: float, temperature: float, strength: float) -> Strategy:
    """As of `vcl`."""
    return Coreset(BBB(), scale=scale, temperature=temperature, strength=strength)


def ivon(scale: float, temperature: float, strength: float, lr: float) -> Strategy:
    """As of `vcl`, and the share of Newton's step."""
    return Sequential(IVON(lr=lr), scale, temperature=temperature, strength=strength)


def vogn(scale: float, temperature: float, strength: float, lr: float) -> Strategy:
    """As of `ivon`."""
    return Sequential(VOGN(lr=lr), scale, temperature=temperature, strength=strength)


def fromp(strength: float, lr: float) -> Strategy:
    """τ and Adam's rate."""
    return Functions(strength=strength, lr=lr)


def split_fromp(strength: float, lr: float) -> Strategy:
    """As of `fromp`, with the rest of the settings of split tasks."""
    return replace(SPLIT_FROMP, strength=strength, lr=lr)


WEIGHTED = ((0.3, 1, 1), (0.3, 0.3, 2), (0.3, 0.3, 5), (0.3, 0.1, 3), (0.3, 0.1, 5), (0.3, 0.1, 10))
NATURAL = ((0.2, 0.3, 5, 0.1), (0.2, 0.1, 3, 0.1), (0.2, 0.1, 5, 0.1), (0.2, 0.3, 10, 0.1), (0.2, 0.3, 5, 0.3))
CANDIDATES: dict[str, dict[str, Candidates]] = {
    "perm-mnist": {
        "si": _grid(si, (1, 0.1, 3e-3), (0.3, 0.1, 3e-3), (1, 0.1, 1e-3), (3, 0.1, 1e-3), (10, 0.1, 1e-3)),
        "vcl": _grid(vcl, *WEIGHTED),
        "vcl-coreset": _grid(coreset, *WEIGHTED),
        "ivon": _grid(ivon, *NATURAL),
        "vogn": _grid(vogn, *NATURAL),
        "fromp": _grid(fromp, (0.5, 1e-3), (0.05, 1e-3), (5, 1e-3), (0.5, 3e-4), (0.05, 3e-3)),
    },
    "seq-mnist": {
        "si": _grid(si, (10, 1e-2, 1e-3), (30, 1e-2, 1e-3), (10, 1e-2, 3e-4), (30, 1e-2, 3e-4), (30, 1e-3, 1e-3)),
        "vcl-coreset": _grid(coreset, *WEIGHTED),
        "fromp": _grid(split_fromp, (10, 1e-4), (30, 1e-4), (10, 2e-4), (30, 2e-4), (3, 1e-4)),
    },
}


@dataclass(frozen=True)
class Question:
    """A strategy with settings on a stream."""

    stream: str
    method: str
    label: str
    examples: int
    epochs: int
    seed: int

    @property
    def strategy(self) -> Strategy:
        """With as many points as the benchmark keeps."""
        found = strategy(self.method, 1, self.stream) if self.label == IN_USE else self._candidate
        points = BENCHMARKS[self.stream].full.points
        return replace(found, points=points) if keeps_points(found) else found  # type: ignore[call-arg]

    @property
    def _candidate(self) -> Strategy:
        return CANDIDATES[self.stream][self.method][self.label]

    def key(self) -> dict[str, Any]:
        """A label means what its strategy is."""
        return jobs.plain(self) | {"strategy": self.strategy}


IN_USE = "in use"


@lru_cache(maxsize=1)
def tuning(name: str, examples: int, data_dir: str | None) -> Stream:
    """The tasks that settings are tried on."""
    split = load_set("mnist", data_dir)
    stream = streams.permuted(split, 10, seed=ORDERS) if name == "perm-mnist" else streams.split_by_class(split)
    found = stream.tuning(SHARE).fewer(examples)
    chapters = list(found)
    return replace(found, make=chapters.__getitem__)  # made once for all settings


def tried(question: Question, data_dir: str | None) -> dict[str, Any]:
    """What is left of each task after the last, and what each had when it was learnt."""
    usual = BENCHMARKS[question.stream].full
    stream = tuning(question.stream, question.examples, data_dir)
    sizes = {"epochs": question.epochs, "batch_size": usual.batch_size, "hidden": usual.hidden}
    result = learn(stream, question.strategy, seed=question.seed, samples=8, **sizes)  # type: ignore[arg-type]
    held = sum(len(chapter.test[1]) for chapter in stream)
    plain = {"average": result.average, "forgetting": result.forgetting, "held": held, "seconds": sum(result.seconds)}
    return plain | {"last": result.accuracy[-1], "learnt": [row[k] for k, row in enumerate(result.accuracy)]}


def told(question: Question, answer: dict[str, Any]) -> str:
    """Settings, and what they gave."""
    ends = f"{answer['learnt'][0]:.3f} to {answer['learnt'][-1]:.3f} when learnt"
    return f"{question.method} {question.label}: {answer['average']:.4f}, {ends}, {answer['seconds']:.0f} s"


def chosen(answers: Mapping[str, dict[str, Any]]) -> str:
    """The label of the highest average, or of the first that is within a standard error of it."""
    best = max(answer["average"] for answer in answers.values())
    for label, answer in answers.items():
        error = math.sqrt(best * (1 - best) / answer["held"])
        if answer["average"] >= best - error:
            return label
    raise ValueError("there must be an answer")


def asked(args: argparse.Namespace) -> list[Question]:
    """Of each method the settings in use, and then the candidates."""
    found = []
    for method in args.methods.split(",") if args.methods else CANDIDATES[args.stream]:
        labels = [IN_USE, *CANDIDATES[args.stream][method]]
        if args.only:
            labels = [label for label in labels if label in args.only.split(",")]
        found += [Question(args.stream, method, label, args.examples, args.epochs, args.seed) for label in labels]
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Try, choose, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", choices=TRIED)
    parser.add_argument("--methods", help="A,B,… (all that have candidates)")
    parser.add_argument("--only", help="labels of settings, A,B,… (all)")
    parser.add_argument("--examples", type=int, default=10_000, help="training examples of a task, at most")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--data-dir")
    parser.add_argument("--cache", type=Path, help="a directory that keeps each run that is done")
    parser.add_argument("--out", type=Path, help="a directory for lifelong-settings-STREAM.json")
    args = parser.parse_args(argv)
    questions = asked(args)
    answers = jobs.run(tried, questions, (args.data_dir,), args.jobs, args.cache, print, Question.key, told)
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for question, answer in zip(questions, answers, strict=True):
        tables.setdefault(question.method, {})[question.label] = answer
    line = f"python benchmarks/lifelong.py {args.stream} --examples {args.examples} --epochs {args.epochs}"
    found = provenance(line, args.seed) | {"chosen": {}, "tried": tables}
    for method, table in tables.items():
        found["chosen"][method] = chosen(table)
        print(f"{method}: {found['chosen'][method]}")
    if args.out is not None:
        write_atomically(args.out / f"lifelong-settings-{args.stream}.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
