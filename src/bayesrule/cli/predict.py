"""Predict the rows of a table, or the test examples of a named set, with a trained run, as CSV.

Classes: prediction, confidence, p_CLASS ..., entropy, aleatoric, epistemic (nats). Numbers: prediction, std, lower_90,
upper_90, aleatoric_std, epistemic_std. Of a run with --guarantee 0.9 also guaranteed_set_90, classes with | between,
and answered; or guaranteed_lower_90 and guaranteed_upper_90. For a table also unusual, the columns in which a row is
far from all that was trained on, and the columns that are kept. One line for each row of DATA, in order; the target
column is not needed. A label that a spreadsheet would take for a formula, such as =1+1, has an apostrophe in front.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrule.cli import options
from bayesrule.cli.loaded import LEVEL, load_run
from bayesrule.cli.runs import Run
from bayesrule.cli.terminal import say
from bayesrule.data.cells import escaped, is_predictions
from bayesrule.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

EPILOG = """examples:
  bayesrule predict runs/houses new.csv --out predictions.csv
  bayesrule predict runs/houses new.csv --keep id --level 0.95
  bayesrule predict runs/digits-swag digits"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.run_and_data(parser)
    options.keep(parser)
    parser.add_argument("--level", type=float, metavar="P", help="the probability of the intervals of numbers (0.9)")
    parser.add_argument("--out", metavar="FILE.csv", help="write here instead of to stdout")
    options.as_json(parser)


def run(args: argparse.Namespace) -> None:
    """Load, predict, write."""
    if args.out:
        _refuse(Path(args.out), Path(args.data))
    loaded, given = load_run(args.run, getattr(args, "device", None)), vars(args)
    level = _level(args.level, loaded.run)
    rows = loaded.run.rows(args.data, given.get("data_dir"), given.get("sep"), given.get("keep"))
    for note in rows.notes:
        say(note)
    table = loaded.tabulate(rows, level)
    if rows.unusual and (count := sum(map(bool, rows.unusual))):
        say(
            f"{count} of {len(table)} rows are unlike anything in training (see the column unusual): "
            "a number far outside its range, or a category never seen"
        )
    text = csv_of(table)
    if args.out:
        write_atomically(args.out, text)
        say(f"wrote {len(table)} predictions to {args.out}")
    if args.json:
        print(json.dumps(table.to_dict("records"), indent=2, default=str))
    elif not args.out:
        sys.stdout.write(text)


def _level(asked: float | None, run: Run) -> float:
    """The probability of intervals."""
    if asked is None:
        return LEVEL
    if run.kind == "classes":
        raise ValueError(f"--level is for predictions of numbers, but the run predicts classes: got {asked:g}")
    if not 0 < asked < 1:
        raise ValueError(f"--level must be between 0 and 1, got {asked:g}: for 95 % give 0.95")
    return asked


def csv_of(table: pd.DataFrame) -> str:
    """The table as CSV, its texts such that no spreadsheet takes one for a formula."""
    safe = table.rename(columns=escaped)
    for place, name in enumerate(table.columns):
        if table[name].dtype.kind not in "fiubM":
            texts = table[name].map(lambda value: escaped(value) if isinstance(value, str) else value)
            safe.isetitem(place, texts.array)
    # pandas quotes what needs it but for a lone \r, which ends a line, too
    lone = any("\r" in name for name in table.columns)
    return safe.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC if lone else csv.QUOTE_MINIMAL)


def _refuse(out: Path, data: Path) -> None:
    """An error if writing to ``out`` would destroy anything but earlier predictions."""
    if out.resolve() == data.resolve() or (out.exists() and data.exists() and out.samefile(data)):
        raise ValueError(f"--out must be another file than DATA, which it would overwrite, got {out} for both")
    if not out.exists():
        return
    if not out.is_file():
        raise ValueError(f"--out must be a file, got {out}: give a name such as {out / 'predictions.csv'}")
    with open(out, "rb") as file:
        header = file.readline(1000).decode(errors="replace")
    if not is_predictions(header.replace('"', "").split(",")):
        raise FileExistsError(
            f"--out must be a new file or one that predict wrote, got {out}, whose first line is not that of "
            "predictions: choose another name, or delete it"
        )
