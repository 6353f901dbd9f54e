"""Options that several verbs share, each declared once, and the `RunSettings` that they make.

An option that is not given is not in the parsed arguments, so that a resumed run can tell what was asked for.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from bayesrule import temperatures
from bayesrule.data import NAMES, TABLES, Kind
from bayesrule.data.reading import ending
from bayesrule.files import FileError
from bayesrule.jobs import on as elsewhere
from bayesrule.models import choose_device
from bayesrule.posteriors.calibration import EVERY

CONNECT = 10  # seconds to wait for a cluster's scheduler


@dataclass(frozen=True)
class RunSettings:
    """All that decides what a run gives, as on the command line and in ``run.json``."""

    data: str
    target: str | None = None
    kind: Kind | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    sep: str | None = None
    test: str | None = None
    weights: str | None = None
    data_dir: str | None = None
    split: int = 0
    seed: int = 0
    method: str = ""
    set: tuple[str, ...] = ()
    likelihood: str | None = None
    prior: str | None = None
    temperature: float | str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    hidden: tuple[int, ...] | None = None
    threads: int = 1
    device: str = "cpu"
    early_stopping: int | None = None
    guarantee: float | None = None
    groups: str | None = None
    recalibrate: str | None = None
    augment: str | None = None
    distance_aware: bool = False

    @property
    def spares(self) -> bool:
        """Whether some training rows are kept from training, to calibrate on."""
        return self.guarantee is not None or self.recalibrate is not None

    @property
    def for_what(self) -> str:
        """What these rows are for."""
        promise = "to calibrate the guarantee on"
        if self.recalibrate is None:
            return promise
        return "to recalibrate on" if self.guarantee is None else f"to recalibrate and {promise}"

    @classmethod
    def of(cls, args: argparse.Namespace) -> RunSettings:
        """The settings that were given, and the defaults of the others."""
        if "data" not in given(args):
            raise ValueError("DATA must be a name (see: bayesrule data) or a .csv or .parquet file, got nothing")
        settings = cls(**given(args))
        if not settings.method:
            settings = replace(settings, method=default_method(settings.data))
        if settings.threads < 1:
            raise ValueError(f"--threads must be at least 1, got {settings.threads}")
        if settings.early_stopping is not None and settings.early_stopping < 1:
            raise ValueError(f"--early-stopping must be at least 1 epoch, got {settings.early_stopping}")
        if settings.guarantee is not None and not 0 < settings.guarantee < 1:
            raise ValueError(
                f"--guarantee must be between 0 and 1, both excluded, got {settings.guarantee:g}: for 90 % give 0.9"
            )
        if settings.groups is not None and settings.guarantee is None:
            raise ValueError(f"--groups {settings.groups} needs --guarantee P: groups are what it is calibrated for")
        choose_device(settings.device)  # an error now if there is none, before any data are read
        return settings

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> RunSettings:
        """Undo `dataclasses.asdict` and a trip through JSON."""
        if stray := set(plain) - {field.name for field in fields(cls)}:
            raise FileError(f"run.json has settings that this version does not know: {', '.join(sorted(stray))}")
        values: dict[str, Any] = {}
        for key, value in plain.items():
            if isinstance(value, list):  # JSON has no tuples
                value = tuple(value)
            values[key] = value
        return cls(**values)


def default_method(data: str) -> str:
    """What settles its own settings for tables, for which it is made; an ensemble for all else.

    >>> default_method("houses.csv"), default_method("uci/concrete"), default_method("mnist")
    ('auto', 'auto', 'ensemble')
    """
    return "auto" if is_table(data) or data in TABLES else "ensemble"


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings among parsed arguments."""
    known = {field.name for field in fields(RunSettings)}
    found = {key: value for key, value in vars(args).items() if key in known}
    if "set" in found:
        found["set"] = tuple(found["set"])
    if is_table(found.get("data", "")):  # absolute, so that the run can be resumed from anywhere
        found["data"] = str(Path(found["data"]).resolve())
    if "test" in found:
        found["test"] = str(Path(found["test"]).resolve())
    if "data_dir" in found:
        found["data_dir"] = str(Path(found["data_dir"]).expanduser().resolve())
    return found


def is_table(data: str) -> bool:
    """Whether DATA is a file rather than a name."""
    return ending(data) is not None or (data not in NAMES and Path(data).is_file())


