"""Exported programs: what is in them, how large they are, and how fast, beside `predict`, interleaved in one run.

    python benchmarks/export.py --out docs/results

A network of 64-64-10 on the embedded digits under each kind of posterior, 32 networks at most; and `auto` on the table
`diabetes`, with the usual network of tables. Milliseconds are the processor's, of one thread, for 10 examples at once,
the median over rounds in random order. ``difference`` is the largest from `predict`, of all numbers that a program
gives for the test inputs, as a share of those above one.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime
import torch

import bayesrule as br
from bayesrule.files import write_atomically
from bayesrule.posteriors import DistanceAware, Posterior
from bayesrule.report import provenance

ROUNDS = 30
ROWS = 10
METHODS = {"one network": "map", "ensemble of 5": "ensemble", "gaussian": "swag", "dropout": "mc-dropout"}
METHODS |= {"linearised": "laplace"}


def sessions(
    posterior: Posterior, x: torch.Tensor, folder: Path
) -> tuple[dict[str, Callable[..., Any]], dict[str, Any]]:
    """The ways to ask, and what the files are."""
    told: dict[str, Any] = {}
    for suffix in ("pt2", "onnx"):
        began = time.process_time()
        posterior.export(folder / f"p.{suffix}", example=x[:1])
        told[f"{suffix} seconds"] = round(time.process_time() - began, 1)
        told[f"{suffix} kB"] = round((folder / f"p.{suffix}").stat().st_size / 1000)
    program = torch.export.load(folder / "p.pt2").module()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "p.onnx", options)

    def by_onnx(x: torch.Tensor) -> dict[str, torch.Tensor]:
        found = session.run(None, {"x": x.numpy()})
        return {o.name: torch.from_numpy(v) for o, v in zip(session.get_outputs(), found, strict=True)}

    @torch.no_grad()
    def by_program(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return program(x)

    return {"predict": lambda x: posterior.predict(x).summary(), "pt2": by_program, "onnx": by_onnx}, told


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest, as a share of numbers that are larger than one: a table's are in its own units."""
    return float(((found - wanted).abs() / wanted.abs().clamp(min=1)).max())


def measure(posterior: Posterior, x: torch.Tensor, folder: Path) -> dict[str, Any]:
    """Sizes, differences and milliseconds of one kind."""
    ways, told = sessions(posterior, x, folder)
    wanted = ways["predict"](x)
    for way in ("pt2", "onnx"):
        found = ways[way](x)
        told[f"{way} difference"] = max(difference(found[name], wanted[name]) for name in wanted)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for round in range(ROUNDS + 3):
        for way in random.sample(list(ways), len(ways)):
            began = time.process_time()
            ways[way](x[:ROWS])
            if round >= 3:  # warm by then
                times[way].append(time.process_time() - began)
    return told | {f"{way} ms": float(f"{1e3 * median(each):.2g}") for way, each in times.items()}


def posteriors() -> Iterator[tuple[str, Posterior, torch.Tensor]]:
    """Each kind by name, and what it is asked."""
    split = br.data.load_set("digits", seed=0)
    train, test = tuple(part[:500] for part in split.train), split.test[0][:200]
    for name, method in METHODS.items():
        yield name, br.fit(br.models.mlp(64, 10, hidden=(64,)), train, method, epochs=5), test
    base = br.fit(br.models.mlp(64, 10, hidden=(64,)), train, "map", epochs=5)
    yield "distance-aware", DistanceAware.around(base, train), test
    table = br.data.load_set("diabetes", seed=0)
    network = br.models.build(br.models.default_for(table), seed=0)
    yield "auto on a table", br.fit(network, br.data.standardize(table.train), "auto"), table.test[0]


def main() -> None:
    """Fit, export, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    found = {}
    for name, posterior, test in posteriors():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(posterior, test, Path(folder)) | {"kind": posterior.kind}
        print(name, found[name], flush=True)
    about = provenance("python benchmarks/export.py", seed=0) | {"rows": ROWS, "kinds": found}
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out / "export.json", json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
