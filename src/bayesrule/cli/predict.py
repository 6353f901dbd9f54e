"""Predict the rows of a table, or the test examples of a named set, with a trained run, as CSV.

Classes: prediction, confidence, p_CLASS ..., entropy, aleatoric, epistemic (nats). Numbers: prediction, std, lower_90,
upper_90, aleatoric_std, epistemic_std. One line for each row of DATA, in order; the target column is not needed.
A label that a spreadsheet would take for a formula, such as =1+1, has an apostrophe in front.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesrule.cli import options
from bayesrule.cli.runs import Run
from bayesrule.cli.terminal import say
from bayesrule.data.cells import escaped, is_predictions
from bayesrule.files import write_atomically
from bayesrule.predictions import Binary, Classes, Numbers, Prediction

if TYPE_CHECKING:
    import pandas as pd

EPILOG = """examples:
  bayesrule predict runs/houses new.csv --out predictions.csv
  bayesrule predict runs/digits-swag digits"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.run_and_data(parser)
    parser.add_argument("--out", metavar="FILE.csv", help="write here instead of to stdout")
    options.as_json(parser)


def run(args: argparse.Namespace) -> None:
    """Load, predict, write."""
    folder = Path(args.run)
    if args.out:
        _refuse(Path(args.out), Path(args.data))
    run = Run.read(folder)
    posterior = run.posterior(folder, getattr(args, "device", None))
    x = run.inputs(args.data, getattr(args, "data_dir", None))
    table = tabulate(posterior.predict(x, seed=run.settings.seed), run.classes)
    text = csv_of(table)
    if args.out:
        write_atomically(args.out, text)
        say(f"wrote {len(table)} predictions to {args.out}")
    if args.json:
        print(json.dumps(table.to_dict("records"), indent=2))
    elif not args.out:
        sys.stdout.write(text)


def tabulate(prediction: Prediction, classes: tuple[str, ...]) -> pd.DataFrame:
    """A line for each example: the guess and both uncertainties."""
    import pandas as pd

    if isinstance(prediction, Binary):
        prediction = prediction.classes
    if isinstance(prediction, Classes):
        columns: dict[str, object] = {"prediction": [classes[i] for i in prediction.label.tolist()]}
        columns["confidence"] = _list(prediction.confidence)
        columns |= {f"p_{name}": _list(prediction.probs[:, i]) for i, name in enumerate(classes)}
        names = ("entropy", "aleatoric", "epistemic")
        return pd.DataFrame(columns | {name: _list(getattr(prediction, name)) for name in names})
    assert isinstance(prediction, Numbers)
    low, high = prediction.interval(0.9)
    parts = {"prediction": prediction.mean, "std": prediction.std, "lower_90": low, "upper_90": high}
    parts |= {"aleatoric_std": prediction.aleatoric.sqrt(), "epistemic_std": prediction.epistemic.sqrt()}
    return pd.DataFrame({name: _list(values) for name, values in parts.items()})


def csv_of(table: pd.DataFrame) -> str:
    """The table as CSV, its labels such that no spreadsheet takes one for a formula."""
    safe = table.copy()
    if table["prediction"].dtype.kind not in "fiub":
        safe["prediction"] = table["prediction"].map(escaped)
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


def _list(values: Tensor) -> list[float]:
    """Numbers with all the digits that their dtype holds, and no more."""
    if values.dtype == torch.float64:
        return values.tolist()
    return [float(f"{value:.7g}") for value in values.tolist()]
