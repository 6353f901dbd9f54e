"""What the divergence does on its own: ½λσ² − log σ pulls σ to 1/√λ, ½λμ² pulls μ to the mean of the prior."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesrule import jobs, modules
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.methods import BBB
from bayesrule.posteriors import Gaussian
from bayesrule.priors import Gaussian as GaussianPrior
from bayesrule.training import fit

PRECISIONS = (0.25, 1.0, 4.0)  # λ
CENTRES = (0.0, 1.5)  # means of the prior
START = 0.3  # the first σ
WEIGHTS = 20
STEPS = 500
NEAR = 1e-3  # how far from the prior a trained q may be, in prior deviations
SOURCE = "Romijnders, figure 1"


@jobs.threads(1)
def run(setting: Setting) -> Result:
    """The term and its minimum; trainings without data; and the penalty that the prior gives to one network."""
    lowest = {precision: _lowest(precision) for precision in PRECISIONS}
    ends = []
    for precision in PRECISIONS:
        ends += [_train(precision, centre, STEPS, setting.seed) for centre in CENTRES]
    ratios = {precision: _penalty_ratio(precision) for precision in PRECISIONS}
    claims = (_minimum(lowest), _pull(ends, "σ"), _pull(ends, "μ"), _penalty(ratios))
    plain = {
        "minimum": [{"precision": k, "sigma": v, "expected": k**-0.5} for k, v in lowest.items()],
        "trained": ends,
        "penalty_over_half_precision_w2": list(ratios.values()),
    }
    return Result(claims, plain, lambda figure: _draw(figure, ends), (10.5, 3.2))


def term(sigma: Tensor, precision: float) -> Tensor:
    """½λσ² − log σ: what the divergence from N(0, 1/λ) says of σ.

    >>> term(torch.tensor(1.0), 1.0)
    tensor(0.5000)
    """
    return 0.5 * precision * sigma.square() - sigma.log()


def _lowest(precision: float) -> float:
    """Where the term is lowest on (0, ∞), by bisection of its slope λσ − 1/σ, taken by autograd."""
    low, high = 1e-3, 1e3
    for _ in range(100):
        middle = math.sqrt(low * high)
        sigma = torch.tensor(middle, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(term(sigma, precision), sigma)
        if float(slope) > 0:
            high = middle
        else:
            low = middle
    return math.sqrt(low * high)


class Blind(nn.Module):
    """A network whose output does not depend on its weights: data say nothing about them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WEIGHTS))

    def forward(self, x: Tensor) -> Tensor:
        """Zero for every example."""
        return x * (0 * self.weight.sum())


def _train(precision: float, centre: float, steps: int, seed: int) -> dict[str, Any]:
    """Bayes by Backprop on the divergence alone, from means 1 to 2 away from the prior's and σ = `START`."""
    model = Blind()
    with torch.no_grad():
        model.weight.copy_(centre + torch.linspace(1, 2, WEIGHTS))
    method = BBB(lr=0.05, sigma_lr_ratio=1.0, initial_std=START)
    prior = GaussianPrior(precision**-0.5, mean=centre)
    data = torch.zeros(4, 1), torch.tensor([0, 1, 0, 1])
    posterior = fit(model, data, method, "bernoulli", prior, epochs=steps, batch_size=4, seed=seed, val=0)
    assert isinstance(posterior, Gaussian)
    std, mean = modules.flatten(posterior.std), modules.flatten(posterior.mean)
    return {
        "precision": precision,
        "centre": centre,
        "sigma": float(std.mean()),
        "mean": float(mean.mean()),
        "sigma_off": float((std * precision**0.5 - 1).abs().max()),
        "mean_off": float(((mean - centre) * precision**0.5).abs().max()),
        "divergence": [epoch["penalty"] * 4 / WEIGHTS for epoch in posterior.info["history"]],
    }


def _penalty_ratio(precision: float) -> float:
    """(log p(0) − log p(w)) / (½λw²) for a prior of variance 1/λ, the furthest from one over several w."""
    model = nn.Linear(1, 1, bias=False).double()
    prior = GaussianPrior(precision**-0.5).resolve(model)

    def log_prob(w: float) -> float:
        return float(prior.log_prob({"weight": torch.full((1, 1), w, dtype=torch.float64)}))

    ratios = [(log_prob(0.0) - log_prob(w)) / (0.5 * precision * w**2) for w in (-2.0, 0.5, 3.0)]
    return max(ratios, key=lambda ratio: abs(ratio - 1))


def _minimum(lowest: dict[float, float]) -> Claim:
    return Claim(
        SOURCE,
        "½λσ² − log σ pulls σ to the prior's deviation: it is lowest at σ = 1/√λ",
        ", ".join(f"σ = {sigma:.6f} (λ = {precision:g})" for precision, sigma in lowest.items()),
        all(math.isclose(sigma, precision**-0.5, rel_tol=1e-6) for precision, sigma in lowest.items()),
    )


def _pull(ends: list[dict[str, Any]], what: str) -> Claim:
    """Where trainings on the divergence alone end: every σ or every μ."""
    of = {"σ": "sigma", "μ": "mean"}[what]
    worst = max(end[f"{of}_off"] for end in ends)
    where = ", ".join(f"{end[of]:.4f} (λ = {end['precision']:g}, prior mean {end['centre']:g})" for end in ends)
    return Claim(
        "Romijnders, equation 8",
        f"without data every {what} goes to the prior's (within {NEAR:g} of its deviation)",
        f"mean {what} {where}; none is further off than {worst:.1e} prior deviations",
        worst < NEAR,
    )


def _penalty(ratios: dict[float, float]) -> Claim:
    return Claim(
        "Romijnders, equation 5 (erratum)",
        "a prior of variance 1/λ gives one network the penalty ½λw², as in equation 8, and not λw²",
        ", ".join(f"−log p(w) = {ratio / 2:.6f}·λw² + constant (λ = {k:g})" for k, ratio in ratios.items()),
        all(math.isclose(ratio, 1, rel_tol=1e-9) for ratio in ratios.values()),
    )


def _draw(figure: Figure, ends: list[dict[str, Any]]) -> None:
    terms, training, penalty = panels(figure, 3)
    sigma, w = torch.linspace(0.05, 4, 400), torch.linspace(-2, 2, 101)
    for precision in PRECISIONS:
        (line,) = terms.plot(sigma, term(sigma, precision), label=f"λ = {precision:g}")
        lowest = torch.tensor(precision**-0.5)
        terms.plot(lowest, term(lowest, precision), "o", color=line.get_color())
    terms.set(xlabel="σ", title="½λσ² − log σ, lowest at 1/√λ", ylim=(-0.5, 6))
    terms.legend()
    _trainings(training, ends)
    penalty.plot(w, 0.5 * w.square(), label="½λw² = −log p(w) + constant")
    penalty.plot(w, w.square(), "--", label="λw² (as printed)")
    penalty.set(xlabel="w", title="penalty on one network, λ = 1")
    penalty.legend(loc="upper center")


def _trainings(ax: Axes, ends: list[dict[str, Any]]) -> None:
    for end in ends:
        if end["centre"] == 0:
            ax.plot(end["divergence"], label=f"λ = {end['precision']:g}")
    ax.set(xlabel="step", yscale="log", ylim=(1e-6, None), title="training without data: KL(q‖p) a weight")
    ax.legend()
