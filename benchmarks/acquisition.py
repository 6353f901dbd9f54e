"""What it takes to choose a batch from a large pool: seconds and memory of each acquisition of classes.

    python benchmarks/acquisition.py --out docs/results

Probabilities [100, 60 000, 10] of two pools: ``trained``, like those of a network with few labels, where most rows are
settled; and ``hard``, where all rows are as uncertain, so that none can be left out early. Each acquisition runs in a
process of its own, on two threads unless told otherwise; times are by the wall and of the processor. Memory is what is
added above the process that holds the probabilities, with whatever making them took given back: Linux tells both.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrule.active import information
from bayesrule.files import write_atomically
from bayesrule.report import provenance

DRAWS, ROWS, CLASSES, BATCH, TARGETS = 100, 60_000, 10, 10, 100
POOLS = {"trained": 4.0, "hard": 0.0}  # how far most rows are settled
NAMES = ("entropy", "bald", "epig", "batchbald")


def pool(name: str, rows: int, seed: int = 0) -> Tensor:
    """Probabilities [S, N, C]: logits of a mean that is settled more or less, and of a scatter about it."""
    generator = torch.Generator().manual_seed(seed)
    settled = POOLS[name] * torch.rand(rows, 1, generator=generator)
    mean = settled * torch.randn(rows, CLASSES, generator=generator)
    probs = torch.randn(DRAWS, rows, CLASSES, generator=generator)
    probs += mean
    return probs.softmax(2)


def mib(name: str) -> float:
    """Memory of this process by the system's name: ``VmRSS`` now, ``VmHWM`` its peak since it was forgotten."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith(f"{name}:"))


def forget_peak() -> None:
    """The peak is what is held now: what was made and given back before does not count."""
    Path("/proc/self/clear_refs").write_text("5")


def measured(acquire: str, name: str, rows: int) -> dict[str, Any]:
    """Wall seconds, processor seconds, and mebibytes above those of the process that holds the probabilities."""
    probs = pool(name, rows)
    getattr(information, acquire)(probs[:, :TARGETS], *_rest(acquire, probs[:, :TARGETS]))  # what the first call loads
    forget_peak()
    before = mib("VmRSS")
    wall, processor = time.perf_counter(), time.process_time()
    scores = getattr(information, acquire)(probs, *_rest(acquire, probs))
    if isinstance(scores, Tensor):
        scores.topk(BATCH)
    peak = mib("VmHWM")
    return {
        "wall": round(time.perf_counter() - wall, 2),
        "processor": round(time.process_time() - processor, 2),
        "pool_mib": round(probs.nbytes / 2**20),
        "added_mib": round(peak - before),
    }


def _rest(acquire: str, probs: Tensor) -> tuple[Any, ...]:
    """What an acquisition takes beside probabilities."""
    return {"batchbald": (BATCH,), "epig": (probs[:, :TARGETS],)}.get(acquire, ())


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of the pool ({ROWS})")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a directory for acquisition.json")
    args = parser.parse_args()
    command = f"python benchmarks/acquisition.py --rows {args.rows} --threads {args.threads}"
    found: dict[str, Any] = provenance(command, seed=0)
    found |= {"draws": DRAWS, "rows": args.rows, "classes": CLASSES, "batch": BATCH, "threads": args.threads}
    found["pools"] = {name: {} for name in POOLS}
    calls = [(acquire, name, args.rows) for name in POOLS for acquire in NAMES]
    for call in calls:
        # one process after the other: two at once would share the cores
        with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (args.threads,)) as process:
            answer = process.submit(measured, *call).result()
        found["pools"][call[1]][call[0]] = answer
        print(call, answer, flush=True)
    if args.out is not None:
        write_atomically(args.out / "acquisition.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
