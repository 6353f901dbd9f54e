"""What a report is about: one data set, and what each method made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesrule.data import Schema, Split
from bayesrule.evaluate import Scores, ShiftCurves, StrangerScores, agreement, baselines, score, strangers
from bayesrule.posteriors import Posterior
from bayesrule.predictions import Binary, Prediction
from bayesrule.report.by_class import ByClass, by_class
from bayesrule.report.choices import choices
from bayesrule.report.doubt import Doubt, doubt
from bayesrule.report.effects import Effect, effects
from bayesrule.report.examples import Worth
from bayesrule.report.measures import number
from bayesrule.report.mixing import ChainTable, chain_table
from bayesrule.report.promises import promises
from bayesrule.report.provenance import provenance, versions

UNSHOWN = ("history", "seconds", "versions", "collapse")  # of a posterior's info, among the settings of a method
LEADING = 6  # methods that are not folded away; one more is not worth a fold
CURVE, PLANE = 240, 90  # points along an axis of the picture of a function of one or of two inputs


@dataclass(frozen=True, eq=False)
class Entry:
    """A method: its scores, its predictions on test inputs, on inputs from elsewhere and on a grid, and its cost.

    ``choices`` are sentences about what its fit has settled from the data; ``chains`` is what those of a sampler tell;
    ``promises`` are sentences about what it guarantees; ``doubt`` is what it says of a table along columns;
    ``strangers`` is how well it tells examples from elsewhere; ``history`` are the mean logs of each epoch, and
    ``best_epoch`` the one that early stopping kept; ``effects`` is what each column of a table does.
    """

    name: str
    scores: Scores
    prediction: Prediction
    outside: Prediction | None = None
    grid: Prediction | None = None
    seconds: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    choices: Sequence[str] = ()
    chains: ChainTable | None = None
    promises: Sequence[str] = ()
    doubt: Doubt | None = None
    strangers: StrangerScores | None = None
    history: Sequence[Mapping[str, float]] = ()
    best_epoch: int | None = None
    effects: Sequence[Effect] = ()

    def by_class(self, split: Split) -> ByClass:
        """What it takes for what, of classes."""
        return by_class(self.prediction, split)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Entries on one data set, and how they came about. ``notes`` are sentences about the data.

    ``baselines`` are what any method has to beat: they are in the leaderboard, and in no figure. ``worth``: which
    training examples matter, where that was asked for. ``shifts``: scores on the way from home, of
    all entries.
    """

    split: Split
    entries: Sequence[Entry]
    command: str = ""
    seed: int = 0
    schema: Schema | None = None
    notes: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=versions)
    baselines: Sequence[Entry] = ()
    worth: Worth | None = None
    shifts: Sequence[ShiftCurves] = ()

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError("entries must hold at least one method, got none: there is nothing to report")

    @property
    def ranked(self) -> list[Entry]:
        """The entries, the lowest negative log-likelihood first."""
        return by_nll(self.entries)

    @property
    def leading(self) -> list[Entry]:
        """Those of the best methods that are looked at first; the others are folded away."""
        return self.ranked[: LEADING if len(self.entries) > LEADING + 1 else None]

    @property
    def warnings(self) -> list[str]:
        """A sentence if the best method is no better than a baseline on the test examples."""
        best = self.ranked[0]
        beaten_by = [b for b in self.baselines if not best.scores["nll"] < b.scores["nll"]]
        if not beaten_by:
            return []
        named = ", ".join(f"{b.name} ({number(b.scores['nll'])})" for b in beaten_by)
        what = "baseline" if len(beaten_by) == 1 else "baselines"
        return [
            f"{best.name} is not better than the {what} {named}: its own NLL on the test examples is "
            f"{number(best.scores['nll'])}. Prefer the simpler model, or train longer or another method"
        ]

    def cost(self, entry: Entry) -> float | None:
        """Seconds of training as a multiple of MAP's; None if MAP is not among the entries, or alone."""
        unit = next((other.seconds for other in self.entries if other.name == "map"), None)
        if not unit or len(self.entries) == 1:
            return None
        return entry.seconds / unit

    def to_json(self) -> dict[str, Any]:
        """The contents of ``scores.json``."""
        return {
            "data": self.split.name,
            **provenance(self.command, self.seed),
            "versions": dict(self.versions),
            "methods": {entry.name: self._plain(entry) for entry in self.ranked},
            "baselines": {entry.name: self._plain(entry) for entry in by_nll(self.baselines)},
            "warnings": self.warnings,
            **self._worth(),
            **({"shifts": [curves.to_json() for curves in self.shifts]} if self.shifts else {}),
        }

    def _worth(self) -> dict[str, Any]:
        """Rows of training examples and −log p of their targets by all others, if that was asked for."""
        if self.worth is None:
            return {}
        found = {name: {"rows": rows, "nll": self.worth.nll[name]} for name, rows in self.worth.rows.items()}
        return {"influence": found}

    def _plain(self, entry: Entry) -> dict[str, Any]:
        return {
            "scores": dict(entry.scores),
            "intervals": {name: list(entry.scores.interval(name)) for name in entry.scores},
            "nulls": {name: null._asdict() for name, null in entry.scores.nulls.items()},
            "seconds": entry.seconds,
            "cost": self.cost(entry),
            "choices": list(entry.choices),
            "promises": list(entry.promises),
            **({} if entry.strangers is None else {"strangers": entry.strangers.to_json()}),
            **({"effects": [effect._asdict() for effect in entry.effects]} if entry.effects else {}),
        }


