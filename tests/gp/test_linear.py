"""A linear network is a Gaussian process exactly: against scikit-learn's, from weights that are not the optimum."""

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from torch import nn
from torch.testing import assert_close

import bayesrule as br

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
WEIGHT, BIAS, NOISE = 0.7, 2.0, 0.3


def table(seed, examples, features, outputs):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, features, generator=draw, dtype=torch.float64)
    y = torch.randn(examples, outputs, generator=draw, dtype=torch.float64)
    new = 2 * torch.randn(6, features, generator=draw, dtype=torch.float64)
    return x, y if outputs > 1 else y[:, 0], new


def sklearn_process(bias, noise=NOISE, weight=WEIGHT, scale=BIAS):
    kernel = ConstantKernel(weight**2) * DotProduct(scale / weight if bias else 1e-30)
    return GaussianProcessRegressor(kernel, alpha=noise**2, optimizer=None)


@pytest.mark.parametrize("solve", ["primal", "dual"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("examples", "outputs"), [(12, 1), (3, 1), (12, 3), (2, 3)])
def test_a_linear_network_is_scikit_learns_process(solve, bias, examples, outputs):
    """Mean, covariance and log marginal likelihood to 1e-10."""
    x, y, new = table(0, examples, 4, outputs)
    model = nn.Linear(4, outputs, bias=bias).double()
    prior = br.priors.Gaussian({"weight": WEIGHT, "bias": BIAS} if bias else WEIGHT)
    gp = br.gp.from_network(model, (x, y), br.likelihoods.Gaussian(NOISE), prior, solve=solve)
    sk = sklearn_process(bias).fit(x.numpy(), y.numpy())
    mean, covariance = (torch.from_numpy(t) for t in sk.predict(new.numpy(), return_cov=True))
    covariance = covariance if covariance.ndim == 3 else covariance[..., None]
    found = gp.posterior(new, joint=True)
    assert gp.solver.name == solve
    assert_close(found.mean, mean.reshape(6, outputs), **TIGHT)
    for c in range(outputs):
        assert_close(found.covariance[:, c, :, c], covariance[..., c], **TIGHT)
    assert_close(found.variance, covariance.diagonal().T, **TIGHT)
    assert_close(gp.posterior(new).variance, covariance.diagonal().T, **TIGHT)
    assert gp.log_marginal_likelihood() == pytest.approx(sk.log_marginal_likelihood(), rel=1e-10)
    assert_close(found.aleatoric, torch.full_like(found.aleatoric, NOISE**2), **TIGHT)
    assert_close(found.epistemic, found.variance.reshape(found.epistemic.shape), **TIGHT)


def test_the_prior_mean_is_subtracted():
    """A prior N(m, s²) on y is a prior N(0, s²) on y − m·x."""
    x, y, new = table(1, 8, 3, 1)
    centre = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    prior = br.priors.Gaussian({"weight": WEIGHT, "bias": BIAS}, mean={"weight": centre, "bias": 0.25})
    gp = br.gp.from_network(nn.Linear(3, 1).double(), (x, y), br.likelihoods.Gaussian(NOISE), prior)
    shift = (centre @ x.T)[0] + 0.25
    sk = sklearn_process(True).fit(x.numpy(), (y - shift).numpy())
    expected = torch.from_numpy(sk.predict(new.numpy())) + (centre @ new.T)[0] + 0.25
    assert_close(gp.posterior(new).mean[:, 0], expected, **TIGHT)
    assert_close(gp.prior_mean(new)[:, 0], (centre @ new.T)[0] + 0.25, **TIGHT)
    assert gp.log_marginal_likelihood() == pytest.approx(sk.log_marginal_likelihood(), rel=1e-10)


@pytest.mark.parametrize("subset", ["last-layer", ["2"], ["2.weight", "2.bias"]])
def test_the_last_layer_is_a_process_on_the_features_below(subset):
    x, y, new = table(2, 9, 2, 1)
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    prior = br.priors.Gaussian({"": 1.0, "2.weight": WEIGHT, "2.bias": BIAS})
    gp = br.gp.from_network(model, (x, y), br.likelihoods.Gaussian(NOISE), prior, subset=subset)
    hidden = model[:2].requires_grad_(False)
    sk = sklearn_process(True).fit(hidden(x).numpy(), y.numpy())
    mean, covariance = (torch.from_numpy(t) for t in sk.predict(hidden(new).numpy(), return_cov=True))
    found = gp.posterior(new, joint=True)
    assert_close(found.mean[:, 0], mean, **TIGHT)
    assert_close(found.covariance[:, 0, :, 0], covariance, **TIGHT)
    assert gp.log_marginal_likelihood() == pytest.approx(sk.log_marginal_likelihood(), rel=1e-10)


def test_targets_far_away_come_back_in_double_precision():
    x, y, new = table(3, 15, 3, 1)
    found = []
    for offset in (0, 1e9):
        data = br.data.standardize((x, y + offset))
        model = nn.Linear(3, 1)
        nn.init.constant_(model.weight, 0.5)
        nn.init.zeros_(model.bias)
        gp = br.gp.from_network(model, data, br.likelihoods.Gaussian(torch.tensor(NOISE)))
        found.append(gp.posterior(new).mean.double() - offset)
    assert_close(*found, atol=1e-4, rtol=0)


@pytest.mark.parametrize("outputs", [1, 2])
def test_standardised_data_come_back_in_the_users_units(outputs):
    """Against scikit-learn's process on the standardised numbers, with everything brought back by hand."""
    x, y, new = table(3, 15, 3, outputs)
    x, y, new = 40 + 7 * x, -3 + 5 * y, 40 + 7 * new
    data = br.data.standardize((x, y))
    noise = torch.full((outputs,) if outputs > 1 else (), NOISE)
    prior = br.priors.Gaussian({"weight": WEIGHT, "bias": BIAS})
    gp = br.gp.from_network(nn.Linear(3, outputs).double(), data, br.likelihoods.Gaussian(noise), prior)
    sk = sklearn_process(True, float(noise.double().flatten()[0])).fit(data.x.numpy(), data.y.numpy())
    scaled = data.scaling.inputs.forward(new).numpy()
    mean, covariance = (torch.from_numpy(t) for t in sk.predict(scaled, return_cov=True))
    unit = data.scaling.targets.scale.reshape(-1)
    covariance = covariance.reshape(6, 6, outputs) * unit.square()
    found = gp.posterior(new, joint=True)
    assert_close(found.mean, data.scaling.targets.inverse(mean).reshape(6, outputs), **TIGHT)
    for c in range(outputs):
        assert_close(found.covariance[:, c, :, c], covariance[..., c], **TIGHT)
    assert_close(gp.posterior(new).variance, covariance.diagonal().T, **TIGHT)
    assert_close(found.epistemic.reshape(6, -1), covariance.diagonal().T, **TIGHT)
    assert_close(found.aleatoric.reshape(6, -1), (NOISE * unit).square().expand(6, -1), rtol=1e-6, atol=0)
    lml = sk.log_marginal_likelihood() - 15 * float(unit.log().sum())
    assert gp.log_marginal_likelihood() == pytest.approx(lml, rel=1e-10)
    kernels = [torch.from_numpy(sk.kernel_(scaled)) * u**2 for u in unit]
    assert_close(gp.kernel(new, aggregate="class"), torch.stack(kernels), **TIGHT)
    assert_close(gp.kernel(new, aggregate="sum"), torch.stack(kernels).sum(0), **TIGHT)
    prediction = gp.predict(new, samples=4000)
    error = found.variance.reshape(prediction.mean.shape).sqrt() / 4000**0.5
    assert bool(((prediction.mean - found.mean.reshape(prediction.mean.shape)).abs() < 5 * error).all())


def test_a_float32_network_is_solved_in_double_precision():
    """Noise of 1e-3 and 60 examples: in single precision the system would be lost."""
    x, y, new = table(4, 60, 3, 1)
    model = nn.Linear(3, 1)
    prior = br.priors.Gaussian({"weight": WEIGHT, "bias": BIAS})
    gp = br.gp.from_network(model, (x, y), br.likelihoods.Gaussian(1e-3), prior)
    x, y, new = (t.float().double() for t in (x, y, new))
    sk = sklearn_process(True, 1e-3).fit(x.numpy(), y.numpy())
    mean, covariance = (torch.from_numpy(t) for t in sk.predict(new.numpy(), return_cov=True))
    found = gp.posterior(new, joint=True)
    assert found.mean.dtype == found.covariance.dtype == found.epistemic.dtype == torch.float32
    assert_close(found.mean[:, 0].double(), mean, rtol=1e-5, atol=1e-6)
    assert_close(found.variance[:, 0].double(), covariance.diagonal(), rtol=1e-4, atol=1e-12)


def test_noise_that_is_not_given_is_that_of_all_residuals():
    """Not only of the first examples, which are all that a `Task` looks at."""
    x = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0))
    y = torch.cat([torch.zeros(2000), torch.full((1000,), 3.5)])
    model = nn.Linear(2, 1)
    for likelihood in (None, "gaussian", br.likelihoods.Gaussian()):
        gp = br.gp.from_network(model, (x, y), likelihood)
        residual = (y - model(x)[:, 0]).square().mean().sqrt().detach()
        assert_close(gp.likelihood.noise.float(), residual, rtol=1e-5, atol=0)
    given = br.likelihoods.Gaussian(torch.tensor(0.2))
    assert float(br.gp.from_network(model, (x, y), given).likelihood.noise) == pytest.approx(0.2)
