"""What each kernel does on two densities of the plane that are hard for it: a funnel, and two modes.

    python benchmarks/shapes.py --out docs/results

The funnel is v ~ N(0, 3²) and x | v ~ N(0, exp(v)): no one step fits its neck, v < −3, and its mouth. The modes are
N((±d, 0), I) with half of the mass each, near at d = 2 and far at d = 6; half of the chains begin in each. All
samplers have as many gradients, exact ones, so that `sgld` and `sghmc` show what their steps do and not their batches.
The picture shows draws of all chains over the density, and its marginal along the hard direction.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule.files import write_atomically
from bayesrule.report import provenance
from bayesrule.samplers import (
    ByAcceptance,
    ByEnergy,
    ByRate,
    Hamiltonian,
    Kernel,
    Kinetic,
    Microcanonical,
    Overdamped,
    Target,
    Tuner,
    began,
    r_hat,
)

NECK = 3.0  # the neck is v below minus this, one deviation
NEAR, FAR = 2.0, 6.0
GRADIENTS = 40  # from one draw to the next
SHOWN = 3000  # draws of a panel


@dataclass(frozen=True)
class Sampler:
    """A kernel, how it is tuned from a first step, and that step."""

    kernel: Kernel
    tuner: Callable[[Tensor, Tensor], Tuner]
    step: float

    @property
    def thin(self) -> int:
        """Transitions from one draw to the next."""
        return round(GRADIENTS / self.kernel.gradients)


def by_acceptance(target: float) -> Callable[[Tensor, Tensor], Tuner]:
    """Steps of such an acceptance, with a mass of each coordinate."""
    return lambda like, step: ByAcceptance(like, target, step, fixed=False, diagonal=True)


# Tuned as the methods of these names are; steps of the last two, which are not tuned, suit deviations of about one.
SAMPLERS = {
    "lmc": Sampler(Hamiltonian(1, adjusted=False), by_acceptance(0.9), 0.02),
    "mala": Sampler(Hamiltonian(1), by_acceptance(0.574), 0.02),
    "hmc": Sampler(Hamiltonian(10), by_acceptance(0.8), 0.02),
    "mclmc": Sampler(
        Microcanonical(),
        lambda like, step: ByEnergy(like, step, fixed=False, variances=(5e-3, 5e-4), diagonal=False),
        0.02,
    ),
    "sgld": Sampler(Overdamped(), lambda like, step: ByRate(like, step, 1.0, 0, precondition=False), 0.02),
    "sghmc": Sampler(Kinetic(0.9), lambda like, step: ByRate(like, step, 0.5, 0, precondition=False), 0.1),
}


def funnel(w: Tensor) -> tuple[Tensor, Tensor]:
    """v ~ N(0, 3²), x ~ N(0, exp(v)): log-density and gradient at (v, x)."""
    v, x = w.unbind(1)
    square = x.square() * (-v).exp()
    slope = torch.stack([-v / NECK**2 + 0.5 * (square - 1), -x * (-v).exp()], 1)
    return -0.5 * (v / NECK).square() - 0.5 * (square + v), slope


def modes(half: float) -> Target:
    """N((±half, 0), I) with half of the mass each."""
    centres = torch.tensor([[half, 0.0], [-half, 0.0]], dtype=torch.float64)

    def target(w: Tensor) -> tuple[Tensor, Tensor]:
        away = centres[:, None] - w
        apart = -0.5 * away.square().sum(2)
        return apart.logsumexp(0), (apart.softmax(0)[..., None] * away).sum(0)

    return target


def drawn(sampler: Sampler, target: Target, start: Tensor, warm: int, draws: int, seed: int) -> tuple[Tensor, float]:
    """Draws ``[C, D, 2]``, and the share of transitions that diverged."""
    generator = torch.Generator().manual_seed(seed)
    kernel, tuner = sampler.kernel, sampler.tuner(start, torch.full_like(start[:, 0], sampler.step))
    state = began(start, kernel.momentum(start, generator), target)
    steps = warm * sampler.thin
    for number in range(steps):
        state, told = kernel.move(state, tuner.scales(None), target, generator, number)
        tuner.observe(state, told, number / steps)
    kept, diverged = [], 0
    for number in range(draws * sampler.thin):
        state, told = kernel.move(state, tuner.scales(1.0), target, generator, steps + number)
        diverged += int(told.diverged.sum())
        if (number + 1) % sampler.thin == 0:
            kept.append(state.position)
    return torch.stack(kept, 1), diverged / (len(start) * draws * sampler.thin)


def funnel_drawn(
    sampler: Sampler, chains: int = 100, warm: int = 250, draws: int = 500, seed: int = 0
) -> tuple[Tensor, float]:
    """Draws of the funnel, from standard normal starts, and the share of transitions that diverged."""
    start = torch.randn(chains, 2, generator=torch.Generator().manual_seed(100 + seed), dtype=torch.float64)
    return drawn(sampler, funnel, start, warm, draws, seed)


def modes_drawn(
    sampler: Sampler, half: float, chains: int = 100, warm: int = 250, draws: int = 500, seed: int = 0
) -> Tensor:
    """Draws of two modes; the chains begin half on each side."""
    generator = torch.Generator().manual_seed(100 + seed)
    start = torch.randn(chains, 2, generator=generator, dtype=torch.float64)
    start[:, 0] += half * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(chains // 2)
    return drawn(sampler, modes(half), start, warm, draws, seed)[0]


def in_funnel(found: Tensor, diverged: float) -> dict[str, Any]:
    """Shares of draws in the neck, v < −3, and in the mouth, v > 3: .159 each; and what divergences and R̂ say."""
    v = found[..., 0]
    neck, neck_error = share(v < -NECK)
    mouth, mouth_error = share(v > NECK)
    return {
        "neck": neck,
        "neck, standard error": neck_error,
        "mouth": mouth,
        "mouth, standard error": mouth_error,
        "largest |v|": float(v.abs().max()),
        "diverged": diverged,
        "r_hat": float(r_hat(v)),
    }


def between_modes(found: Tensor, half: float) -> dict[str, Any]:
    """Changes of side for each chain, the variance of x² about the modes, 1, and R̂ of the first coordinate."""
    x, y = found.unbind(2)
    chains = len(found)
    square = x.square().mean(1) - half**2
    return {
        "crossings": float((x[:, 1:].sign() != x[:, :-1].sign()).sum(1).double().mean()),
        "variance along": float(square.mean()),
        "variance along, standard error": float(square.std() / math.sqrt(chains)),
        "variance across": float(y.square().mean()),
        "variance across, standard error": float(y.square().mean(1).std() / math.sqrt(chains)),
        "r_hat": float(r_hat(x)),
    }


def share(which: Tensor) -> tuple[float, float]:
    """Of the draws of all chains, and its standard error between chains."""
    each = which.double().mean(1)
    return float(each.mean()), float(each.std() / math.sqrt(len(each)))


# ---- picture ---------------------------------------------------------------------------------------------------------


def draw(every: dict[str, dict[str, Tensor]], path: Path) -> None:
    """Draws of each sampler: above in the plane, below along the hard direction beside the exact marginal."""
    figure = Figure(figsize=(2.4 * len(every), 7.6), layout="constrained")
    axes = figure.subplots(4, len(every), sharex="row", sharey="row")
    for column, (name, shapes) in enumerate(every.items()):
        axes[0, column].set_title(name)
        v, x = some(shapes["funnel"])
        axes[0, column].plot(x, v, ".", markersize=1, alpha=0.4)
        axes[0, column].set(xlim=(-25, 25), ylim=(-10, 10), xlabel="x")
        marginal(axes[1, column], shapes["funnel"][..., 0], normal(0.0, NECK))
        axes[1, column].set(xlim=(-10, 10), xlabel="v")
        for row, (shape, half) in enumerate((("near modes", NEAR), ("far modes", FAR)), 2):
            marginal(axes[row, column], shapes[shape][..., 0], two_normal(half))
            axes[row, column].set(xlim=(-10, 10), xlabel="along the line of the modes")
    labels = ("v, in the funnel", "density of v", "density, near modes", "density, far modes")
    for row, label in enumerate(labels):
        axes[row, 0].set_ylabel(label)
    figure.savefig(path, dpi=110)


def some(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Both coordinates of draws evenly spread over all chains."""
    flat = draws.flatten(0, 1)
    first, second = flat[:: max(1, len(flat) // SHOWN)].unbind(1)
    return first, second


def marginal(axes: Axes, draws: Tensor, exact: Callable[[Tensor], Tensor]) -> None:
    """A histogram of draws, as a share of all of them also where some are beyond the panel, and a density."""
    counts, edges = torch.histogram(draws.flatten(), 80, range=(-10.0, 10.0))
    axes.stairs(counts / draws.numel() / (edges[1] - edges[0]), edges, fill=True, alpha=0.4)
    grid = torch.linspace(-10, 10, 400, dtype=torch.float64)
    axes.plot(grid, exact(grid), color="0.2", lw=1)


def normal(centre: float, deviation: float) -> Callable[[Tensor], Tensor]:
    """The density of N(centre, deviation²)."""
    return lambda x: (-0.5 * ((x - centre) / deviation).square()).exp() / (deviation * math.sqrt(2 * math.pi))


def two_normal(half: float) -> Callable[[Tensor], Tensor]:
    """The density of both modes along their line."""
    return lambda x: (normal(half, 1.0)(x) + normal(-half, 1.0)(x)) / 2


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    every: dict[str, dict[str, Tensor]] = {}
    for name, sampler in SAMPLERS.items():
        in_it, diverged = funnel_drawn(sampler)
        draws = {"funnel": in_it, "near modes": modes_drawn(sampler, NEAR), "far modes": modes_drawn(sampler, FAR)}
        shapes = {
            "funnel": in_funnel(in_it, diverged),
            "near modes": between_modes(draws["near modes"], NEAR),
            "far modes": between_modes(draws["far modes"], FAR),
        }
        every[name] = draws
        found[name] = {
            shape: {key: float(f"{value:.4g}") for key, value in own.items()} for shape, own in shapes.items()
        }
        print(name, json.dumps(found[name], indent=1), flush=True)
    result = provenance("python benchmarks/shapes.py", seed=0) | {"threads": 1, "results": found}
    write_atomically(args.out / "samplers-shapes.json", json.dumps(result, indent=1))
    draw(every, args.out / "samplers-shapes.png")


if __name__ == "__main__":
    main()
