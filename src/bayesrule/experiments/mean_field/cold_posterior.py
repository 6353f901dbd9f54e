"""The cold posterior (L·p)^{1/T} by Hamiltonian Monte Carlo, without augmentation: is any T below 1 better than 1?"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule.data import digits, moons
from bayesrule.evaluate import chains, evaluate
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import average
from bayesrule.methods import HMC
from bayesrule.models import build
from bayesrule.priors import Gaussian
from bayesrule.temperatures import Cold
from bayesrule.training import fit

SCORES = ("accuracy", "nll", "ece", "confidence")
TEMPERATURES = (0.03, 0.1, 0.3, 1.0, 3.0)
SETS = {False: ("moons",), True: ("moons", "digits")}
SEEDS = {False: 3, True: 5}
EXAMPLES, TESTED = 200, 1000  # to train on, and to test on
OVERLAP = 0.4  # the noise of the moons: about one label in ten is on the wrong side
HIDDEN, SCALE = 10, 1.0
CHAINS, DRAWS, LEAPS = 4, 100, 48
MIXED = 1.05  # R̂ of predictions
MARGIN = 0.01  # nats: a difference of NLL below it is none
WENZEL, IZMAILOV = "Wenzel et al. 2020, the cold posterior effect", "Izmailov et al. 2021, abstract"


@dataclass(frozen=True)
class Fit:
    """One run of chains at a temperature; its seed is that of the data, too."""

    data: str
    T: float
    seed: int


def run(setting: Setting) -> Result:
    """All temperatures on the same data, seed by seed."""
    asked = []
    for name in SETS[setting.full]:
        for seed in findings.seeds(setting, SEEDS[setting.full]):
            asked += [Fit(name, T, seed) for T in TEMPERATURES]
    rows = findings.with_answers(asked, setting.answers(sample, asked))
    notes = (
        f"{EXAMPLES} examples to train on, {TESTED} to test on, other ones for each seed; {HIDDEN} tanh units, prior "
        f"N(0, 1) of all weights, {CHAINS} chains of {DRAWS} draws, no augmentation, no mini-batches. Moons overlap "
        f"(noise {OVERLAP:g}), digits hardly do.",
        "The documents are about deep networks on images: this says nothing of those.",
    )
    plain = {"examples": EXAMPLES, "mean": averages(rows), "fits": rows}
    return Result(claims_of(rows), plain, lambda figure: _draw(figure, rows), (9.0, 3.4), notes)


def data(name: str, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Examples to train on and others to test on."""
    total = EXAMPLES + TESTED
    x, y = moons(total, OVERLAP, seed) if name == "moons" else digits()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    first, rest = order[:EXAMPLES], order[EXAMPLES:total]
    return (x[first], y[first]), (x[rest], y[rest])


