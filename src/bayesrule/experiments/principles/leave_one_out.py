"""What is each example worth? Leave-one-out by perturbation beside training again, planted errors, generalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesrule import gp
from bayesrule.data import load_set, moons, sine
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import said
from bayesrule.likelihoods import Categorical, Gaussian, Likelihood
from bayesrule.methods import Ensemble, Laplace, Method
from bayesrule.models import mlp
from bayesrule.posteriors import Posterior
from bayesrule.priors import Gaussian as Normal
from bayesrule.seeds import untouched
from bayesrule.training import Progress, fit

SEEDS = {False: 1, True: 3}
ROWS = {False: 40, True: 100}  # left out one by one
UNITS, NOISE = 8, 0.2
TO_THE_MODE = Laplace(structure="dense", tune="nothing", newton=30, lr=1e-2)
AGAIN = Laplace(structure="dense", tune="nothing", newton=30, lr=1e-9)  # from the trained weights: Newton's steps alone
EPOCHS = 600
FLIPPED = 0.05  # of the labels of digits
MEMBERS = {False: 1, True: 5}
SOURCE = "Nickl et al. 2023"


@dataclass(frozen=True)
class LeftOut:
    """A network on a toy set, and so many of its rows left out one by one."""

    kind: str
    rows: int
    seed: int


@dataclass(frozen=True)
class Flipped:
    """Digits with some labels wrong, and networks that are to find them."""

    members: int
    seed: int


def run(setting: Setting) -> Result:
    """Retraining without single rows; labels that were changed; the course of one training."""
    seeds = findings.seeds(setting, SEEDS[setting.full])
    rows = ROWS[setting.full]
    asked = [LeftOut(kind, rows, seed) for kind in KINDS for seed in seeds]
    left = findings.with_answers(asked, setting.answers(leave_out, asked))
    wanted = [Flipped(MEMBERS[setting.full], seed) for seed in seeds]
    flipped = findings.with_answers(wanted, setting.answers(find, wanted))
    claims = claims_of(left, flipped)
    data = {"left_out": left, "flipped": flipped}
    return Result(claims, data, lambda figure: _draw(figure, left, flipped), (11.0, 3.3))


def _sine(seed: int) -> tuple[Tensor, Tensor, nn.Module, Likelihood]:
    x, y = sine(n=60, seed=seed)
    return x.double(), y.double(), _network(1, 1, seed), Gaussian(NOISE)


def _moons(seed: int) -> tuple[Tensor, Tensor, nn.Module, Likelihood]:
    x, y = moons(n=100, seed=seed)
    return x.double(), y, _network(2, 2, seed), Categorical()


KINDS = {"sine": _sine, "moons": _moons}


def _network(inputs: int, outputs: int, seed: int) -> nn.Module:
    with untouched(torch.device("cpu")):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, UNITS), nn.Tanh(), nn.Linear(UNITS, outputs)).double()


def leave_out(question: LeftOut, data_dir: str | None) -> dict[str, Any]:
    """Deviations and scores of left-out rows: predicted from one fit, and after training again without each."""
    x, y, network, likelihood = KINDS[question.kind](question.seed)

    def trained(start: nn.Module, rows: Tensor, method: Method, epochs: int) -> Posterior:
        data = x[rows], y[rows]
        return fit(start, data, method, likelihood, Normal(1.0), epochs=epochs, batch_size=len(rows), val=0)

    everyone = torch.arange(len(y))
    posterior = trained(network, everyone, TO_THE_MODE, EPOCHS)
    found = gp.influence(posterior, (x, y))
    mode = posterior.at_mean()
    deviations, nll = [], []
    chosen = everyone[: question.rows]
    for row in chosen.tolist():
        other = trained(mode, everyone[everyone != row], AGAIN, 1)
        with torch.no_grad():
            deviations.append((other.at_mean()(x[row, None]) - mode(x[row, None]))[0].tolist())
        nll.append(float(-other.predict(x[row, None]).log_prob(y[row, None])))
    predicted, truth = found.deviation[chosen], torch.tensor(deviations).double()
    return {
        "deviation": {"predicted": predicted.tolist(), "retrained": deviations},
        "nll": {"predicted": found.nll[chosen].tolist(), "retrained": nll},
        "deviation_rank": ranks_agree(predicted.flatten(), truth.flatten()),
        "nll_rank": ranks_agree(found.nll[chosen], torch.tensor(nll)),
        "predicted_nll": float(found.nll[chosen].mean()),
        "retrained_nll": sum(nll) / len(nll),
    }


def ranks_agree(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation.

    >>> ranks_agree(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([3.0, 4.0, 5.0]))
    1.0
    """
    from scipy.stats import spearmanr

    return float(spearmanr(a.numpy(), b.numpy()).statistic)


def find(question: Flipped, data_dir: str | None) -> dict[str, Any]:
    """The share of wrong labels among the most suspicious, by leave-one-out and by the fit itself."""
    split = load_set("digits", data_dir, seed=question.seed)
    x, y = split.train
    wrong, labels = flip(y, question.seed)
    course: list[tuple[int, Posterior]] = []

    def watch(progress: Progress) -> None:
        if progress.epoch_ended and progress.epoch % 10 == 0:
            course.append((progress.epoch + 1, progress.posterior()))

    method: Method = Laplace()
    if question.members > 1:
        method = Ensemble(question.members, Laplace())
    with untouched(torch.device("cpu")):
        torch.manual_seed(question.seed)
        network = mlp(64, 10, hidden=(32,))
    posterior = fit(network, (x, labels), method, seed=question.seed)
    found = gp.influence(posterior, (x, labels))
    count = len(wrong)
    return {
        "found": _share(found.suspicious[:count], wrong),
        "by_fit": _share(found.fitted.argsort(descending=True)[:count], wrong),
        "flipped": count,
        "nll": found.nll.tolist(),
        "wrong": wrong.tolist(),
        "generalisation": found.generalisation,
    }


def flip(y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Which rows, and the labels with others in these places, each of nine."""
    generator = torch.Generator().manual_seed(seed)
    count = round(FLIPPED * len(y))
    rows = torch.randperm(len(y), generator=generator)[:count]
    labels = y.clone()
    labels[rows] = (y[rows] + 1 + torch.randint(9, (count,), generator=generator)) % 10
    return rows, labels


def _share(chosen: Tensor, wrong: Tensor) -> float:
    return float(torch.isin(wrong, chosen).double().mean())
