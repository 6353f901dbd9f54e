"""The deviations of a default fit are learnt: those of exact mean-field inference, wherever they started."""

import math

import numpy as np
import pytest
import torch
from covering import covering, first
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.methods import BBB, IVON, VOGN, VON

NOISE = 0.3


def inputs(seed, n=200, d=5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return x + 0.5 * x[:, :1], torch.randn(d, generator=generator, dtype=torch.float64), generator


def logistic(seed):
    """Data, and mean and deviations of the best mean-field Gaussian under N(0, 1), by quadrature.

    A row's logit is a Gaussian under q, so that the expected loss is a sum of integrals in one dimension.
    """
    x, w, generator = inputs(seed)
    y = torch.rand(len(x), generator=generator, dtype=torch.float64).lt(torch.sigmoid(1.5 * x @ w)).long()
    nodes, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(60))
    mean = torch.zeros_like(w).requires_grad_()
    log_std = torch.full_like(w, -1.0).requires_grad_()
    optimizer = torch.optim.LBFGS([mean, log_std], max_iter=500, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        signs, variance = 2 * y - 1, (2 * log_std).exp()
        logits = (signs * (x @ mean))[:, None] + (x.square() @ variance).sqrt()[:, None] * nodes
        nll = (F.softplus(-logits) @ weights).sum() / math.sqrt(2 * math.pi)
        value = nll + (0.5 * (variance + mean.square()) - log_std).sum()
        value.backward()
        return value

    optimizer.step(loss)
    return (x, y), "bernoulli", mean.detach(), log_std.detach().exp()


def linear(seed):
    """The same for normal noise: the mean is the posterior's, the deviations those given all other weights."""
    x, w, generator = inputs(seed)
    y = x @ w + NOISE * torch.randn(len(x), generator=generator, dtype=torch.float64)
    precision = x.T @ x / NOISE**2 + torch.eye(len(w))
    mean = torch.linalg.solve(precision, x.T @ y / NOISE**2)
    return (x, y), br.likelihoods.Gaussian(NOISE), mean, precision.diagonal().rsqrt()


def fitted(method, data, likelihood):
    torch.manual_seed(0)
    model = nn.Linear(5, 1, bias=False, dtype=torch.float64)
    return br.fit(model, data, method, likelihood, prior=br.priors.Gaussian(1.0))


METHODS = ("ivon", "vogn", "bbb", "von")
PROBLEMS = {"logistic": logistic, "linear": linear}


@pytest.mark.parametrize("seed", first([0, 1]))
@pytest.mark.parametrize(("method", "problem"), covering(METHODS, PROBLEMS, of=2, long=[("von", "linear")]))
def test_a_default_fit_has_the_deviations_of_exact_mean_field_inference(method, problem, seed):
    data, likelihood, _, exact = PROBLEMS[problem](seed)
    found = fitted(method, data, likelihood).std["weight"][0]
    assert (found / exact - 1).abs().max() < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_vogn_has_the_deviations_of_its_own_fixed_point(seed):
    """Squares of the gradients at the data's labels are not quite the curvature: on 200 rows the fixed point itself,
    1/σ² = Σ_i x_i²E_q[(y_i − f)²]/s⁴ + 1, is up to 20 % from exact mean-field inference."""
    (x, y), likelihood, mean, exact = linear(seed)
    variance = exact.square()
    for _ in range(100):
        squares = (y - x @ mean).square() + x.square() @ variance
        variance = 1 / (x.square().T @ squares / NOISE**4 + 1)
    found = fitted("vogn", (x, y), likelihood).std["weight"][0]
    assert (found / variance.sqrt() - 1).abs().max() < 0.05


def test_bbb_says_how_much_of_its_deviations_is_the_start():
    """What it says is near what another start leaves: the change of log σ at the end for that of the start."""
    (x, y), likelihood, _, _ = logistic(0)
    said = {}
    for epochs in (2, 10, 40):
        ends = []
        for std in (0.02, 0.03):
            torch.manual_seed(0)
            model = nn.Linear(5, 1, bias=False, dtype=torch.float64)
            ends.append(br.fit(model, (x, y), BBB(initial_std=std), likelihood, 1.0, epochs=epochs))
        left = float((ends[1].std["weight"] / ends[0].std["weight"]).log().mean()) / math.log(1.5)
        said[epochs] = ends[0].info["diagnostics"]["sigma_from_start"]
        assert abs(said[epochs] - left) < 0.25
    assert said[2] > 0.8
    assert said[40] < 0.2


@pytest.mark.parametrize("kind", first([IVON, VOGN, VON]))
def test_how_much_of_the_deviations_is_the_start_is_said(kind):
    """β₂ᵗ of the first precision is left, averaged over weights; nothing to speak of by default."""
    x, _, _ = inputs(0)
    data, likelihood = (x, (x[:, 0] > 0).long()), "bernoulli"
    model = nn.Linear(5, 1, bias=False, dtype=torch.float64)
    by_default = br.fit(model, data, kind(), likelihood, epochs=100)
    frozen = br.fit(model, data, kind(initial_std=0.02, betas=(0.9, 1 - 1e-5), lr=1e-3), likelihood, epochs=10)
    assert by_default.info["diagnostics"]["sigma_from_start"] < 0.02
    assert frozen.info["diagnostics"]["sigma_from_start"] > 0.95


def test_deviations_given_by_weight_are_where_the_optimiser_starts():
    layer = nn.Linear(2, 1)
    first = [torch.tensor([[1.0, 4.0]]), torch.tensor([9.0])]
    optimizer = br.optim.IVON(layer.parameters(), lr=0.1, ess=100, hess_init=first, weight_decay=0.0)
    assert torch.allclose(optimizer.deviations["0"], torch.tensor([[0.1, 0.05]]))
    assert torch.allclose(optimizer.deviations["1"], torch.tensor([1 / 30]))
    with pytest.raises(ValueError, match="hess_init of parameter 0 must be at least 0 and finite"):
        br.optim.IVON([layer.bias], lr=0.1, ess=100, hess_init=[torch.tensor([-1.0])])


@pytest.mark.parametrize("kind", ["ivon", "vogn", "von"])
def test_a_newton_rate_of_one_solves_a_quadratic_in_one_step(kind):
    """With the right curvature, gradients at the mean, and no momentum."""
    x, w, _ = inputs(0)
    x = torch.linalg.qr(x).Q * math.sqrt(len(x))  # independent weights, each of curvature 1
    model = nn.Linear(5, 1, bias=False, dtype=torch.float64)
    extra = {"model": model} if kind == "vogn" else {}
    optimizer = {"ivon": br.optim.IVON, "vogn": br.optim.VOGN, "von": br.optim.VON}[kind](
        model.parameters(), 1.0, 1e12, hess_init=1.0, newton=True, betas=(0.0, 1 - 1e-12), weight_decay=0.0, **extra
    )
    with optimizer.sampled():
        loss = 0.5 * (model(x)[:, 0] - x @ w).square().mean()
        loss.backward(create_graph=optimizer.twice)
    optimizer.step()
    assert torch.allclose(model.weight[0], w, atol=1e-4)


@pytest.mark.slow
def test_bbb_forgets_the_deviations_that_it_started_from():
    """A start that is wider ends within 15 % of exact mean-field inference too."""
    data, likelihood, _, exact = logistic(0)
    found = fitted(BBB(initial_std=0.5), data, likelihood).std["weight"][0]
    assert (found / exact - 1).abs().max() < 0.15
