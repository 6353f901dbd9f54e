"""Stiff and degenerate problems end in a sound posterior or in an error, never in finite nonsense."""

import math

import pytest
import torch
from covering import covering
from torch import nn

import bayesrule as br
from bayesrule.methods import IVON, MAP, OGN, VOGN, VON, Ensemble
from bayesrule.training import Diverged

N = 60


def plain(seed=0, d=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, d, generator=generator)
    return x, x[:, 0] + 0.1 * torch.randn(N, generator=generator)


def problems():
    """Inputs and targets by what is wrong with them: reals, but for those named classes."""
    x, y = plain()
    found = {
        "constant target": (x, torch.full((N,), 3.0)),
        "zero target": (x, torch.zeros(N)),
        "constant input": (torch.ones(N, 3), y),
        "zero input": (torch.zeros(N, 3), y),
        "one column constant": (torch.cat([x[:, :2], torch.ones(N, 1)], 1), y),
        "collinear columns": (x[:, :1].repeat(1, 3), y),
        "nearly collinear columns": (x[:, :1] + 1e-4 * x, y),
        "thirty equal columns": (x[:, :1].repeat(1, 30), y),
        "one row repeated": (x[:1].expand(N, 3).clone(), y[:1].expand(N).clone()),
        "one row, many targets": (x[:1].expand(N, 3).clone(), y),
        "an outlier": (x, torch.cat([y[:-1], torch.tensor([1e4])])),
        "heavy tails": (x, y / (torch.arange(N) % 10 + 0.01)),
        "two rows": (x[:2], y[:2]),
        "one class": (x, torch.zeros(N, dtype=torch.long)),
        "separable classes": (10 * x, (x[:, 0] > 0).long()),
        "random classes": (x, torch.arange(N) % 3),
        "a rare class": (x, (torch.arange(N) == 0).long()),
        "classes of equal rows": (torch.ones(N, 3), torch.arange(N) % 2),
    }
    ones, rows = torch.ones(N, 1), torch.arange(N)
    found |= {
        "equal rows of contradictory classes": (x[rows // 2], rows % 2),
        "each output on a scale of its own": (x, y[:, None] * torch.tensor([1e-4, 1.0, 1e4])),
        "one-hot, more columns than rows": (torch.eye(2 * N)[:N], y),
        "a nearly constant column": (torch.cat([x[:, :2], ones + 1e-7 * x[:, 2:]], 1), y),
        "a rare class of huge inputs": (1e4 * x, (rows < 2).long()),
        "whole numbers up to 1e5": ((1e5 * torch.rand(N, 3, generator=torch.Generator().manual_seed(1))).round(), y),
        "classes by the sign of inputs times 1e6": (1e6 * x, (x[:, 0] > 0).long()),
        "a single column of zeros and one outlier": (torch.cat([1e3 * ones[:1], 0 * ones[1:]]), y),
    }
    for power in (-6, -4, -2, 2, 4, 6):
        found[f"inputs times 1e{power}"] = (x * 10.0**power, y)
        found[f"targets times 1e{power}"] = (x, y * 10.0**power)
    for power in (-6, -3, 3, 6):
        found[f"a column times 1e{power}"] = (x * torch.tensor([1.0, 1.0, 10.0**power]), y)
    for power in (2, 4, 6):
        found[f"targets plus 1e{power}"] = (x, y + 10.0**power)
    for power in (2, 4, 6):
        found[f"inputs plus 1e{power}"] = (x + 10.0**power, y)
    return found


PROBLEMS = problems()


# Both were chosen on `QUICK`, and judge the rest of the table.
SLACK = 1.5  # nats for each number: outputs that are wrong by three standard deviations, and say so, are 1.2 worse
LEAST = 0.3  # deviation of the reference at least: noise starts at order one, and takes time to come down to none


def reference(y):
    """−log p of the best constant for each number of y: frequencies of classes; the mean and deviation of reals.

    A mean costs the prior of the bias, of about unit scale, half its square in all, so that the best constant lies
    between zero and the mean of the targets.
    """
    if not y.is_floating_point():
        shares = torch.bincount(y).double() / len(y)
        return -float(torch.special.xlogy(shares, shares).sum())
    columns = y.double().reshape(len(y), -1)
    share = torch.linspace(0, 1, 1001, dtype=torch.double)[:, None]
    centre = share * columns.mean(0)
    variance = columns.var(0, correction=0) + (columns.mean(0) - centre).square()
    losses = 0.5 * (variance.clamp_min(LEAST**2) * 2 * torch.pi * torch.e).log() + 0.5 * centre.square() / len(y)
    return float(losses.min(0).values.mean())


def sound(posterior, x, y):
    """Whether predictions of the training data are about as good as the best constant, or better."""
    nll = -float(posterior.predict(x).log_prob(y).sum()) / y.numel()
    return nll < reference(y) + SLACK


@pytest.mark.filterwarnings("ignore")  # of inputs and targets on such a scale
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("hidden", [0, 4])
@pytest.mark.parametrize("method", sorted(br.methods.available()))
@pytest.mark.slow
def test_a_sound_posterior_or_an_error(method, hidden, problem, request):
    if method in ("sgld", "sghmc") and (hidden, problem) == (0, "constant target"):
        # The third of so short a fit that trains the chains brings sgld's mean to 1.0 ± 2.6 for targets of 3.0, and the
        # rest of it goes on slowly: too cautious by 0.4 nats.
        request.applymarker(pytest.mark.xfail(strict=True, reason="a fit too short to come to the mode"))
    check(method, hidden, problem)


@pytest.mark.filterwarnings("ignore")
def test_steps_that_know_no_curvature_stay_within_the_prior():
    """Noise falls to nothing, and ogn's steps went too far: its answer for targets of 3.0 was 2.4 ± 3.0."""
    check("ogn", 0, "constant target")


@pytest.mark.filterwarnings("ignore")
def test_outputs_that_meet_every_target_leave_some_noise():
    """All candidates of auto do: the noise had no most probable value, and became zero."""
    check("auto", 0, "one row repeated")


def check(method, hidden, problem):
    x, y = PROBLEMS[problem]
    outputs = 3
    if y.is_floating_point() and y.ndim == 1:
        outputs = 1
    torch.manual_seed(0)
    width = x.shape[1]
    model = nn.Linear(width, outputs)
    if hidden:
        model = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
    if method in ("mc-dropout", "dropout-ensemble") and not hidden:
        return  # nothing to drop
    try:
        posterior = br.fit(model, (x, y), method, epochs=60, batch_size=8)
    except Diverged:
        return
    assert sound(posterior, x, y)


def test_there_are_forty_problems():
    assert len(PROBLEMS) >= 40


QUICK = ["constant target", "thirty equal columns", "inputs times 1e4", "targets plus 1e4"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("method", "problem"), covering(["ivon", "von", "map"], QUICK, of=2))
def test_no_finite_nonsense(method, problem):
    check(method, 0, problem)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [IVON(lr=1e6), MAP(lr=1e4), Ensemble(2, MAP(lr=1e4))], ids=lambda m: m.name)
def test_a_fit_that_ends_worse_than_it_began_has_diverged(method):
    with pytest.raises(Diverged):
        br.fit(nn.Linear(3, 1), plain(), method, br.likelihoods.Gaussian(0.1), epochs=3)


class Newton(OGN):
    """Gauss–Newton steps whose curvature follows the squared gradients: these go to zero, and the steps to infinity."""

    newton = True


def test_predictions_worse_than_none_at_all_are_refused():
    """Of a network that is lost, by less than a nat an example: 2.8 where log 10 is 2.3."""
    x, y = br.data.digits()
    x, y = x[:600], y[:600]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    method = Newton(lr=0.5, initial_std=None, betas=(0.9, None), tempering=0.5, clip_radius=math.inf)
    with pytest.raises(Diverged, match=r"for outputs of zero it is 2\.3"):
        br.fit(model, (x, y), method, epochs=10)


def networks():
    generator = torch.Generator().manual_seed(7)
    x, pictures = torch.randn(96, 5, generator=generator), torch.randn(64, 1, 8, 8, generator=generator)
    noise = 0.2 * torch.randn(96, generator=generator)
    return {
        "reals": (x, torch.tanh(x[:, 0]) + noise, lambda: br.models.mlp(5, 1, hidden=(24,))),
        "classes": (x, (x[:, 0] + x[:, 1] > 0).long(), lambda: br.models.mlp(5, 2, hidden=(32,))),
        "pictures": (
            pictures,
            torch.arange(64) % 4,
            lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)),
        ),
    }


NETWORKS = networks()


def end(method, name, epochs, **settings):
    x, y, make = NETWORKS[name]
    torch.manual_seed(3)
    assert sound(br.fit(make(), (x, y), method, epochs=epochs, batch_size=8, **settings), x, y)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", ["ivon", "vogn", "von"])
def test_short_fits_are_sound(method, name):
    """A table of further lengths is slow."""
    end(method, name, 1)


@pytest.mark.parametrize("epochs", [2, 4, 10, 40, 160])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", ["ivon", "vogn", "von"])
@pytest.mark.slow
def test_fits_of_any_length_are_sound(method, name, epochs):
    end(method, name, epochs)


@pytest.mark.parametrize(
    "settings", [{"prior": br.priors.Gaussian(0.01)}, {"temperature": 50.0}, {"temperature": 0.01}], ids=str
)
@pytest.mark.parametrize("method", [IVON(), VOGN(), VON(), MAP(), OGN()], ids=lambda m: m.name)
def test_stiff_priors_and_any_temperature_are_no_divergence(method, settings):
    end(method, "classes", 2, **settings)
