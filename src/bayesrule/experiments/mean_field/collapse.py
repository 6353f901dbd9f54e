"""The best q of a wide network: at η = 1 it goes back to the prior as neurons are added, at η = τ·p/N it does not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.mean_field import Neurons, gaussian_elbo, slope

SOURCE = "Huix et al. 2022, section 3"
WIDTHS = {False: (100, 300, 1000, 3000, 10_000), True: (100, 300, 1000, 3000, 10_000, 30_000, 100_000)}
EXAMPLES, NOISE, SCALE = 25, 0.1, 1.0
TAU = 4.0  # at which η is one for 100 neurons: both curves start together
STARTS = (0.3, 1.0)  # how far the first means are from the prior's, in its deviations
STEPS = {False: 60, True: 100}  # of L-BFGS, at most
FROM = 1000  # neurons from which on the divergence falls
NEAR, KEPT = 2.0, 2.0  # factors: above 1/N that the divergence may be, and within which it stays for each neuron
BAYES, BALANCED = "η = 1", "η = τ·p/N"


@dataclass(frozen=True)
class Fit:
    """One optimum at a temperature, by at most so many steps."""

    neurons: int
    temperature: float
    examples: int
    noise: float
    steps: int
    seed: int


def run(setting: Setting) -> Result:
    """The optimum at each width and both temperatures, by gradients of the ELBO in closed form: nothing is sampled."""
    asked = []
    for neurons in WIDTHS[setting.full]:
        for temperature in (1.0, TAU * EXAMPLES / neurons):
            asked.append(Fit(neurons, temperature, EXAMPLES, NOISE, STEPS[setting.full], setting.seed))
    answers = setting.answers(best, asked)
    rows = [vars(question) | answer for question, answer in zip(asked, answers, strict=True)]
    bayes, balanced = rows[::2], rows[1::2]
    claims = (_collapse(bayes), _rate(bayes), _kept(balanced), _ignored(bayes, balanced))
    plain = {"fits": rows, "examples": EXAMPLES, "noise": NOISE, "tau": TAU}
    return Result(claims, plain, lambda figure: _draw(figure, bayes, balanced), (11.0, 3.4), _notes())


def data(seed: int) -> tuple[Tensor, Tensor]:
    """25 points of a sine with noise, and a constant beside each input, since the network has no biases."""
    x = torch.linspace(-1, 1, EXAMPLES, dtype=torch.float64)
    noise = torch.randn(EXAMPLES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.stack([x, torch.ones_like(x)], 1), torch.sin(3 * x) + NOISE * noise


def best(asked: Fit, data_dir: str | None) -> dict[str, Any]:
    """The best mean-field q that L-BFGS finds from either start, as plain data."""
    x, y = data(asked.seed)
    ends = [_learn(asked, x, y, spread) for spread in STARTS]
    elbo, found = max(ends, key=lambda end: end[0])
    kl = float(found.divergences(SCALE).sum())
    mean = found.moments(x)[0][:, 0]
    return {
        "elbo": elbo,
        "kl": kl,
        "kl_per_neuron": kl / asked.neurons,
        "rmse": float((mean - y).square().mean().sqrt()),
        "rmse_of_zero": float(y.square().mean().sqrt()),
        "predicted": mean.tolist(),
    }


def _learn(asked: Fit, x: Tensor, y: Tensor, spread: float) -> tuple[float, Neurons]:
    """The ELBO and q at the end, from means that are so far from the prior's."""
    generator = torch.Generator().manual_seed(asked.seed)

    def start(outputs: int) -> nn.Parameter:
        """Each neuron elsewhere: equal ones would stay equal."""
        return nn.Parameter(spread * torch.randn(asked.neurons, outputs, generator=generator, dtype=torch.float64))

    means = [start(2), start(1)]
    logs = [nn.Parameter(torch.zeros_like(mean)) for mean in means]

    def neurons() -> Neurons:
        return Neurons(means[0], SCALE * logs[0].exp(), means[1], SCALE * logs[1].exp())

    optimizer = torch.optim.LBFGS([*means, *logs], max_iter=asked.steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        # over η, so that a neuron's own gradients are of order one at any width
        value = -gaussian_elbo(neurons(), x, y, NOISE, SCALE, asked.temperature) / asked.temperature
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        found = Neurons(*(t.clone() for t in vars(neurons()).values()))
        return float(gaussian_elbo(found, x, y, NOISE, SCALE, asked.temperature)), found


def _collapse(bayes: list[dict[str, Any]]) -> Claim:
    wide = [row["kl"] for row in bayes if row["neurons"] >= FROM]
    return Claim(
        SOURCE,
        "at η = 1, KL(q*‖P0) → 0 as N grows: from 1000 neurons on it falls, ten times as many leave a fifth at most",
        _listed(bayes, "kl"),
        all(a > b for a, b in pairwise(wide)) and wide[-1] <= NEAR * wide[0] * FROM / bayes[-1]["neurons"],
    )


def _rate(bayes: list[dict[str, Any]]) -> Claim:
    wide = [row for row in bayes if row["neurons"] >= FROM]
    found = slope(torch.tensor([row["neurons"] for row in wide]), torch.tensor([row["kl"] for row in wide]))
    return Claim(
        "this library: the pull of the data on a neuron is of order p/N, so N neurons give N·(p/N)²",
        "KL(q*‖P0) falls as 1/N from 1000 neurons on (a slope of −1 ± 0.15)",
        f"log-log slope {found:.3f}",
        abs(found + 1) <= 0.15,
    )


def _kept(balanced: list[dict[str, Any]]) -> Claim:
    each = [row["kl_per_neuron"] for row in balanced]
    return Claim(
        SOURCE,
        "at η = τ·p/N the divergence of a neuron stays (within a factor of 2)",
        f"{_listed(balanced, 'kl_per_neuron')}: a factor of {max(each) / min(each):.2f}",
        max(each) <= KEPT * min(each),
    )


def _ignored(bayes: list[dict[str, Any]], balanced: list[dict[str, Any]]) -> Claim:
    left, kept = bayes[-1], balanced[-1]
    return Claim(
        SOURCE,
        "at η = 1 the widest network predicts as if it had seen no data; balanced, as well as the narrowest does",
        f"root mean square error {left['rmse']:.3f} ({BAYES}), {kept['rmse']:.3f} ({BALANCED}); of zero "
        f"{left['rmse_of_zero']:.3f}, of {balanced[0]['neurons']} neurons {balanced[0]['rmse']:.3f}",
        left["rmse"] > 0.95 * left["rmse_of_zero"] and kept["rmse"] < 1.1 * balanced[0]["rmse"],
    )


def _listed(rows: list[dict[str, Any]], metric: str) -> str:
    return ", ".join(f"{row[metric]:.3g} (N = {row['neurons']})" for row in rows)


def _notes() -> tuple[str, ...]:
    return (
        f"{EXAMPLES} examples of a sine, noise {NOISE:g}, prior N(0, 1) of all weights, τ = {TAU:g}. The ELBO of ReLU "
        "neurons under normal noise is in closed form, so that the optimum is one of numbers and not of draws.",
    )


def _draw(figure: Figure, bayes: list[dict[str, Any]], balanced: list[dict[str, Any]]) -> None:
    total, each, curves = panels(figure, 3)
    for rows, label in ((bayes, BAYES), (balanced, BALANCED)):
        widths = [row["neurons"] for row in rows]
        total.plot(widths, [row["kl"] for row in rows], "o-", markersize=4, label=label)
        each.plot(widths, [row["kl_per_neuron"] for row in rows], "o-", markersize=4, label=label)
    total.set(xscale="log", yscale="log", xlabel="neurons N", title="KL(q*‖P0), nats")
    each.set(xscale="log", yscale="log", xlabel="neurons N", title="KL(q*‖P0) of a neuron, nats")
    total.legend()
    each.legend()
    x, y = data(bayes[0]["seed"])
    curves.plot(x[:, 0], y, ".", color="0.6", label="data")
    # the last one dashed: it is the same as the second
    for row, label, style in ((bayes[-1], BAYES, "-"), (balanced[-1], BALANCED, "-"), (bayes[0], BAYES, "k--")):
        curves.plot(x[:, 0], row["predicted"], style, label=f"{label}, N = {row['neurons']}")
    curves.set(xlabel="x", title="E f(x) under q*")
    curves.legend()
