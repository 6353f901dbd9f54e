"""The ELBO of N neurons and the functional of measures: |ELBO − F̃| ≤ C·p/N, over N and over p."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule import likelihoods
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.likelihoods import Likelihood
from bayesrule.mean_field import Neurons, elbo, limit_functional, slope

SOURCE = "Huix et al. 2022, theorem on |ELBO − F̃|"
LIKELIHOODS = {"gaussian": 1, "bernoulli": 1, "categorical": 10}  # and their outputs
WIDTHS = {False: (10, 32, 100, 320, 1000), True: (10, 32, 100, 320, 1000, 3200, 10_000)}
SIZES = {False: (10, 32, 100, 320, 1000), True: (10, 32, 100, 320, 1000, 3200, 10_000)}
AT_EXAMPLES, AT_NEURONS = 100, 100  # what stays while the other is varied
INPUTS, NOISE, SCALE, ETA = 5, 0.5, 1.0, 1.0
SAMPLES = 200
CLOSE = 0.15


@dataclass(frozen=True)
class Gap:
    """|ELBO − F̃| of drawn neurons on drawn examples."""

    likelihood: str
    neurons: int
    examples: int
    seed: int


def run(setting: Setting) -> Result:
    """Gaps over N at fixed p and over p at fixed N, for three losses and three seeds."""
    asked = []
    for name in LIKELIHOODS:
        for seed in findings.seeds(setting):
            asked += [Gap(name, n, AT_EXAMPLES, seed) for n in WIDTHS[setting.full]]
            asked += [Gap(name, AT_NEURONS, p, seed) for p in SIZES[setting.full] if p != AT_EXAMPLES]
    answers = setting.answers(gap, asked)
    rows = [vars(question) | answer for question, answer in zip(asked, answers, strict=True)]
    claims = []
    for name in LIKELIHOODS:
        own = [row for row in rows if row["likelihood"] == name]
        claims += [_claim(own, name, "neurons", -1), _claim(own, name, "examples", 1), _bound(own, name)]
    plain = {"gaps": rows, "slopes": _slopes(rows)}
    return Result(tuple(claims), plain, lambda figure: _draw(figure, rows), (9.5, 3.4), _notes())


def gap(asked: Gap, data_dir: str | None) -> dict[str, Any]:
    """Both functionals, the distance between them and its standard error."""
    x, y, likelihood = _task(asked)
    neurons = Neurons.drawn(asked.neurons, INPUTS, LIKELIHOODS[asked.likelihood], seed=asked.seed)
    found = elbo(neurons, x, y, likelihood, SCALE, ETA, SAMPLES, asked.seed)
    limit = limit_functional(neurons, x, y, likelihood, SCALE, ETA)
    return {"elbo": found.value, "limit": limit, "gap": abs(found.value - limit), "error": found.error}


def _task(asked: Gap) -> tuple[Tensor, Tensor, Likelihood]:
    """Inputs on a sphere of radius √D, and targets that do not depend on them: the bound holds for any."""
    generator = torch.Generator().manual_seed(asked.seed)
    x = torch.randn(asked.examples, INPUTS, generator=generator, dtype=torch.float64)
    x = x * math.sqrt(INPUTS) / x.norm(dim=1, keepdim=True)
    if asked.likelihood == "gaussian":
        y = torch.randn(asked.examples, generator=generator, dtype=torch.float64)
        return x, y, likelihoods.Gaussian(NOISE)
    outputs = LIKELIHOODS[asked.likelihood]
    labels = torch.randint(max(outputs, 2), (asked.examples,), generator=generator)
    if outputs == 1:
        return x, labels.double(), likelihoods.Bernoulli()
    return x, labels, likelihoods.Categorical()


def _varied(rows: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    fixed, value = ("examples", AT_EXAMPLES) if what == "neurons" else ("neurons", AT_NEURONS)
    return [row for row in rows if row[fixed] == value]


def _by_seed(rows: list[dict[str, Any]], what: str) -> list[float]:
    """The log-log slope of each seed."""
    found = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        own = [row for row in _varied(rows, what) if row["seed"] == seed]
        found.append(slope(torch.tensor([row[what] for row in own]), torch.tensor([row["gap"] for row in own])))
    return found


def _slopes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in LIKELIHOODS:
        own = [row for row in rows if row["likelihood"] == name]
        found[name] = {"neurons": _by_seed(own, "neurons"), "examples": _by_seed(own, "examples")}
    return found


def _claim(rows: list[dict[str, Any]], name: str, what: str, expected: int) -> Claim:
    slopes = _by_seed(rows, what)
    fixed = f"{AT_EXAMPLES} examples" if what == "neurons" else f"{AT_NEURONS} neurons"
    return Claim(
        SOURCE,
        f"|ELBO − F̃| of the {name} likelihood, at {fixed}, has log-log slope {expected:+d} over {what} (within 0.15)",
        f"{', '.join(f'{each:.3f}' for each in slopes)} for three seeds",
        all(abs(each - expected) <= CLOSE for each in slopes),
    )


def _bound(rows: list[dict[str, Any]], name: str) -> Claim:
    """One C for all N and p: the largest gap·N/p is no more than twice the middle one."""
    constants = sorted(row["gap"] * row["neurons"] / row["examples"] for row in rows)
    middle = constants[len(constants) // 2]
    return Claim(
        SOURCE,
        f"one C bounds |ELBO − F̃|·N/p of the {name} likelihood for all N and p (largest at most twice the median)",
        f"from {constants[0]:.3f} to {constants[-1]:.3f}, median {middle:.3f}",
        constants[-1] <= 2 * middle,
    )


def _notes() -> tuple[str, ...]:
    return (
        f"Neurons drawn from one law over a compact set, {INPUTS} inputs; ELBO by {SAMPLES} drawn networks, F̃ exactly. "
        "Both have the same divergence, so η does not matter for the gap.",
    )


def _draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    for ax, what in zip(panels(figure, 2), ("neurons", "examples"), strict=True):
        for colour, name in enumerate(LIKELIHOODS):
            own = _varied([row for row in rows if row["likelihood"] == name], what)
            sizes = [row[what] for row in own]
            ax.plot(sizes, [row["gap"] for row in own], "o", color=f"C{colour}", markersize=3.5, label=name)
            middle = sum(math.log(row["gap"] / _power(row, what)) for row in own) / len(own)
            ends = sorted({min(sizes), max(sizes)})
            line = [math.exp(middle) * (1 / end if what == "neurons" else end) for end in ends]
            ax.plot(ends, line, "-", color=f"C{colour}", lw=0.8)
        fixed = f"{AT_EXAMPLES} examples" if what == "neurons" else f"{AT_NEURONS} neurons"
        law = "1/N" if what == "neurons" else "p"
        ax.set(xscale="log", yscale="log", xlabel=what, title=f"|ELBO − F̃| at {fixed}; lines: {law}")
        ax.legend()


def _power(row: dict[str, Any], what: str) -> float:
    return 1 / row["neurons"] if what == "neurons" else float(row["examples"])
