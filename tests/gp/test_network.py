"""A network as a Gaussian process, against dense matrices made by autograd."""

import pytest
import torch
from gp_reference import Dense, dense_jacobian
from torch import nn
from torch.autograd.functional import hessian
from torch.testing import assert_close

import bayesrule as br
from bayesrule.gp import features

TIGHT = {"rtol": 1e-8, "atol": 1e-9}
LIKELIHOODS = {
    "gaussian": (br.likelihoods.Gaussian(0.4), 2),
    "categorical": (br.likelihoods.Categorical(), 3),
    "bernoulli": (br.likelihoods.Bernoulli(), 1),
    "poisson": (br.likelihoods.Poisson(), 2),
}


def network(outputs, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def task(name, examples=7, seed=0):
    likelihood, outputs = LIKELIHOODS[name]
    model = network(outputs, seed)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 2, generator=draw, dtype=torch.float64)
    y = likelihood.check(model(x), likelihood.sample(model(x).detach(), draw))
    scales = {"0.weight": 0.5, "0.bias": 1.0, "2.weight": 2.0, "2.bias": 0.7}
    scale = torch.cat([torch.full_like(p.detach().flatten(), scales[name]) for name, p in model.named_parameters()])
    prior = br.priors.Gaussian(scales)
    return model, (x, y), likelihood, prior, scale


@pytest.mark.parametrize("solve", ["primal", "dual"])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_it_is_laplaces_approximation(name, temperature, solve):
    """Mean, covariance and evidence of Σ = (S⁻¹ + Σ JᵀΛJ/η)⁻¹, computed with P × P matrices."""
    model, (x, y), likelihood, prior, scale = task(name)
    dense = Dense(model, x, y, likelihood, scale, temperature)
    gp = br.gp.from_network(model, (x, y), likelihood, prior, temperature, solve=solve)
    new = torch.randn(5, 2, dtype=torch.float64)
    mean, covariance = dense.moments(new)
    found = gp.posterior(new, joint=True)
    assert_close(found.mean, mean, **TIGHT)
    assert_close(found.covariance, covariance, **TIGHT)
    assert_close(gp.posterior(new).covariance, torch.stack([covariance[i, :, i] for i in range(5)]), **TIGHT)
    assert gp.log_marginal_likelihood() == pytest.approx(dense.evidence(), rel=1e-9)
    assert_close(gp.network(new), model(new).detach(), **TIGHT)
    assert_close(gp.prior_mean(new), model(new).detach() - dense_jacobian(model, new) @ flat(model), **TIGHT)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "poisson"])
def test_it_is_regression_on_pseudo_targets(name):
    """μ + K(K + Λ⁻¹)⁻¹(ỹ − μ) with ỹ = f + Λ⁻¹ ∂log p/∂f, for likelihoods whose Λ has an inverse."""
    model, (x, y), likelihood, prior, scale = task(name)
    dense = Dense(model, x, y, likelihood, scale)
    gp = br.gp.from_network(model, (x, y), likelihood, prior)
    new = torch.randn(5, 2, dtype=torch.float64)
    inverse = torch.linalg.inv(dense.hessians)
    targets = model(x).detach() + (inverse @ dense.slopes[..., None])[..., 0]
    size = targets.numel()
    noisy = gp.kernel(x).reshape(size, size) + torch.block_diag(*inverse)
    across = gp.kernel(new, x).reshape(-1, size)
    mean = gp.prior_mean(new) + (across @ torch.linalg.solve(noisy, (targets - gp.prior_mean(x)).flatten())).reshape(
        5, -1
    )
    left = gp.kernel(new).reshape(len(across), -1) - across @ torch.linalg.solve(noisy, across.T)
    found = gp.posterior(new, joint=True)
    assert_close(found.mean, mean, **TIGHT)
    assert_close(found.covariance.reshape(left.shape), left, **TIGHT)


