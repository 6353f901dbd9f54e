"""Stiff and degenerate problems end in a sound posterior or in an error, never in finite nonsense."""

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.methods import IVON, MAP, Ensemble
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


def sound(posterior, x, y):
    """Whether a prediction on the training data is of the size of what was to be learnt."""
    prediction = posterior.predict(x)
    nll = -prediction.log_prob(y).mean()
    if not y.is_floating_point():
        return bool(nll < 5.0)
    spread = float(y.std()) + float(y.abs().max()) + 1e-12
    return bool(nll.isfinite()) and float((prediction.mean - y).abs().max()) < 100 * max(spread, 1.0)


@pytest.mark.filterwarnings("ignore")  # of inputs and targets on such a scale
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("hidden", [0, 4])
@pytest.mark.parametrize("method", sorted(br.methods.available()))
@pytest.mark.slow
def test_a_sound_posterior_or_an_error(method, hidden, problem):
    check(method, hidden, problem)


def check(method, hidden, problem):
    x, y = PROBLEMS[problem]
    outputs = 1 if y.is_floating_point() else 3
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


QUICK = ["constant target", "thirty equal columns", "inputs times 1e4", "targets plus 1e4"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("problem", QUICK)
@pytest.mark.parametrize("method", ["ivon", "von", "map"])
def test_no_finite_nonsense(method, problem):
    check(method, 0, problem)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [IVON(lr=1e6), MAP(lr=1e4), Ensemble(2, MAP(lr=1e4))], ids=lambda m: m.name)
def test_a_fit_that_ends_worse_than_it_began_has_diverged(method):
    with pytest.raises(Diverged):
        br.fit(nn.Linear(3, 1), plain(), method, br.likelihoods.Gaussian(0.1), epochs=3)
