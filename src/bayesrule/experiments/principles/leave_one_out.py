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
from bayesrule.evaluate import evaluate
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import said
from bayesrule.likelihoods import Categorical, Gaussian, Likelihood
from bayesrule.methods import MAP, Ensemble, Laplace, Method
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
MOMENTS = (1, 2, 4, 8, 16, 32)  # epochs
RANK, FOUND = 0.9, 0.8  # what is asked for
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


@dataclass(frozen=True)
class Course:
    """One training on digits, looked at after some of its epochs."""

    seed: int


def run(setting: Setting) -> Result:
    """Retraining without single rows; labels that were changed; the course of one training."""
    seeds = findings.seeds(setting, SEEDS[setting.full])
    rows = ROWS[setting.full]
    asked = [LeftOut(kind, rows, seed) for kind in KINDS for seed in seeds]
    left = findings.with_answers(asked, setting.answers(leave_out, asked))
    wanted = [Flipped(MEMBERS[setting.full], seed) for seed in seeds]
    flipped = findings.with_answers(wanted, setting.answers(find, wanted))
    ways = [Course(seed) for seed in seeds]
    courses = findings.with_answers(ways, setting.answers(follow, ways))
    data = {"left_out": left, "flipped": flipped, "courses": courses}
    claims = claims_of(data)
    return Result(claims, data, lambda figure: _draw(figure, data), (12.0, 3.3))


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
    posterior = fit(_classifier(question.seed), (x, labels), Ensemble(question.members, MAP()), seed=question.seed)
    found = gp.influence(posterior, (x, labels), subset="last-layer")
    count = len(wrong)
    return {
        "found": _share(found.suspicious[:count], wrong),
        "by_fit": _share(found.fitted.argsort(descending=True)[:count], wrong),
        "flipped": count,
        "nll": found.nll.tolist(),
        "wrong": wrong.tolist(),
    }


def follow(question: Course, data_dir: str | None) -> dict[str, Any]:
    """Predicted and true test scores at some moments of a training."""
    split = load_set("digits", data_dir, seed=question.seed)
    x, y = split.train
    kept: list[Posterior] = []

    def keep(progress: Progress) -> None:
        if progress.epoch_ended and progress.epoch + 1 in MOMENTS:
            kept.append(progress.posterior())

    fit(
        _classifier(question.seed),
        (x, y),
        MAP(lr=3e-3),
        prior=Normal(1.0),
        epochs=MOMENTS[-1],
        seed=question.seed,
        val=0,
        callbacks=[keep],
    )
    predicted, fitted, tested = [], [], []
    for posterior in kept:
        found = gp.influence(posterior, (x, y), subset="last-layer")
        predicted.append(found.generalisation)
        fitted.append(float(found.fitted.mean()))
        tested.append(float(evaluate(posterior, split.test, bootstrap=0)["nll"]))
    return {"epochs": list(MOMENTS), "predicted": predicted, "training": fitted, "test": tested}


def _classifier(seed: int) -> nn.Module:
    with untouched(torch.device("cpu")):
        torch.manual_seed(seed)
        return mlp(64, 10, hidden=(32,))


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


def claims_of(data: dict[str, Any]) -> tuple[Claim, ...]:
    """Of retraining, by kind of data; of planted errors; of the course of a training."""
    claims = [_ranked(data["left_out"], kind) for kind in KINDS]
    return (*claims, _found(data["flipped"]), _followed(data["courses"]))


def _ranked(left: list[dict[str, Any]], kind: str) -> Claim:
    own = [row for row in left if row["kind"] == kind]
    moved, scored = ([row[name] for row in own] for name in ("deviation_rank", "nll_rank"))
    means = [sum(row[name] for row in own) / len(own) for name in ("predicted_nll", "retrained_nll")]
    return Claim(
        SOURCE,
        f"{kind}: deviations and scores of left-out rows agree with training again, rank correlation at least {RANK}",
        f"deviations {said(moved, 3)}, scores {said(scored, 3)}; mean score {means[0]:.3f}, trained again "
        f"{means[1]:.3f}",
        min(*moved, *scored) >= RANK,
    )


def _found(flipped: list[dict[str, Any]]) -> Claim:
    shares, by_fit = ([row[name] for row in flipped] for name in ("found", "by_fit"))
    return Claim(
        SOURCE,
        f"digits with {FLIPPED:.0%} of the labels wrong: as many of the most suspicious hold at least {FOUND:.0%} of "
        "them",
        f"{said(shares, 3)} by leave-one-out, {said(by_fit, 3)} by the fit itself",
        min(shares) >= FOUND,
    )


def _followed(courses: list[dict[str, Any]]) -> Claim:
    ranks = [ranks_agree(torch.tensor(row["predicted"]), torch.tensor(row["test"])) for row in courses]
    last = {name: [row[name][-1] for row in courses] for name in ("predicted", "test", "training")}
    return Claim(
        SOURCE,
        "the test score while training is predicted from the training data: the ranks of moments agree by at least "
        f"{RANK}",
        f"rank correlation {said(ranks, 3)}; at the end {findings.listed(last, 3)}",
        min(ranks) >= RANK,
    )


def _draw(figure: Figure, data: dict[str, Any]) -> None:
    axes = panels(figure, 4)
    for ax, kind in zip(axes, KINDS, strict=False):
        _scatter(ax, next(row for row in data["left_out"] if row["kind"] == kind), kind)
    row = data["flipped"][0]
    nll, wrong = torch.tensor(row["nll"]), torch.zeros(len(row["nll"]), dtype=torch.bool)
    wrong[row["wrong"]] = True
    bins = torch.linspace(0, float(nll.max()), 40).tolist()
    axes[2].hist([nll[~wrong].tolist(), nll[wrong].tolist()], bins, stacked=True, label=["right", "wrong label"])
    axes[2].set(yscale="log", xlabel="−log p, left out", ylabel="rows", title="digits, 5 % wrong")
    axes[2].legend()
    course = data["courses"][0]
    for name, style in (("predicted", "o-"), ("test", "s-"), ("training", ".:")):
        axes[3].plot(course["epochs"], course[name], style, label=name)
    axes[3].set(xscale="log", yscale="log", xlabel="epoch", ylabel="NLL", title="generalisation, predicted")
    axes[3].legend()


def _scatter(ax: Axes, row: dict[str, Any], kind: str) -> None:
    moved = row["deviation"]
    x, y = (torch.tensor(moved[name]).flatten().tolist() for name in ("retrained", "predicted"))
    ends = [min(x), max(x)]
    ax.plot(ends, ends, color="0.7", lw=1)
    ax.plot(x, y, ".", ms=4)
    ax.set(xlabel="Δf, trained again", ylabel="Δf, predicted", title=f"{kind}: left out")