@pytest.mark.parametrize("room", [1, 60, 10**7])
def test_the_kernel_is_that_of_dense_jacobians(room, monkeypatch):
    """In all three aggregates, however few features there is room for."""
    monkeypatch.setattr(features, "ROOM", room)
    model, data, likelihood, prior, scale = task("categorical")
    gp = br.gp.from_network(model, data, likelihood, prior)
    x, z = torch.randn(5, 2, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    left, right = (dense_jacobian(model, t) * scale for t in (x, z))
    full = torch.einsum("ncp,mdp->ncmd", left, right)
    assert_close(gp.kernel(x, z), full, **TIGHT)
    assert_close(gp.kernel(x, z, "class"), torch.einsum("ncmc->cnm", full), **TIGHT)
    assert_close(gp.kernel(x, z, "sum"), torch.einsum("ncmc->nm", full), **TIGHT)
    assert_close(gp.kernel(x), torch.einsum("ncp,mdp->ncmd", left, left), **TIGHT)
    for solve in ("primal", "dual"):
        again = br.gp.from_network(model, data, likelihood, prior, solve=solve)
        mean, covariance = Dense(model, *data, likelihood, scale).moments(x)
        assert_close(again.posterior(x, joint=True).covariance, covariance, **TIGHT)
        assert_close(again.posterior(x).mean, mean, **TIGHT)


def test_uncertainty_of_classes_by_the_papers_formulas():
    """Aleatoric p − p², epistemic diag(Λ J Σ Jᵀ Λ), Λ = diag p − p pᵀ."""
    model, (x, y), likelihood, prior, scale = task("categorical")
    covariance = Dense(model, x, y, likelihood, scale).covariance
    new = torch.randn(5, 2, dtype=torch.float64)
    found = br.gp.from_network(model, (x, y), likelihood, prior).posterior(new)
    p, j = model(new).detach().softmax(1), dense_jacobian(model, new)
    for i in range(5):
        hessian = p[i].diag() - torch.outer(p[i], p[i])
        assert_close(found.epistemic[i], (hessian @ j[i] @ covariance @ j[i].T @ hessian).diagonal(), **TIGHT)
        assert_close(found.aleatoric[i], p[i] - p[i] ** 2, **TIGHT)
    assert_close(found.total, found.aleatoric + found.epistemic)


def test_uncertainty_of_other_targets():
    """Yes or no: p − p² and its square times Var(f); counts: the rate; reals with told noise: exp(v) and Var of m."""
    new = torch.randn(4, 2, dtype=torch.float64)
    for name, moment in (("bernoulli", lambda f: f.sigmoid() * (1 - f.sigmoid())), ("poisson", torch.exp)):
        model, data, likelihood, prior, _ = task(name)
        found = br.gp.from_network(model, data, likelihood, prior).posterior(new)
        shape = found.aleatoric.shape
        assert_close(found.aleatoric, moment(model(new)).reshape(shape).detach(), **TIGHT)
        assert_close(found.epistemic, (moment(model(new)).square() * found.variance).reshape(shape).detach(), **TIGHT)
    model = network(2)
    x, y = torch.randn(9, 2).double(), torch.randn(9).double()
    found = br.gp.from_network(model, (x, y), "heteroscedastic", br.priors.Gaussian(1.0)).posterior(new)
    assert_close(found.epistemic, found.variance[:, 0], **TIGHT)
    assert_close(found.aleatoric, (40 * (model(new)[:, 1] / 40).tanh()).exp().detach(), **TIGHT)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_evidence_of_two_examples_by_draws(seed):
    """Where the model is linear and p(y|f) is not Gaussian, Laplace's evidence at the mode is near the integral."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.tensor([[1.0, 0.5], [-0.5, 1.0]]).double(), torch.tensor([0, 1])
    model, prior = nn.Linear(2, 2, bias=False).double(), br.priors.Gaussian(0.5)
    for _ in range(20):
        model = br.gp.iterate(model, (x, y), prior=prior)
    w = 0.5 * torch.randn(200_000, 2, 2, generator=draw, dtype=torch.float64)
    p = torch.einsum("swd,nd->snw", w, x).softmax(2)
    exact = float((p[:, 0, 0] * p[:, 1, 1]).mean().log())
    assert br.gp.from_network(model, (x, y), prior=prior).log_marginal_likelihood() == pytest.approx(exact, abs=0.02)


def test_at_the_mode_the_process_says_what_the_network_says():
    """Trained by L-BFGS on −log p(D|w) − log p(w)."""
    model, (x, y), likelihood, prior, scale = task("categorical", examples=30)
    descent = torch.optim.LBFGS(model.parameters(), max_iter=2000, tolerance_grad=1e-12, tolerance_change=0)

    def loss():
        descent.zero_grad()
        w = torch.cat([p.flatten() for p in model.parameters()])
        found = nn.functional.cross_entropy(model(x), y, reduction="sum") + (w / scale).square().sum() / 2
        found.backward()
        return found

    descent.step(loss)
    gp = br.gp.from_network(model, (x, y), likelihood, prior)
    new = torch.randn(5, 2, dtype=torch.float64)
    assert_close(gp.posterior(new).mean, gp.network(new), rtol=1e-6, atol=1e-6)


def test_pixelwise_classes():
    """Outputs [B, C, T]: the root of each position in its place, against autograd's Hessian of all outputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Conv1d(2, 3, 1)).double()
    x, y = torch.randn(4, 1, 3).double(), torch.tensor([[0, 2], [1, 1], [2, 0], [0, 1]])
    likelihood = br.likelihoods.Categorical()
    j, f = dense_jacobian(model, x), model(x).detach()
    rows = [
        hessian(lambda f, t=t: -likelihood.log_prob(f.view(1, 3, 2), t[None])[0], a.flatten())
        for a, t in zip(f, y, strict=True)
    ]
    covariance = torch.linalg.inv(torch.einsum("ncp,ncd,ndq->pq", j, torch.stack(rows), j) + torch.eye(j.shape[2]))
    expected = torch.einsum("ncp,pq,ndq->ncd", j, covariance, j)
    for solve in ("primal", "dual"):
        gp = br.gp.from_network(model, (x, y), likelihood, br.priors.Gaussian(1.0), solve=solve)
        assert_close(gp.posterior(x).covariance, expected, **TIGHT)
    assert gp.posterior(x).epistemic.shape == (4, 3, 2)
    assert gp.predict(x).probs.shape == (4, 3, 2)


@pytest.mark.parametrize("kind", ["tuple", "dict", "loader", "flat"])
def test_any_inputs_and_outputs(kind):
    """Inputs as tuples and dicts, data from a loader, outputs [B]: the same process."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, a, b):
            return self.layer(torch.cat([a, b], 1))

    torch.manual_seed(0)
    two = Two().double()
    x, y = torch.randn(8, 2).double(), torch.randn(8).double()
    expected = br.gp.from_network(two.layer, (x, y), br.likelihoods.Gaussian(0.3), "glorot").posterior(x)
    halves = (x[:, :1], x[:, 1:])
    given = {"tuple": halves, "dict": dict(zip("ab", halves, strict=True)), "loader": x, "flat": x}[kind]
    model = {"loader": two.layer, "flat": nn.Sequential(two.layer, nn.Flatten(0))}.get(kind, two)
    train = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 3) if kind == "loader" else (given, y)
    found = br.gp.from_network(model, train, br.likelihoods.Gaussian(0.3), "glorot").posterior(given)
    assert_close(found.mean, expected.mean)
    assert_close(found.covariance, expected.covariance)


def test_predictions_are_those_of_any_posterior():
    """They can be evaluated; the probabilities of classes are those of 20 000 draws of the process, and repeat."""
    model, (x, y), likelihood, prior, _ = task("categorical", examples=40)
    gp = br.gp.from_network(model, (x, y), likelihood, prior)
    scores = br.evaluate(gp, (x, y), bootstrap=0)
    assert 0 <= scores["accuracy"] <= 1
    one, two = (gp.predict(x, seed=0).probs for _ in range(2))
    assert torch.equal(one, two)
    found = gp.posterior(x)
    law = torch.distributions.MultivariateNormal(found.mean.double(), found.covariance.double())
    torch.manual_seed(0)
    drawn = law.sample((20_000,)).softmax(2)
    error = drawn.std(0) / 20_000**0.5
    assert bool(((one - drawn.mean(0)).abs() < 5 * error + 1e-3).all())
    with pytest.raises(ValueError, match="samples must be at least 1, not 0"):
        gp.predict(x, samples=0)


def test_nothing_of_the_users_changes():
    model, (x, y), likelihood, _, _ = task("categorical")
    model.train()
    model[0].bias.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    gp = br.gp.from_network(model.float(), (x.float(), y), likelihood, br.priors.Gaussian(1.0))
    gp.posterior(x).covariance.zero_()
    gp.log_marginal_likelihood()
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a.float(), b) for a, b in zip(before, model.parameters(), strict=True))
    assert "0.bias" not in gp.names
    assert float(gp.posterior(x).variance.min()) > 0
