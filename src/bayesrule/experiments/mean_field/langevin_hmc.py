"""Every method against a long run of Hamiltonian Monte Carlo: a small network, in the data, between and outside."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule.evaluate import agreement, chains
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.likelihoods import Gaussian
from bayesrule.methods import HMC, Method
from bayesrule.models import build
from bayesrule.posteriors import Posterior
from bayesrule.predictions import Reals
from bayesrule.priors import Gaussian as GaussianPrior
from bayesrule.training import fit

EXAMPLES, HIDDEN, NOISE, SCALE = 50, 16, 0.3, 1.0
EXACT = ("hmc", "mala", "lmc", "mclmc")  # whose draws are the posterior's in the long run, and with short steps
METHODS = {
    False: ("hmc", "map", "ensemble", "laplace", "bbb", "mc-dropout", "mclmc", "sgld"),
    True: (
        *("hmc", "mala", "lmc", "mclmc", "sgld", "sghmc", "map", "ensemble", "laplace", "swag"),
        *("bbb", "ivon", "vogn", "mc-dropout"),
    ),
}
CHAINS, LEAPS = 16, 128
DRAWS = {False: 100, True: 250}  # of each chain of the reference, after as many of warm-up
SEEDS = {False: 1, True: 3}
SAMPLES = 500  # networks of a prediction
MIXED = 1.01  # R̂ of predictions up to which the reference counts as one
SIMILAR = 1.5  # the factor within which two distances are similar
NARROW = 0.75  # of the reference's deviation: what is below it is too narrow
INSIDE, BETWEEN, OUTSIDE = "in the data", "between", "outside"
STEP = 0.1  # of the grid of inputs


@dataclass(frozen=True)
class Problem:
    """One set of data, its reference, and the methods that are compared with it."""

    methods: tuple[str, ...]
    draws: int
    seed: int


def run(setting: Setting) -> Result:
    """Each method at its defaults, on several sets of data that each have a reference of their own."""
    full = setting.full
    asked = [Problem(METHODS[full], DRAWS[full], seed) for seed in findings.seeds(setting, SEEDS[full])]
    rows = findings.with_answers(asked, setting.answers(compare, asked, say=_said))
    plain = {"noise": NOISE, "examples": EXAMPLES, "mean": averages(rows), "problems": rows}
    notes = (
        f"{EXAMPLES} points of a curve in two clusters, known noise {NOISE:g}, {HIDDEN} tanh units, prior N(0, 1) of "
        f"all weights. The reference: {CHAINS} chains, {DRAWS[full]} draws of each. Methods at their defaults, none "
        "tuned; `hmc` among them is a run of default length: its distance is what fewer and shorter trajectories cost.",
        f"Predictions are by {SAMPLES} networks, so that their means are uncertain by {SAMPLES**-0.5:.1%} of the "
        "deviation of f, for the reference too.",
        "The documents compare classes of images (CIFAR-10, ResNet-20) and ReLU units: here it is regression by tanh.",
    )
    return Result(claims_of(rows), plain, lambda figure: _draw(figure, rows), (11.0, 4.0), notes)


def data(seed: int) -> tuple[Tensor, Tensor]:
    """50 points of a curve with noise, in [−2, −0.8] and [0.8, 2]."""
    generator = torch.Generator().manual_seed(seed)
    within = 1.2 * torch.rand(EXAMPLES, 1, generator=generator)
    left = torch.arange(EXAMPLES)[:, None] % 2 == 0
    x = torch.where(left, within - 2, within + 0.8)
    return x, 0.8 * torch.sin(2 * x[:, 0]) + 0.3 * x[:, 0] + NOISE * torch.randn(EXAMPLES, generator=generator)


def regions() -> dict[str, Tensor]:
    """Inputs where data are, between the clusters, and outside.

    >>> {name: len(x) for name, x in regions().items()}
    {'in the data': 26, 'between': 11, 'outside': 32}
    """
    inside = torch.cat([_grid(-2, -0.8), _grid(0.8, 2)])
    return {INSIDE: inside, BETWEEN: _grid(-0.5, 0.5), OUTSIDE: torch.cat([_grid(-4, -2.5), _grid(2.5, 4)])}


def _grid(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, round((high - low) / STEP) + 1)[:, None]


def compare(asked: Problem, data_dir: str | None) -> dict[str, Any]:
    """The reference, and each method beside it, as plain data."""
    reference = _fitted(HMC(chains=CHAINS, draws=asked.draws, warm_up=asked.draws, leaps=LEAPS), asked.seed)
    told = chains(reference, torch.cat(list(regions().values())))
    rows = {}
    for name in asked.methods:
        # another seed of the noise: chains of the same one would repeat the reference's start
        rows[name] = beside(_fitted(name, asked.seed, noise=asked.seed + 1), reference)
    curve = _curve(reference)
    return {"reference": {"r_hat": told.worst, "ess": told.least, "curve": curve}, "found": rows}


def _fitted(method: str | Method, seed: int, noise: int | None = None) -> Posterior:
    network = build({"name": "mlp", "inputs": 1, "outputs": 1, "hidden": [HIDDEN], "activation": "tanh"}, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of default chains that have not mixed: the distance shows what that costs
        return fit(
            network,
            data(seed),
            method,
            Gaussian(NOISE),
            GaussianPrior(SCALE),
            seed=seed if noise is None else noise,
            val=0,
        )


def beside(posterior: Posterior, reference: Posterior) -> dict[str, Any]:
    """By region: Wasserstein distance of y, error of the mean, and the ratio of deviations of f; then the curve."""
    found: dict[str, Any] = {}
    for name, x in regions().items():
        ours, theirs = _predicted(posterior, x), _predicted(reference, x)
        distance = agreement(posterior, reference, x, samples=SAMPLES, bootstrap=0)["wasserstein"]
        found[name] = {
            "wasserstein": float(distance),
            "mean_error": float((ours.mean - theirs.mean).square().mean().sqrt()),
            "deviation_ratio": float((ours.epistemic.mean() / theirs.epistemic.mean()).sqrt()),
        }
    found["wasserstein"] = mean(found[name]["wasserstein"] for name in regions())
    found["r_hat"] = posterior.info.get("diagnostics", {}).get("r_hat")
    found["curve"] = _curve(posterior)
    return found


def _predicted(posterior: Posterior, x: Tensor) -> Reals:
    prediction = posterior.predict(x, samples=SAMPLES)
    assert isinstance(prediction, Reals)
    return prediction


def _curve(posterior: Posterior) -> dict[str, list[float]]:
    """Mean and deviation of f over the whole range, to draw."""
    prediction = _predicted(posterior, _grid(-4, 4))
    deviation = prediction.epistemic.sqrt()
    return {
        "mean": [round(value, 4) for value in prediction.mean.flatten().tolist()],
        "deviation": [round(value, 4) for value in deviation.flatten().tolist()],
    }


def averages(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each method, its figures averaged over the problems."""
    found: dict[str, dict[str, Any]] = {}
    for name in rows[0]["found"]:
        each = [row["found"][name] for row in rows]
        own: dict[str, Any] = {"wasserstein": mean(one["wasserstein"] for one in each)}
        for region in regions():
            own[region] = {key: mean(one[region][key] for one in each) for key in each[0][region]}
        found[name] = own
    return found


