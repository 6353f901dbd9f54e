"""A network trained on data with a gap, as a Gaussian process: do its bands hold the data, and does it know the gap?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule import gp
from bayesrule.data import Split, load_set, standardize
from bayesrule.experiments import findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.modes import trained
from bayesrule.priors import Gaussian

SEEDS = {False: 5, True: 20}
EPOCHS = {False: 5000, True: 20_000}  # of one step each
HIDDEN = 20
SCALE = 3.0  # of the prior
Z90 = 1.6449
COVERED = (0.85, 0.95)
GRID = 161
SOURCE = "Khan et al. 2019, regression"


@dataclass(frozen=True)
class RegressionQuestion:
    """A network of one hidden layer on one draw of the data."""

    seed: int
    epochs: int
    hidden: int = HIDDEN
    scale: float = SCALE


def run(setting: Setting) -> Result:
    """Networks on several draws of `br.data.gap`, each turned into a process."""
    first = 100 * setting.seed
    fits = [RegressionQuestion(seed, EPOCHS[setting.full]) for seed in range(first, first + SEEDS[setting.full])]
    found = setting.answers(look, fits)
    claims = (_covers(found), _knows(found), _agrees(found))
    plain = {"fits": findings.with_answers(fits, found)}
    return Result(claims, plain, lambda figure: _draw(figure, found), (10.5, 3.4), (_stands(found),))


def look(question: RegressionQuestion, data_dir: str | None) -> dict[str, Any]:
    """Coverage, variances in the gap and amid the data, and the curves of the figure."""
    split = load_set("gap", seed=question.seed)
    data = standardize(_double(split.train))
    spec = {"name": "mlp", "inputs": 1, "outputs": 1, "hidden": [question.hidden], "activation": "tanh"}
    network, likelihood = trained(spec, data, question.scale, question.epochs, data.n, question.seed)
    process = gp.from_network(network, data, likelihood, Gaussian(question.scale))
    x, y = _double(split.test)
    inside, gap = process.posterior(x), process.posterior(_gap(split))
    mean = process.network(x)[:, 0]
    noise = float(inside.aleatoric[0]) ** 0.5
    return {
        "coverage": float(((y - mean).abs() < Z90 * inside.total.sqrt()).double().mean()),
        "coverage_noise_only": float(((y - mean).abs() < Z90 * noise).double().mean()),
        "noise": noise,
        "epistemic_data": float(inside.epistemic.mean()),
        "epistemic_gap": float(gap.epistemic.mean()),
        "mean_off": float((inside.mean[:, 0] - mean).square().mean().sqrt()) / noise,
        "log_marginal_likelihood": process.log_marginal_likelihood(),
        "curve": _curve(process),
        "train": [[round(float(v), 4) for v in part.flatten()] for part in split.train],
    }


def _double(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return pair[0].double(), pair[1].double()


def _gap(split: Split) -> Tensor:
    assert split.ood is not None
    return split.ood.double()


def _curve(process: gp.NetworkGP) -> dict[str, list[float]]:
    """Mean, network and deviations on a grid beyond the data."""
    x = torch.linspace(-3, 3, GRID, dtype=torch.float64)
    found = process.posterior(x[:, None])
    lines = {
        "x": x,
        "mean": found.mean[:, 0],
        "network": process.network(x[:, None])[:, 0],
        "epistemic": found.epistemic.sqrt(),
        "total": found.total.sqrt(),
    }
    return {name: [round(float(v), 5) for v in line] for name, line in lines.items()}


def _covers(found: list[dict[str, Any]]) -> Claim:
    values = [each["coverage"] for each in found]
    low, high = COVERED
    return Claim(
        SOURCE,
        f"bands of 90 % hold {low:.0%} to {high:.0%} of test points",
        f"{trials.said(values, 3)} over {len(values)} draws of the data, 200 test points each; with the noise alone "
        f"{trials.said([each['coverage_noise_only'] for each in found], 3)}",
        low <= trials.average(values)[0] <= high,
    )


def _knows(found: list[dict[str, Any]]) -> Claim:
    ratios = sorted(each["epistemic_gap"] / each["epistemic_data"] for each in found)
    return Claim(
        SOURCE,
        "the epistemic variance in the gap is more than ten times that where the data are, for each network",
        f"ratios {', '.join(f'{ratio:.0f}' for ratio in ratios)}",
        ratios[0] > 10,
    )


def _agrees(found: list[dict[str, Any]]) -> Claim:
    off = [each["mean_off"] for each in found]
    return Claim(
        SOURCE,
        "at the mode the process has the network for its mean: on test points they differ by less than a tenth of the "
        "noise",
        f"root mean square difference over noise: {min(off):.1e} to {max(off):.1e}",
        max(off) < 0.1,
    )


def _stands(found: list[dict[str, Any]]) -> str:
    noises = trials.said([each["noise"] for each in found], 3)
    return f"The noise was learnt with the weights: {noises}; that of the data is 0.1."


def _draw(figure: Figure, found: list[dict[str, Any]]) -> None:
    left, right = panels(figure, 2)
    _bands(left, found[0])
    for index, each in enumerate(found):
        label = "one for each network" if index == 0 else None
        right.plot(each["curve"]["x"], each["curve"]["epistemic"], color="C0", alpha=0.6, lw=1.0, label=label)
    right.axhline(found[0]["noise"], color="C1", lw=1.0, label="noise")
    right.axvspan(-2.0, -0.7, color="0.5", alpha=0.12, lw=0, label="data")
    right.axvspan(0.7, 2.0, color="0.5", alpha=0.12, lw=0)
    right.set(yscale="log", xlabel="x", ylabel="deviation", title="epistemic deviation")
    right.set(ylim=(None, 4 * right.get_ylim()[1]))  # room for the legend
    right.legend(loc="upper center", ncols=3)


def _bands(ax: Axes, each: dict[str, Any]) -> None:
    curve = {name: torch.tensor(line) for name, line in each["curve"].items()}
    for name, alpha, label in (("total", 0.18, "90 % of y"), ("epistemic", 0.35, "90 % of f")):
        half = Z90 * curve[name]
        low, high = curve["mean"] - half, curve["mean"] + half
        ax.fill_between(curve["x"], low, high, color="C0", alpha=alpha, lw=0, label=label)
    ax.plot(curve["x"], curve["mean"], color="C0", label="mean of the process")
    ax.plot(curve["x"], curve["network"], ":", color="0.2", label="network")
    ax.plot(*each["train"], ".", color="0.35", markersize=2.5)
    ax.set(xlabel="x", ylabel="y", ylim=(-3.6, 2.4), title="a network with one hidden layer, as a Gaussian process")
    ax.legend(loc="lower center", ncols=2)
