"""What it takes to choose a batch from a large pool: seconds and memory of each acquisition of classes.

    python benchmarks/acquisition.py --out docs/results

Probabilities [100, 60 000, 10] of two pools: ``trained``, like those of a network with few labels, where most rows are
settled; and ``hard``, where all rows are as uncertain, so that none can be left out early. Each acquisition runs in a
process of its own, on two threads; memory is the peak of that process.
"""

from __future__ import annotations

import argparse
import json
import resource
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


def measured(acquire: str, name: str, rows: int) -> dict[str, Any]:
    """Wall seconds, processor seconds, and mebibytes above those of the probabilities."""
    probs = pool(name, rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, processor = time.perf_counter(), time.process_time()
    if acquire == "batchbald":
        information.batchbald(probs, BATCH)
    elif acquire == "epig":
        information.epig(probs, probs[:, :TARGETS]).topk(BATCH)
    else:
        getattr(information, acquire)(probs).topk(BATCH)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "wall": round(time.perf_counter() - wall, 2),
        "processor": round(time.process_time() - processor, 2),
        "pool_mib": round(probs.nbytes / 2**20),
        "added_mib": round((peak - before) / 2**10),
    }


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