def about_data(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """DATA and how to read it."""
    about: dict[str, Any] = {}
    if optional:
        about = {"nargs": "?", "default": argparse.SUPPRESS}
    help = "a name (see: bayesrule data), or a .csv or .parquet file with --target"
    parser.add_argument("data", metavar="DATA", help=help, **about)
    _option(parser, "--target", metavar="COLUMN", help="the column to predict")
    _option(parser, "--kind", choices=get_args(Kind), help="what the target is, where the guess is wrong")
    _option(parser, "--drop", type=columns, metavar="A,B", help="columns that are no inputs")
    keep(parser)
    separator(parser)
    _option(parser, "--test", metavar="FILE", help="a table to test on (a fifth of the rows of DATA)")
    _option(parser, "--weights", metavar="COLUMN", help="how many times each row counts in training; no input")
    where_data(parser)
    _option(parser, "--split", type=int, metavar="K", help="the standard split of a uci/… set (0)")
    seed(parser)


def about_stream(parser: argparse.ArgumentParser) -> None:
    """STREAM, how to read it if it is a table, and how to learn it."""
    help = "a benchmark (none lists them), or a .csv or .parquet file with --target and --by"
    parser.add_argument("data", metavar="STREAM", nargs="?", default=argparse.SUPPRESS, help=help)
    _about_table(parser)
    _option(parser, "--by", metavar="COLUMN", help="the column that orders or names the tasks; no input")
    _option(parser, "--epochs", type=int, metavar="E", help="passes over the data of each task")
    _option(parser, "--batch-size", type=int, metavar="N", help="examples in a step")
    _option(parser, "--hidden", type=_widths, metavar="N,N", help="hidden widths of the network")


def about_pool(parser: argparse.ArgumentParser) -> None:
    """DATA whose rows may be asked for, how to read it if it is a table, and how to learn from its labels."""
    help = "a name (see: bayesrule data), or a .csv or .parquet file with --target"
    parser.add_argument("data", metavar="DATA", help=help)
    _about_table(parser)
    _option(parser, "--test", metavar="FILE", help="a table to test on (a fifth of the rows of DATA, none with --ask)")
    method(parser)
    _option(parser, "--epochs", type=int, metavar="N", help="passes over the labelled rows in each round")
    _option(parser, "--hidden", type=_widths, metavar="N,N", help="hidden widths of a fully connected network")
    _about_posterior(parser)


def _about_table(parser: argparse.ArgumentParser) -> None:
    """How to read a table, and where the files of named data are."""
    _option(parser, "--target", metavar="COLUMN", help="the column of a table to predict")
    _option(parser, "--kind", choices=get_args(Kind), help="what the target is, where the guess is wrong")
    _option(parser, "--drop", type=columns, metavar="A,B", help="columns that are no inputs")
    separator(parser)
    where_data(parser)


def run_and_data(parser: argparse.ArgumentParser) -> None:
    """RUN, and DATA that it is used on."""
    parser.add_argument("run", metavar="RUN", help="the directory that bayesrule fit wrote")
    parser.add_argument("data", metavar="DATA", help="a .csv or .parquet file, or a name (see: bayesrule data)")
    separator(parser)
    where_data(parser)
    device(parser, "the run's own")


def separator(parser: argparse.ArgumentParser) -> None:
    """What separates the columns of a table."""
    help = "what separates columns, such as ';' or tab, where the guess is wrong"
    _option(parser, "--sep", type=_separator, metavar="SIGN", help=help)


def keep(parser: argparse.ArgumentParser) -> None:
    """Columns that go past the model."""
    help = "columns that are no inputs but are copied to predictions, such as ids"
    _option(parser, "--keep", type=columns, metavar="A,B", help=help)


def seed(parser: argparse.ArgumentParser) -> None:
    """The seed."""
    _option(parser, "--seed", type=int, metavar="N", help="the same seed gives the same result (0)")


def device(parser: argparse.ArgumentParser, default: str = "cpu") -> None:
    """Where to compute."""
    help = f"cpu, cuda, mps or any other device of torch; auto takes a GPU if there is one ({default})"
    _option(parser, "--device", metavar="NAME", help=help)


def where_data(parser: argparse.ArgumentParser) -> None:
    """Where the files of the catalogue are."""
    _option(parser, "--data-dir", metavar="DIR", help="the directory of the official data files ($BAYESRULE_DATA)")


def about_training(parser: argparse.ArgumentParser) -> None:
    """How to train."""
    about_effort(parser)
    _about_posterior(parser)
    help = "how pictures are changed each time they are trained on: flips, crops, augmix, or several of them"
    _option(parser, "--augment", metavar="A,B", help=help)


def _about_posterior(parser: argparse.ArgumentParser) -> None:
    """What else decides a posterior."""
    _option(parser, "--batch-size", type=int, metavar="N", help="examples in a step (8 to 32; 128 or 512 of many rows)")
    _option(parser, "--likelihood", metavar="NAME", help="p(y|f): categorical, gaussian, …; fit: auto for numbers")
    help = "below 1 the prior counts less (1; variational methods: cold); cold:T tempers it too; balanced:TAU"
    _option(
        parser, "--prior", metavar="SCALE", help="a standard deviation of weights, fan-in, glorot, kaiming, or by-layer"
    )
    _option(parser, "--temperature", type=_temperature, metavar="T", help=help)
    method_fields(parser)


def method_fields(parser: argparse.ArgumentParser) -> None:
    """Fields of methods."""
    _option(parser, "--set", action="append", metavar="FIELD=VALUE", help="a field of the method, such as rank=10")


def shape(parser: argparse.ArgumentParser) -> None:
    """How large a network, and how long to train it."""
    _option(parser, "--epochs", type=int, metavar="N", help="passes over the data (enough for 2000 steps, at least 10)")
    _option(parser, "--hidden", type=_widths, metavar="N,N", help="hidden widths of a fully connected network")


def about_effort(parser: argparse.ArgumentParser) -> None:
    """How large a network, how long to train it, and where."""
    shape(parser)
    _option(parser, "--threads", type=int, metavar="N", help="1 is quickest for small networks (1)")
    device(parser)


def seeds(parser: argparse.ArgumentParser) -> None:
    """Several seeds."""
    parser.add_argument("--seeds", type=_seeds, default=(0,), metavar="0,1,…", help="of the networks and batches (0)")


def jobs(parser: argparse.ArgumentParser) -> None:
    """How many processes, or the machines of a cluster."""
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes side by side (1)")
    help = "of a Dask scheduler, such as tcp://host:8786: its workers do the jobs, and must see the same files"
    parser.add_argument("--cluster", metavar="ADDRESS", help=help)


@contextmanager
def workers(args: argparse.Namespace) -> Iterator[None]:
    """Jobs are done where the command line says, for verbs that have `jobs`."""
    if not hasattr(args, "cluster"):
        yield
        return
    if args.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {args.jobs}")
    address = args.cluster
    if address is None:
        yield
        return
    if args.jobs != 1:
        raise ValueError(
            f"--jobs {args.jobs} and --cluster exclude each other: a cluster has as many workers as it has"
        )
    with _client(address) as client, elsewhere(client.get_executor()):
        yield


def _client(address: str) -> Any:
    """Dask's client of a scheduler that answers."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("--cluster needs Dask: pip install 'bayesrule[cluster]'") from error
    client: Any = Client
    try:
        return client(address, timeout=CONNECT)
    except (OSError, ValueError) as error:
        raise OSError(f"--cluster {address}: no scheduler answers there within {CONNECT} seconds ({error})") from error


def early_stopping(parser: argparse.ArgumentParser) -> None:
    """When to stop training before its end."""
    help = "stop when the NLL of a held-out tenth of the training rows has not fallen for N epochs (N: 5)"
    _option(parser, "--early-stopping", type=int, nargs="?", const=5, metavar="N", help=help)


def distance_aware(parser: argparse.ArgumentParser, help: str) -> None:
    """Whether doubt grows with the distance from the training examples."""
    _option(parser, "--distance-aware", action="store_true", help=help)


def guarantee(parser: argparse.ArgumentParser) -> None:
    """What is to be promised."""
    help = "promise that a share P of sets or intervals hold the truth, calibrated on rows that training never sees"
    _option(parser, "--guarantee", type=float, metavar="P", help=help)
    help = "a column of the table: the guarantee then holds in each of its groups"
    _option(parser, "--groups", metavar="COLUMN", help=help)


def recalibrate(parser: argparse.ArgumentParser) -> None:
    """What recalibrations are tried."""
    help = "map answers by rows that training never sees, where they say it clearly; all tries every kind"
    _option(parser, "--recalibrate", choices=(*EVERY, "all"), metavar="KIND", help=f"{', '.join(EVERY)} or all: {help}")


def about_output(parser: argparse.ArgumentParser, out: str) -> None:
    """Where results go."""
    parser.add_argument("--out", metavar="DIR", help=out)
    as_json(parser)


def as_json(parser: argparse.ArgumentParser) -> None:
    """JSON instead of a table."""
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout, and nothing else there")


def method(parser: argparse.ArgumentParser) -> None:
    """One method."""
    _option(parser, "--method", metavar="NAME", help="see: bayesrule methods (auto for tables, ensemble for pictures)")


def _option(parser: argparse.ArgumentParser, flag: str, **about: Any) -> None:
    parser.add_argument(flag, default=argparse.SUPPRESS, **about)


def columns(text: str) -> tuple[str, ...]:
    """Names between commas; one that has a comma itself stands in quotes."""
    names = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(name.strip() for name in names if name.strip())


def _seeds(text: str) -> tuple[int, ...]:
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers, as in 0,1,2, got {text!r}") from None
    return found


def _temperature(text: str) -> float | str:
    """A number, or a name with its numbers as it was typed, if there is such a temperature."""
    try:
        chosen = temperatures.choose(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return chosen if isinstance(chosen, float) else text


def _separator(text: str) -> str:
    return {"tab": "\t", "\\t": "\t"}.get(text, text)


def _widths(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(part) for part in text.split(","))
    except ValueError:
        widths = ()
    if not widths or min(widths) < 1:
        raise argparse.ArgumentTypeError(f"must be whole numbers of at least 1, as in 64,64, got {text!r}")
    return widths
