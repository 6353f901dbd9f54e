"""Which is the better fit? Two curves through the numbers of earthquakes, and the act that doubt of them asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import average, said
from bayesrule.methods import MLE, Laplace, Method
from bayesrule.posteriors import Posterior
from bayesrule.priors import Gaussian
from bayesrule.seeds import mixed
from bayesrule.training import fit

SOURCE = "Khan, Deep learning with Bayesian principles"
STRAIGHT, BENT, BAYES = "straight line", "bent line", "posterior of bent lines"
CATALOGUES = {False: 12, True: 100}
MEANS = {"level": 3.0, "slope": -2.3, "kink": 0.0}  # of log rates in a century: ten times fewer for each magnitude
SCALES = {"level": 0.5, "slope": 0.2, "kink": 2.0}
MIDDLE, BEND = 6.0, 7.4
SEEN = [5.0 + 0.2 * step for step in range(18)]  # magnitudes that are counted, up to 8.4
FEARED = 9.0
DAMAGE = 100.0  # by an earthquake of that magnitude where nothing was built, in costs of building
STEPS = 1500
SAMPLES = 512


class Rates(nn.Module):
    """log rate(m) = level + slope·(m − 6) + kink·max(0, m − 7.4); a straight line has no kink."""

    def __init__(self, bent: bool) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(MEANS["level"]))
        self.slope = nn.Parameter(torch.tensor(MEANS["slope"]))
        self.kink = nn.Parameter(torch.tensor(MEANS["kink"]), requires_grad=bent)

    def forward(self, magnitude: Tensor) -> Tensor:
        """Log rates, one for each magnitude ``[B, 1]``."""
        return self.level + self.slope * (magnitude - MIDDLE) + self.kink * (magnitude - BEND).clamp(min=0)


@dataclass(frozen=True)
class Question:
    """A century of earthquakes, by its seed."""

    seed: int


def run(setting: Setting) -> Result:
    """Catalogues whose truths are drawn from what is believed of them beforehand, so that no fit is favoured."""
    questions = [Question(seed) for seed in findings.seeds(setting, CATALOGUES[setting.full])]
    found = setting.answers(ask, questions)
    likelier = [answer["fit"][BENT] - answer["fit"][STRAIGHT] for answer in found]
    wider = [answer["spread"]["far"] - answer["spread"]["near"] for answer in found]
    paid = {name: [answer["paid"][name] for answer in found] for name in (STRAIGHT, BENT, BAYES)}
    least = [answer["paid"]["truth"] for answer in found]
    claims = (
        Claim(
            SOURCE,
            "of two fits the more flexible one is nearer to the data",
            f"log-likelihood above the straight line's {said(likelier, 2)}",
            min(likelier) > -0.01,
        ),
        Claim(
            SOURCE,
            "where there are less data the posterior is less sure",
            f"deviation of the log rate at magnitude {FEARED:g} above that at {MIDDLE:g} {said(wider, 2)}",
            min(wider) > 0,
        ),
        Claim(
            SOURCE,
            "acting on what the model does not know is less risky than acting on the better fit",
            f"mean cost {findings.listed(paid, 2)}; of whoever knows the truth {said(least, 2)}",
            _less(paid[BAYES], paid[BENT]),
        ),
    )
    first = questions[0]
    gain, error = average(findings.differences(paid[BENT], paid[BAYES]))
    data = {"bend": BEND, "feared": FEARED, "damage": DAMAGE, "gain": [gain, error], "catalogues": found}
    return Result(claims, data, lambda figure: _draw(figure, first, paid, least), (9.0, 3.4))


def _less(costs: list[float], others: list[float]) -> bool | None:
    """Whether a mean cost is lower by two standard errors; None where it is lower by less: catastrophes are rare."""
    gains = findings.differences(others, costs)
    if findings.better(gains):
        return True
    return None if sum(gains) > 0 else False


def century(seed: int) -> tuple[Rates, Tensor, Tensor]:
    """The truth, magnitudes ``[B, 1]``, and how many earthquakes of each there were."""
    generator = torch.Generator().manual_seed(mixed(seed))
    truth = Rates(bent=True)
    with torch.no_grad():
        for name, p in truth.named_parameters():
            p.add_(SCALES[name] * torch.randn((), generator=generator))
        magnitudes = torch.tensor(SEEN)[:, None]
        counts = torch.poisson(truth(magnitudes).exp(), generator=generator)
    return truth.requires_grad_(False), magnitudes, counts[:, 0].long()


def fits(seed: int) -> dict[str, Posterior]:
    """Both lines at their likeliest, and the posterior of bent ones."""
    _, x, y = century(seed)
    ways: dict[str, tuple[Method, bool]] = {
        STRAIGHT: (MLE(lr=0.05), False),
        BENT: (MLE(lr=0.05), True),
        BAYES: (Laplace(structure="dense", tune="nothing", predictive="weights", lr=0.05), True),
    }
    found = {}
    for name, (method, bent) in ways.items():
        prior = Gaussian(SCALES, MEANS) if name == BAYES else None
        found[name] = fit(
            Rates(bent), (x, y), method, "poisson", prior, epochs=STEPS, batch_size=len(x), seed=seed, val=0
        )
    return found


def ask(question: Question, data_dir: str | None = None) -> dict[str, Any]:
    """How well each fits, how sure the posterior is, and what acting on each costs."""
    truth, x, y = century(question.seed)
    found = fits(question.seed)
    feared = torch.tensor([[FEARED]])
    rates = {name: float(_log_rates(posterior, feared).exp().mean()) for name, posterior in found.items()}
    rates["truth"] = float(truth(feared).exp())
    spread = _log_rates(found[BAYES], torch.tensor([[MIDDLE], [FEARED]])).std(0)
    return {
        "fit": {name: float(found[name].predict(x).log_prob(y).sum()) for name in (STRAIGHT, BENT)},
        "spread": {"near": float(spread[0]), "far": float(spread[1])},
        "rates": rates,
        "paid": {name: _paid(rate, rates["truth"]) for name, rate in rates.items()},
    }


def _paid(believed: float, true: float) -> float:
    """The cost of the act that is best if a rate is true, where another one is: to build costs one."""
    return 1.0 if believed * DAMAGE > 1 else true * DAMAGE


def _log_rates(posterior: Posterior, x: Tensor) -> Tensor:
    """Draws of log rates ``[S, B]``."""
    with torch.no_grad():
        return posterior.outputs(x, SAMPLES, torch.Generator().manual_seed(0))[..., 0]


def _draw(figure: Figure, first: Question, paid: dict[str, list[float]], least: list[float]) -> None:
    curves, costs = panels(figure, 2)
    _curves(curves, first)
    names = [*paid, "truth"]
    costs.barh(names, [sum(values) / len(values) for values in (*paid.values(), least)], color=["C0", "C3", "C2", "C7"])
    costs.set(xlabel="mean cost of the act, in costs of building")
    costs.invert_yaxis()


def _curves(axes: Axes, question: Question) -> None:
    truth, x, y = century(question.seed)
    grid = torch.linspace(5, 9.4, 100)[:, None]
    found = fits(question.seed)
    draws = _log_rates(found[BAYES], grid).exp()
    low, high = draws.quantile(torch.tensor([0.05, 0.95]), 0)
    axes.fill_between(grid[:, 0].numpy(), low.numpy(), high.numpy(), color="C2", alpha=0.25, label=f"{BAYES}, 90 %")
    for name, colour in ((STRAIGHT, "C0"), (BENT, "C3")):
        rates = _log_rates(found[name], grid).exp().mean(0)
        axes.plot(grid[:, 0].numpy(), rates.numpy(), color=colour, label=name)
    axes.plot(grid[:, 0].numpy(), truth(grid)[:, 0].exp().numpy(), color="black", ls=":", label="truth")
    seen = y > 0
    axes.scatter(x[seen, 0].numpy(), y[seen].numpy(), s=14, color="black", zorder=3)
    axes.axvline(FEARED, color="C7", lw=0.8)
    axes.set(yscale="log", ylim=(1e-4, 1e3), xlabel="magnitude", ylabel="earthquakes in a century")
    axes.legend()