# ---- claims ----------------------------------------------------------------------------------------------------------


def claims_of(rows: Sequence[dict[str, Any]]) -> tuple[Claim, ...]:
    """What is claimed, beside problems as `run` stores them."""
    return _mixed(rows), _exact(rows), _closer(rows), _similar(rows), _between(rows)


def in_every(verdicts: Iterable[bool]) -> bool | None:
    """Held if it is so in every problem, not held if in none, else undecided.

    >>> in_every([True, True]), in_every([False, False]), in_every([True, False])
    (True, False, None)
    """
    verdicts = list(verdicts)
    if all(verdicts):
        return True
    return None if any(verdicts) else False


def _mixed(rows: Sequence[dict[str, Any]]) -> Claim:
    worst = [row["reference"]["r_hat"] for row in rows]
    return Claim(
        "this library, br.evaluate.chains",
        f"the chains of the reference have mixed: R̂ of all predictions is at most {MIXED:g}",
        ", ".join(f"{value:.4f}" for value in worst),
        in_every(value <= MIXED for value in worst),
    )


def _exact(rows: Sequence[dict[str, Any]]) -> Claim:
    """The worst sampler against the best other method, problem by problem."""
    verdicts = []
    for row in rows:
        found = row["found"]
        samplers = [found[name]["wasserstein"] for name in EXACT if name in found]
        others = [one["wasserstein"] for name, one in found.items() if name not in EXACT]
        verdicts.append(max(samplers) < min(others))
    return Claim(
        "this library",
        "at their defaults, samplers of all data are nearer to the reference than every other method",
        f"Wasserstein distance {_listed(rows, rows[0]['found'])}",
        in_every(verdicts),
    )


