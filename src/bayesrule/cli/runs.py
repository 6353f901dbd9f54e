"""A run: a directory with ``run.json``, written before training, and with the posterior when it is done."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bayesrule import likelihoods, processes
from bayesrule.cli import fields, sources
from bayesrule.cli.options import RunSettings, is_table
from bayesrule.cli.sources import Source
from bayesrule.data import Kind, Schema, Split, augmentations, fingerprint, load_set
from bayesrule.data.reading import Table, open_table, stem
from bayesrule.data.splits import Groups
from bayesrule.data.tables import groups_of, known_rows
from bayesrule.files import FileError, write_atomically
from bayesrule.jobs import threads
from bayesrule.methods import Method
from bayesrule.models import Spec, build, default_for
from bayesrule.naming import unknown
from bayesrule.posteriors import Posterior
from bayesrule.posteriors import load as load_posterior
from bayesrule.report import versions
from bayesrule.training import EarlyStopping, Folder, fit, resume

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "bayesrule-run/1"
HELD_OUT = 0.1  # the share of the training examples that early stopping looks at


class Rows(NamedTuple):
    """Inputs to predict; of a table also the columns in which a row is unlike training, and those to be kept.

    ``groups``: that of each row, where the run's guarantee is for groups.
    """

    x: torch.Tensor
    unusual: list[tuple[str, ...]] | None = None
    kept: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None


class Test(NamedTuple):
    """Examples to test on, and sentences about them."""

    split: Split
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """All that is needed to train, to resume, and to predict from the posterior on other data."""

    settings: RunSettings
    model: Spec
    kind: Kind
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    schema: Schema | None
    table: str | None
    """The fingerprint of the table that the run was trained on."""
    command: str

    @classmethod
    def of(cls, settings: RunSettings, source: Source, command: str) -> Run:
        """A new run on data that were read, everything checked that can be."""
        if settings.likelihood is not None:
            likelihoods.choose(settings.likelihood)
        split, schema, table = source
        shape = tuple(split.train[0].shape[1:])
        return cls(settings, _spec(settings, split), split.kind, shape, split.classes, schema, table, command)

    @classmethod
    def read(cls, folder: Path) -> Run:
        """The run in a directory."""
        path = folder / "run.json"
        if not path.is_file():
            raise FileNotFoundError(f"RUN must be a directory that bayesrule fit wrote, but there is no {path}")
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain["format"] != FORMAT:
                raise FileError(f"{path}: format {plain['format']!r} where {FORMAT!r} is read")
            if plain.pop("sha256", None) != checksum(plain):
                raise FileError(
                    f"{path}: the checksum does not fit the contents; the file was edited or damaged. Put the old one "
                    "back, or start a new run"
                )
            schema = None
            if plain["schema"] is not None:
                schema = Schema.from_json(plain["schema"])
            shape, classes = tuple(plain["shape"]), tuple(plain["classes"])
            settings = RunSettings.from_json(plain["settings"])
            model, table = plain["model"], plain.get("table")
            return cls(settings, model, plain["kind"], shape, classes, schema, table, plain["command"])
        except FileError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise FileError(f"{path}: not a run.json of this library, or damaged ({error!r})") from error

    def write(self, folder: Path) -> None:
        """``run.json``, whole or not at all."""
        plain: dict[str, Any] = {"format": FORMAT, **asdict(self), "versions": versions()}
        plain["schema"] = self.schema and self.schema.to_json()
        plain = json.loads(json.dumps(plain))  # as it will be read: lists for tuples
        write_atomically(folder / "run.json", json.dumps(plain | {"sha256": checksum(plain)}, indent=2))

    def train(self, split: Split, folder: Folder | None, method: Method | None, val: float | None = None) -> Posterior:
        """The posterior: fitted anew by a method, or, with None, from where the directory stands.

        A directory is one that holds no other run: whoever calls has made sure of that. ``val``: as for `fit`.
        """
        if folder is None or processes.rank():
            return self._train(split, folder, method, val)
        with folder.held():
            return self._train(split, folder, method, val)

    def _train(self, split: Split, folder: Folder | None, method: Method | None, val: float | None) -> Posterior:
        asked = self.settings
        network = build(self.model, asked.seed, asked.device)
        data: Any = split.train if split.weight is None else (*split.train, split.weight)
        callbacks = [] if asked.early_stopping is None else [EarlyStopping(asked.early_stopping)]
        chosen = likelihoods.choose(asked.likelihood or likelihoods.usual(self.kind))
        if not split.image_shape:  # pixels are in [0, 1] already
            data = chosen.standardized(data, codes=len(split.categories))
        with threads(asked.threads):
            if method is None and folder is not None and not _fresh(folder):
                return resume(folder, network, data, callbacks=callbacks, progress=True)
            if folder is not None:
                self.write(folder.path)  # before the first step, so that whatever is interrupted can be resumed
            try:
                return fit(
                    network,
                    data,
                    method or fields.method(asked.method, asked.set),
                    chosen,
                    fields.prior(asked.prior),
                    asked.temperature,
                    asked.epochs,
                    asked.batch_size,
                    asked.seed,
                    HELD_OUT if callbacks and val is None else val,
                    callbacks,
                    out=folder,
                    progress=True,
                    augment=augmentations.choose(asked.augment, split.image_shape),
                )
            except Exception:
                if folder is not None and _fresh(folder):  # refused before the first step: leave nothing behind
                    (folder.path / "run.json").unlink()
                raise

    def posterior(self, folder: Path, device: str | None = None) -> Posterior:
        """The posterior of a finished run, on a device, or on the one that it was trained on."""
        path = Folder(folder).posterior
        if not path.exists():
            raise FileNotFoundError(f"{folder} is not finished: continue it with bayesrule fit --resume --out {folder}")
        return load_posterior(path, build(self.model, device=device or self.settings.device))

    def rows(
        self, data: str | pd.DataFrame, data_dir: str | None, sep: str | None, keep: tuple[str, ...] | None
    ) -> Rows:
        """What is to be predicted: all rows of a table, in a frame or a file, or the test examples of a named set.

        The columns ``keep`` go along, or, with None, those of the run that the table has.
        """
        if isinstance(data, str) and not is_table(data):
            if keep or sep:
                raise ValueError(f"--keep and --sep are for .csv and .parquet files, but DATA is the name {data!r}")
            return Rows(self.test(data, data_dir, sep).split.test[0])
        called = Path(data).name if isinstance(data, str) else "a DataFrame"
        schema, wanted = self._schema(called), self.settings.keep if keep is None else keep
        if isinstance(data, str):
            table = open_table(data, sep or self.settings.sep, texts=set(wanted) - set(schema.names))
        else:
            table = Table(data, ())
        frame = table.frame.rename(columns=str)
        found = [name for name in wanted if name in frame]
        notes = list(table.notes)
        for name in wanted:
            if name in found:
                continue
            if keep is not None:
                raise unknown("--keep column", name, frame.columns)
            notes.append(f"{called} has no column {name!r} to keep")
        by = self.settings.groups
        groups = None if by is None else groups_of(frame, by)
        return Rows(torch.from_numpy(schema.inputs(frame)), schema.unusual(frame), frame[found], tuple(notes), groups)

    def test(self, data: str, data_dir: str | None, sep: str | None) -> Test:
        """Test examples: what was held out of the table that the run was trained on, or all rows of any other.

        The columns become inputs by the run's own schema, whatever the table holds now. Rows without a target are left
        out, as they are in training.
        """
        asked = self.settings
        if is_table(data):
            schema, sep = self._schema(data), sep or asked.sep
            if self.knows(data) and asked.test is None:
                return Test(sources.read(replace(asked, data=str(Path(data).resolve()), sep=sep), schema).split)
            table = open_table(data, sep)
            frame, holes = known_rows(table.frame, schema.target)
            pair = torch.from_numpy(schema.inputs(frame)), torch.from_numpy(schema.targets(frame))
            what = f"{len(frame)} rows of {Path(data).name}, target {schema.target!r}"
            groups = None if asked.groups is None else Groups(groups_of(frame, asked.groups), ())
            split = Split(stem(data), self.kind, what, pair, None, self.classes, schema.features, groups=groups)
            return Test(split, (*table.notes, *holes, *self._seen(data)))
        if sep:
            raise ValueError(f"--sep is for .csv and .parquet files, but DATA is the name {data!r}")
        if self.schema is not None:
            raise ValueError(f"DATA must be a table, as the run was trained on {asked.data}, got {data!r}")
        number = 0
        if data == asked.data:
            number = asked.split
        split = load_set(data, data_dir or asked.data_dir, number, asked.seed)
        if tuple(split.test[0].shape[1:]) != self.shape:
            raise ValueError(
                f"DATA must have inputs of shape {list(self.shape)}, as {asked.data} that the run was trained on, "
                f"but those of {data} are {list(split.test[0].shape[1:])}"
            )
        return Test(split)

    def _seen(self, data: str) -> list[str]:
        """A note if a table may hold rows that the run was trained on."""
        name = Path(data).name
        if self.knows(data):
            return [f"the run was trained on all rows of {name}: these scores are not those of new rows"]
        if self.settings.test is not None and Path(data).resolve() == Path(self.settings.test):
            return []
        what = "is not, byte for byte, the table that the run was trained on"
        return [f"{name} {what}: all rows count, also any that the run has seen"]

    def knows(self, table: str) -> bool:
        """Whether a table is, byte for byte, the one that the run was trained on."""
        return fingerprint(table) == self.table

    def _schema(self, data: str) -> Schema:
        if self.schema is None:
            raise ValueError(f"DATA must be a name, as the run was trained on {self.settings.data!r}, got {data!r}")
        return self.schema


def checksum(plain: dict[str, Any]) -> str:
    """The sha256 of what a ``run.json`` holds, however its lines are broken."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def refuse(folder: Path, files: tuple[str, ...] = ("run.json", "scores.json")) -> None:
    """An error if a directory holds another run."""
    found = [name for name in files if (folder / name).exists()]
    if found or not _fresh(Folder(folder)):
        raise FileExistsError(
            f"--out {folder} holds another run ({', '.join(found) or 'its posterior'}): choose another directory, "
            "delete it, or continue it with --resume"
        )


def _fresh(folder: Folder) -> bool:
    """Whether no training has begun in a directory."""
    return not (folder.checkpoint.exists() or folder.posterior.exists())


def _spec(settings: RunSettings, split: Split) -> Spec:
    """The network: the default one for the data, with the hidden layers and the outputs that were asked for."""
    spec = default_for(split, settings.likelihood)
    if settings.hidden is None:
        return spec
    if split.image_shape:
        inputs = prod(split.train[0].shape[1:])
        spec = {"name": "mlp", "inputs": inputs, "outputs": spec["outputs"]}
    return spec | {"hidden": list(settings.hidden)}
