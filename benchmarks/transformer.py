"""Time and memory of an IVON step on a transformer of 10 M weights, beside AdamW's.

    python benchmarks/transformer.py --threads 2 --out docs/results

The network is a GPT of plain torch, six layers of width 384 over an alphabet of 65 characters, on batches of 8 × 128
tokens. Rounds take one step of each contender in random order; written is the median ratio of the times in a round.
The memory is the largest resident memory of a process of its own that takes some steps, less what it held before the
network was made: weights, gradients, the optimiser's state and the activations.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.files import write_atomically
from bayesrule.report import provenance

LETTERS, WIDTH, HEADS, LAYERS = 65, 384, 6, 6
EXAMPLES, TOKENS = 8, 128
SEEN = 1_000_000  # tokens that the posterior is of


class Block(nn.Module):
    """Attention to what came before, then two linear layers, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.gather = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, WIDTH] to the same."""
        parts = self.attend(self.first(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.gather(found.transpose(1, 2).flatten(-2))
        return x + self.back(F.gelu(self.wide(self.second(x))))


class GPT(nn.Module):
    """Logits of the next letter at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T] to [B, T, LETTERS]."""
        places = self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(self.letters(x) + places)))


Step = Callable[[], None]


def adamw(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Step:
    """``torch.optim.AdamW`` as it comes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def ivon(model: nn.Module, loss: Callable[[nn.Module], Tensor], compile: bool = False) -> Step:
    """The loop of the README."""
    optimizer = br.optim.IVON(model.parameters(), lr=1e-2, ess=SEEN, compile=compile)

    def step() -> None:
        with optimizer.sampled():
            loss(model).backward()
        optimizer.step()

    return step


CONTENDERS = {"adamw": adamw, "ivon": ivon, "ivon, compile=True": functools.partial(ivon, compile=True)}


def made(name: str) -> Step:
    """A step of a contender on a network of its own."""
    torch.manual_seed(0)
    letters = torch.randint(LETTERS, (EXAMPLES, TOKENS + 1))
    x, y = letters[:, :-1].contiguous(), letters[:, 1:].contiguous()
    return CONTENDERS[name](GPT(), lambda model: F.cross_entropy(model(x).flatten(0, 1), y.flatten()))


def seconds(step: Step) -> float:
    """The time of a step."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def times(count: int) -> dict[str, dict[str, float]]:
    """Median seconds of each contender, and the median ratio to AdamW in a round with its quartiles."""
    steps = {name: made(name) for name in CONTENDERS}
    for _ in range(2):
        for step in steps.values():
            step()
    rounds = []
    for _ in range(count):
        names = random.sample(list(steps), len(steps))
        rounds.append({name: seconds(steps[name]) for name in names})
    found = {}
    for name in steps:
        low, median, high = statistics.quantiles([each[name] / each["adamw"] for each in rounds], method="inclusive")
        taken = statistics.median(each[name] for each in rounds)
        found[name] = {"ratio": median, "low": low, "high": high, "seconds": taken}
    return {name: {key: round(value, 3) for key, value in row.items()} for name, row in found.items()}


def peak() -> float:
    """The largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def memory(name: str, steps: int = 3) -> float:
    """MB that a contender's steps take beyond what the process holds before."""
    before = peak()
    step = made(name)
    for _ in range(steps):
        step()
    return peak() - before


def in_a_process(name: str) -> float:
    """`memory` in a fresh process."""
    command = [sys.executable, __file__, "--memory", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--memory", choices=list(CONTENDERS), help="print the memory of this contender alone, in MB")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    random.seed(0)
    if args.memory:
        print(memory(args.memory))
        return
    held = {name: in_a_process(name) for name in CONTENDERS}
    rows = times(args.rounds)
    for name, row in rows.items():
        row |= {"megabytes": round(held[name]), "memory ratio": round(held[name] / held["adamw"], 3)}
        print(name, row)
    weights = sum(p.numel() for p in GPT().parameters())
    about = provenance(f"python benchmarks/transformer.py --rounds {args.rounds} --threads {args.threads}", seed=0)
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomically(
        args.out / "transformer.json", json.dumps(about | {"weights": weights, "beside AdamW": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