def _closer(rows: Sequence[dict[str, Any]]) -> Claim:
    return Claim(
        "Izmailov et al. 2021, abstract",
        "predictions of an ensemble are closer to those of HMC than predictions of mean-field variational inference",
        f"Wasserstein distance {_listed(rows, ('ensemble', 'bbb'))}",
        in_every(_distance(row, "ensemble") < _distance(row, "bbb") for row in rows),
    )


def _similar(rows: Sequence[dict[str, Any]]) -> Claim:
    verdicts = []
    for row in rows:
        ratio = _distance(row, "ensemble") / _distance(row, "sgld")
        verdicts.append(1 / SIMILAR <= ratio <= SIMILAR)
    return Claim(
        "Izmailov et al. 2021, abstract",
        "predictions of an ensemble are about as close to those of HMC as those of SGLD "
        f"(within a factor of {SIMILAR:g})",
        f"Wasserstein distance {_listed(rows, ('ensemble', 'sgld'))}",
        in_every(verdicts),
    )


def _between(rows: Sequence[dict[str, Any]]) -> Claim:
    names = ("bbb", "mc-dropout")
    verdicts, said = [], []
    for row in rows:
        verdicts.append(all(_ratio(row, name) < NARROW for name in names))
    for name in names:
        said.append(f"{mean(_ratio(row, name) for row in rows):.3f} ({name})")
    return Claim(
        "Foong et al. 2020",
        "between two clusters of data, mean-field variational inference and MC dropout are too sure: their deviation "
        f"of f is below {NARROW:g} of the exact one",
        f"ratio {', '.join(said)}",
        in_every(verdicts),
    )


def _distance(row: dict[str, Any], name: str) -> float:
    return float(row["found"][name]["wasserstein"])


def _ratio(row: dict[str, Any], name: str) -> float:
    return float(row["found"][name][BETWEEN]["deviation_ratio"])


def _listed(rows: Sequence[dict[str, Any]], names: Iterable[str]) -> str:
    """The mean distances of methods, the nearest first."""
    found = {name: mean(_distance(row, name) for row in rows) for name in names}
    ordered = sorted(found, key=lambda name: found[name])
    return ", ".join(f"{found[name]:.3f} ({name})" for name in ordered)


def _said(asked: Problem, answer: dict[str, Any]) -> str:
    reference = answer["reference"]
    return f"seed {asked.seed}: R̂ of the reference {reference['r_hat']:.4f}, {len(answer['found'])} methods beside it"


# ---- figure ----------------------------------------------------------------------------------------------------------

DRAWN = ("hmc", "ensemble", "laplace", "bbb", "mc-dropout", "sgld")


def _draw(figure: Figure, rows: Sequence[dict[str, Any]]) -> None:
    bars, curves = panels(figure, 2)
    _bars(bars, averages(rows))
    first = rows[0]
    x = _grid(-4, 4)[:, 0]
    curves.plot(x, first["reference"]["curve"]["deviation"], color="black", lw=2.5, label="reference")
    for name in DRAWN:
        curves.plot(x, first["found"][name]["curve"]["deviation"], lw=1.2, label=name)
    for low, high in ((-2.0, -0.8), (0.8, 2.0)):
        curves.axvspan(low, high, color="0.9", zorder=0)
    curves.set(
        xlabel="x (grey: where data are)", title="deviation of f(x), first problem", yscale="log", ylim=(1e-2, 5)
    )
    curves.legend(ncols=2)


def _bars(axes: Axes, found: dict[str, dict[str, Any]]) -> None:
    """Distances by method and region, the nearest on top."""
    names = sorted(found, key=lambda name: -found[name]["wasserstein"])
    height = 0.27
    for index, region in enumerate(regions()):
        places = [row + (1 - index) * height for row in range(len(names))]
        axes.barh(places, [found[name][region]["wasserstein"] for name in names], height, label=region)
    axes.set_yticks(range(len(names)), names)
    axes.set(title="Wasserstein distance from the reference")
    axes.legend()
