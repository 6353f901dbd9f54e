"""Write a trained run as one program, .onnx or .pt2 (torch.export), that runs without this library.

It takes the numbers that the run's columns become, [rows, inputs], and gives probs, or mean, lower and upper, and both
uncertainties, as predict does. Beside it stands a .json that names inputs, outputs and classes in their order, and how
the columns of a table become numbers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from bayesrule.cli import options
from bayesrule.cli.loaded import LEVEL, LoadedRun, load_run
from bayesrule.cli.terminal import say
from bayesrule.files import write_atomically
from bayesrule.predictions import Numbers

EPILOG = """examples:
  bayesrule export runs/houses --out houses.onnx
  bayesrule export runs/digits --out digits.pt2 --samples 16"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("run", metavar="RUN", help="the directory that bayesrule fit wrote")
    parser.add_argument("--out", required=True, metavar="FILE", help="a new file that ends in .onnx or .pt2")
    parser.add_argument("--samples", type=int, default=32, metavar="S", help="networks that are drawn (32)")
    parser.add_argument("--level", type=float, metavar="P", help="the probability of the intervals of numbers (0.9)")
    options.as_json(parser)


def run(args: argparse.Namespace) -> None:
    """Load, trace, write."""
    out = Path(args.out)
    if out.exists():
        raise FileExistsError(f"--out must be a new file, got {out}: choose another name, or delete it")
    loaded = load_run(args.run, "cpu")
    if args.level is not None and not 0 < args.level < 1:
        raise ValueError(f"--level must be between 0 and 1, got {args.level:g}: for 95 % give 0.95")
    level = args.level or LEVEL
    example, seed, about = _example(loaded), loaded.run.settings.seed, columns_of(loaded)
    prediction = loaded.posterior.predict(example, samples=1)
    without = isinstance(prediction, Numbers) and prediction.searched and args.level is None
    loaded.posterior.export(out, example, args.samples, seed, None if without else level, about)
    sidecar = out.with_name(f"{out.name}.json")
    write_atomically(sidecar, json.dumps(about, indent=1))
    if without:
        likelihood = loaded.posterior.likelihood.name
        say(f"without an interval: that of likelihood {likelihood} is a search, which no program holds")
    say(f"wrote {out} and {sidecar}")
    if args.json:
        print(json.dumps({"program": str(out), "columns": str(sidecar), "bytes": out.stat().st_size}))


def _example(loaded: LoadedRun) -> torch.Tensor:
    """An input of the run, in the dtype that it is predicted in: doubles of a table, pixels of a picture."""
    return torch.zeros(1, *loaded.run.shape, dtype=torch.float32 if loaded.schema is None else torch.float64)


def columns_of(loaded: LoadedRun) -> dict[str, Any]:
    """What the numbers of the program mean."""
    found: dict[str, Any] = {"data": Path(loaded.run.settings.data).name, "classes": list(loaded.run.classes)}
    if loaded.schema is not None:
        found["inputs of the table"] = list(loaded.schema.features)
        found["schema"] = loaded.schema.to_json()
    return found
