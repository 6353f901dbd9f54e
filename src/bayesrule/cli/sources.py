"""DATA on the command line: a name of the catalogue, or a table in a file."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from bayesrule import likelihoods
from bayesrule.cli.guarantees import check_groups, spared_rows, told_apart
from bayesrule.cli.options import RunSettings, is_table
from bayesrule.data import Kind, Schema, Split, fingerprint, load_set, load_table, read_table, spare
from bayesrule.data.reading import open_table, stem
from bayesrule.seeds import mixed

HELD_OUT = 0.2
"""The share of the rows of a table that is tested on."""

AUTO = "auto"  # of --likelihood: for numbers, the noise that held-out data prefer


class Source(NamedTuple):
    """What was read, and for a table its schema and the fingerprint of the file."""

    split: Split
    schema: Schema | None
    table: str | None


def name_of(data: str) -> str:
    """A short name, fit for a directory: ``digits``, ``uci-boston``, ``houses`` for ``data/houses.csv``."""
    return stem(data) if is_table(data) else data.replace("/", "-")


def read(settings: RunSettings, schema: Schema | None = None) -> Source:
    """The data to train and test on; a table with the schema that is given, or one that is learnt."""
    source = _table(settings, schema) if is_table(settings.data) else Source(_named(settings), None, None)
    split = source.split
    kind = _kind(settings.likelihood)
    if kind is not None and kind != split.kind:
        raise ValueError(
            f"--likelihood {settings.likelihood} is for {kind}, "
            f"but the target of {split.name} holds {split.kind}: leave it out"
        )
    if not len(split.test[1]):
        raise ValueError(f"{split.name} must have rows to test on, but it has only {len(split.train[1])}: add more")
    return source


def settled(settings: RunSettings, split: Split) -> tuple[RunSettings, list[str]]:
    """Settings with a likelihood where it was left to the data, and why it is that one, in sentences."""
    if settings.likelihood != AUTO:
        return settings, []
    if split.kind == "classes":
        return replace(settings, likelihood=None), []
    train: Any = split.train if split.weight is None else (*split.train, split.weight)
    choice = likelihoods.best(train, settings.seed, split.kind)
    return replace(settings, likelihood=choice.name), [str(choice)]


def describe(split: Split, schema: Schema | None, for_what: str = "to calibrate the guarantee on") -> list[str]:
    """What was found, in sentences. ``for_what``: what spared rows are for."""
    examples = f"{_many(len(split.train[1]), 'example')} to train on, {len(split.test[1])} held out"
    if split.calibration is not None:
        examples += f", {len(split.calibration[1])} {for_what}"
    if schema is None:
        return [f"{split.what}; {examples}"]
    encoded = f"{_many(len(schema.columns), 'column')} become {_many(len(schema.features), 'input')}"
    if len(schema.columns) == 1:
        encoded = encoded.replace("become", "becomes")
    notes = [f"{examples}; {encoded}", *schema.notes]
    if split.weight is not None:
        notes.append("weights count in training, also in that of the baselines: in scores all rows count alike")
    return notes


def with_strangers(source: Source, ood: str, settings: RunSettings) -> Split:
    """The split with inputs from another set, or from a table with its columns, as those from elsewhere."""
    split = source.split
    if is_table(ood):
        if source.schema is None:
            raise ValueError(f"--ood must be the name of a set, as DATA is, not a table: got {ood!r}")
        table = open_table(ood, settings.sep)
        return replace(split, ood=torch.from_numpy(source.schema.inputs(table.frame.rename(columns=str))))
    if source.schema is not None:
        raise ValueError(f"--ood must be a .csv or .parquet file with the columns of the table, got {ood!r}")
    other = load_set(ood, settings.data_dir, seed=settings.seed).test[0]
    own, theirs = split.test[0].shape[1:], other.shape[1:]
    if own.numel() != theirs.numel():
        raise ValueError(
            f"--ood must have inputs of the shape of DATA, {list(own)}, but those of {ood} are {list(theirs)}: "
            "pictures of another size are told by their size alone"
        )
    return replace(split, ood=other.reshape(-1, *own).to(split.test[0].dtype))


def _named(settings: RunSettings) -> Split:
    for option in ("target", "kind", "drop", "keep", "sep", "test", "weights", "groups"):
        if getattr(settings, option):
            raise ValueError(f"--{option} is for .csv and .parquet files, but DATA is the name {settings.data!r}")
    split = load_set(settings.data, settings.data_dir, settings.split, settings.seed)
    if not settings.spares:
        return split
    x, y = split.train
    left, aside = spare(len(y), spared_rows(settings, len(y)), mixed(settings.seed, 1))
    return replace(split, training=(x[left], y[left]), calibration=(x[aside], y[aside]))


def _table(settings: RunSettings, schema: Schema | None) -> Source:
    if settings.split:
        raise ValueError(f"--split is for uci/… sets, got {settings.split} for a table: --seed makes other splits")
    if settings.target is None:
        columns = ", ".join(map(str, read_table(settings.data, settings.sep).columns))
        raise ValueError(f"--target must name the column of {settings.data} to predict, one of: {columns}")
    kind = settings.kind or _kind(settings.likelihood)
    without = (*settings.drop, *settings.keep)
    if settings.target == settings.weights:
        raise ValueError(f"--weights must not name the target, got {settings.target!r}: they are not known beforehand")
    if settings.target == settings.groups:
        raise ValueError(f"--groups must not name the target, got {settings.target!r}: it is not known beforehand")
    if settings.target in without:
        raise ValueError(f"--drop and --keep must not name the target, got {settings.target!r}: leave it out")
    loaded = load_table(
        settings.data,
        settings.target,
        test=settings.test or HELD_OUT,
        seed=settings.seed,
        kind=kind,
        schema=schema,
        sep=settings.sep,
        without=without,
        weights=settings.weights,
        calibration=partial(spared_rows, settings) if settings.spares else None,
        groups=settings.groups,
        embed=True,
    )
    if settings.guarantee is not None and loaded[0].groups is not None:
        groups = told_apart(loaded[0], settings)[1].groups
        assert groups is not None
        check_groups(groups, settings.guarantee)
    return Source(*loaded, fingerprint(settings.data))


def _many(count: int, what: str) -> str:
    """A number of things, in English."""
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def _kind(likelihood: str | None) -> Kind | None:
    """The kind of target that a likelihood is for, if one was asked for."""
    if likelihood is None or likelihood == AUTO:
        return None
    return likelihoods.choose(likelihood).kind