def sample(asked: Fit, data_dir: str | None) -> dict[str, Any]:
    """Chains at this temperature, their test scores and how they have mixed."""
    train, test = data(asked.data, asked.seed)
    classes = int(train[1].max()) + 1
    spec = {"inputs": train[0].shape[1], "outputs": classes, "hidden": [HIDDEN], "activation": "tanh"}
    network = build({"name": "mlp", **spec}, asked.seed)
    method = HMC(chains=CHAINS, draws=DRAWS, warm_up=DRAWS, leaps=LEAPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of chains that have not mixed: R̂ is among what is stored
        posterior = fit(
            network, train, method, prior=Gaussian(SCALE), temperature=Cold(asked.T), seed=asked.seed, val=0
        )
    scores = evaluate(posterior, test, samples=CHAINS * DRAWS, bootstrap=0)
    told = posterior.info["diagnostics"]
    return {
        **{name: float(scores[name]) for name in SCORES},
        "epistemic": float(posterior.predict(test[0], samples=CHAINS * DRAWS).epistemic.mean()),
        "r_hat": chains(posterior, test[0]).worst,
        "acceptance": average(told["acceptance"])[0],
        "divergences": sum(told["divergences"]),
    }


def averages(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard error over seeds of each score, by data and temperature."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in dict.fromkeys(row["data"] for row in rows):
        found[name] = {}
        for T in TEMPERATURES:
            own: dict[str, float] = {}
            for metric in (*SCORES, "epistemic"):
                centre, error = average(_values(rows, name, T, metric))
                own |= {metric: centre, f"{metric}_error": error}
            found[name][f"{T:g}"] = own
    return found


# ---- claims ----------------------------------------------------------------------------------------------------------


def claims_of(rows: Sequence[dict[str, Any]]) -> tuple[Claim, ...]:
    """What is claimed of each set, beside fits as `run` stores them."""
    found = []
    for name in dict.fromkeys(row["data"] for row in rows):
        found += [_mixed(rows, name), _cold(rows, name), _no_effect(rows, name), _as_accurate(rows, name)]
    return tuple(found)


def _mixed(rows: Sequence[dict[str, Any]], name: str) -> Claim:
    worst = {f"T = {T:g}": max(_values(rows, name, T, "r_hat")) for T in TEMPERATURES}
    return Claim(
        "this library, br.evaluate.chains",
        f"{name}: the chains have mixed at every T (R̂ of all predictions at most {MIXED:g})",
        ", ".join(f"{value:.3f} ({T})" for T, value in worst.items()),
        max(worst.values()) <= MIXED,
    )


def _cold(rows: Sequence[dict[str, Any]], name: str) -> Claim:
    """One T below 1 is enough; none, if each is worse."""
    verdicts = [findings.not_worse(_losses(rows, name, T), 0) for T in _colder()]
    held = None
    if True in verdicts:
        held = True
    elif not any(verdict is None for verdict in verdicts):
        held = False
    return Claim(WENZEL, f"{name}: some T below 1 has a lower NLL than T = 1", _listed(rows, name, "nll"), held)


def _no_effect(rows: Sequence[dict[str, Any]], name: str) -> Claim:
    verdicts = []
    for T in _colder():
        verdicts.append(findings.not_worse([-loss for loss in _losses(rows, name, T)], MARGIN))
    return Claim(
        IZMAILOV,
        f"{name}: no tempering is needed without augmentation: the NLL of T = 1 is within {MARGIN:g} nats of that of "
        "every T below 1, or lower",
        _listed(rows, name, "nll"),
        findings.all_hold(verdicts),
    )


def _as_accurate(rows: Sequence[dict[str, Any]], name: str) -> Claim:
    at_one = _values(rows, name, 1.0, "accuracy")
    verdicts = []
    for T in _colder():
        gains = findings.differences(at_one, _values(rows, name, T, "accuracy"))
        verdicts.append(findings.not_worse(gains, findings.ACCURACY))
    return Claim(
        IZMAILOV,
        f"{name}: nor for accuracy (T = 1 is within half a point of every T below 1, or above)",
        _listed(rows, name, "accuracy"),
        findings.all_hold(verdicts),
    )


def _colder() -> list[float]:
    return [T for T in TEMPERATURES if T < 1]


def _values(rows: Sequence[dict[str, Any]], name: str, T: float, metric: str) -> list[float]:
    """By seed."""
    return [row[metric] for row in rows if row["data"] == name and row["T"] == T]


def _losses(rows: Sequence[dict[str, Any]], name: str, T: float) -> list[float]:
    """By how much the NLL of T = 1 is above that of T, seed by seed."""
    return findings.differences(_values(rows, name, 1.0, "nll"), _values(rows, name, T, "nll"))


def _listed(rows: Sequence[dict[str, Any]], name: str, metric: str) -> str:
    return findings.listed({f"T = {T:g}": _values(rows, name, T, metric) for T in TEMPERATURES})


# ---- figure ----------------------------------------------------------------------------------------------------------


def _draw(figure: Figure, rows: Sequence[dict[str, Any]]) -> None:
    accuracy, nll = panels(figure, 2)
    found = averages(rows)
    for name, by_temperature in found.items():
        _line(accuracy, by_temperature, "accuracy", name)
        _line(nll, by_temperature, "nll", name)
    for axes, title in ((accuracy, "test accuracy"), (nll, "test NLL, nats")):
        axes.axvline(1.0, color="0.6", lw=1)
        axes.set(xscale="log", xlabel="T of (L·p)^{1/T}", title=title)
        axes.legend()


def _line(axes: Axes, by_temperature: dict[str, dict[str, float]], metric: str, name: str) -> None:
    means = [own[metric] for own in by_temperature.values()]
    errors = [own[f"{metric}_error"] for own in by_temperature.values()]
    axes.errorbar(TEMPERATURES, means, errors, fmt="o-", markersize=4, capsize=3, label=name)