def by_nll(entries: Iterable[Entry]) -> list[Entry]:
    """Entries, the lowest negative log-likelihood first."""
    return sorted(entries, key=lambda entry: entry.scores["nll"])


def examine(
    name: str, posterior: Posterior, split: Split, samples: int = 32, seed: int = 0, schema: Schema | None = None
) -> Entry:
    """All that a report shows of a posterior: predictions, scores, settings and seconds."""

    def predict(x: Tensor) -> Prediction:
        prediction = posterior.predict(x, samples=samples, seed=seed)
        if isinstance(prediction, Binary):  # figures and tables know one kind of classes
            return prediction.classes
        return prediction

    x, y = split.test
    prediction = predict(x)
    outside = on_grid = told = None
    if split.ood is not None:
        outside = predict(split.ood)
        told = strangers(posterior, x, split.ood, split.training, samples=samples, seed=seed)
    if (points := grid(split)) is not None:
        on_grid = predict(points)
    return Entry(
        name,
        score(prediction, y, outside, seed=seed),
        prediction,
        outside,
        on_grid,
        posterior.info.get("seconds", 0.0),
        {key: value for key, value in posterior.info.items() if key not in UNSHOWN},
        choices(posterior.info),
        chain_table(posterior, x),
        promises(posterior, split),
        doubt(predict, prediction, split, schema),
        told,
        posterior.info.get("history", ()),
        posterior.info.get("best_epoch"),
        effects(posterior, split, schema, samples, seed),
    )


def beside(entry: Entry, posterior: Posterior, reference: Posterior, split: Split, seed: int = 0) -> Entry:
    """The entry with scores of how far it agrees with a reference posterior on the test inputs."""
    more, own = agreement(posterior, reference, split.test[0], seed=seed), entry.scores
    scores = Scores({**own.table, **more.table}, {**own.intervals, **more.intervals}, own.nulls)
    return replace(entry, scores=scores)


def examine_baselines(split: Split, seed: int = 0) -> list[Entry]:
    """The baselines of a data set, trained and scored as methods are."""
    x, y = split.test
    entries = []
    for baseline in baselines(split, seed):
        prediction, outside = baseline.predict(x), None
        if split.ood is not None:
            outside = baseline.predict(split.ood)
        settings: dict[str, Any] = {}
        if baseline.rows < len(split.train[1]):
            settings["rows"] = baseline.rows
        scores = score(prediction, y, outside, seed=seed)
        entries.append(Entry(baseline.name, scores, prediction, outside, None, baseline.seconds, settings))
    return entries


def grid(split: Split) -> Tensor | None:
    """Inputs on a line or in a plane around all that the split has, where a function can be drawn; else None.

    >>> from bayesrule.data import load_set
    >>> grid(load_set("sine")).shape, grid(load_set("moons")).shape, grid(load_set("digits"))
    (torch.Size([240, 1]), torch.Size([8100, 2]), None)
    """
    x = split.test[0]
    columns, points = 1, CURVE
    if split.kind == "classes":
        columns, points = 2, PLANE
    if x.ndim != 2 or x.shape[1] != columns or split.image_shape is not None or split.categories:
        return None
    parts = [x]
    if split.training is not None:
        parts.append(split.training[0])
    if split.ood is not None:
        parts.append(split.ood)
    seen = torch.cat(parts)
    low, high = seen.amin(0).tolist(), seen.amax(0).tolist()
    # A tenth beyond all examples on each side: what a method says where there are none is what matters.
    axes = [np.linspace(a - 0.1 * (b - a), b + 0.1 * (b - a), points) for a, b in zip(low, high, strict=True)]
    return torch.from_numpy(np.stack([part.ravel() for part in np.meshgrid(*axes)], axis=1)).to(x.dtype)


def in_words(tree: Any) -> str:
    """Nested settings in one line.

    >>> in_words({"name": "ensemble", "fields": {"members": 5, "base": {"name": "map", "fields": {"lr": 0.003}}}})
    'ensemble(members=5, base=map(lr=0.003))'
    """
    if isinstance(tree, dict) and set(tree) == {"name", "fields"}:
        inner = ", ".join(f"{key}={in_words(value)}" for key, value in tree["fields"].items() if value is not None)
        return f"{tree['name']}({inner})"
    if isinstance(tree, dict):
        return " · ".join(f"{key} {in_words(value)}" for key, value in tree.items() if value is not None)
    return str(tree)
