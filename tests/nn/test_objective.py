"""The objective against closed forms and quadrature: value, gradients, their variances, and where training ends."""

import math

import numpy as np
import pytest
import torch
from covering import first, later
from hypothesis import given
from hypothesis import strategies as st
from networks import generator, mlp, zoo
from torch import nn
from torch.distributions import Laplace as LaplaceDistribution
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import bayesrule as br
from bayesrule import modules
from bayesrule.methods import BBB, Noise
from bayesrule.nn import ESTIMATORS, bayesianize
from bayesrule.optim import Group
from bayesrule.priors import Flat, Gaussian, Laplace, ScaleMixture, Structured
from bayesrule.structures import Diagonal, LowRank

NOISE = Noise.on(torch.device("cpu"))


def spread(bnn, seed=0):
    """Means and deviations all over the place."""
    with torch.no_grad():
        bnn.mean.normal_(generator=generator(seed))
        bnn.rho.normal_(generator=generator(seed + 1))
    return bnn


GAUSSIANS = {
    "standard": Gaussian(),
    "kaiming": Gaussian("kaiming"),
    "anywhere": Gaussian(0.3, mean=-2.0),
}


@pytest.mark.parametrize("prior", GAUSSIANS.values(), ids=list(GAUSSIANS))
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", zoo())
def test_divergence_is_the_sum_of_closed_forms(kind, estimator, prior):
    model = zoo()[kind][0].double()
    bnn = spread(bayesianize(model, prior, estimator))
    resolved = prior.resolve(model)
    expected = sum(
        kl_divergence(Normal(m, bnn.stds[k]), Normal(torch.full_like(m, resolved.mean[k]), resolved.scale[k])).sum()
        for k, m in bnn.means.items()
    )
    assert bnn.divergence().item() == pytest.approx(expected.item(), rel=1e-10)


def test_divergence_by_parameter_with_tensors_of_scales():
    model = mlp().double()
    scale = torch.rand(8, 4, generator=generator(), dtype=torch.float64) + 0.1
    bnn = spread(bayesianize(model, Gaussian({"": 2.0, "0.weight": scale}, mean={"": 0.5, "0.weight": scale})))
    found = bnn.divergences()
    assert list(found) == list(bnn.means)
    assert sum(found.values()).item() == pytest.approx(bnn.divergence().item(), rel=1e-12)
    expected = kl_divergence(Normal(bnn.means["0.weight"], bnn.stds["0.weight"]), Normal(scale, scale)).sum()
    assert found["0.weight"].item() == pytest.approx(expected.item(), rel=1e-10)


@pytest.mark.parametrize("rank", [0, 3])
def test_divergence_from_any_gaussian_posterior(rank):
    model = mlp().double()
    size = modules.flatten(modules.parameters(model)).numel()
    g = generator(3)
    variance = torch.rand(size, generator=g, dtype=torch.float64) + 0.1
    factor = torch.randn(size, rank, generator=g, dtype=torch.float64)
    precision = LowRank(variance, factor, of="covariance") if rank else Diagonal(1 / variance)
    mean = torch.randn(size, generator=g, dtype=torch.float64)
    prior = Structured(modules.unflatten(mean, modules.parameters(model)), precision)
    bnn = spread(bayesianize(model, prior))
    q = MultivariateNormal(bnn.mean.detach(), torch.diag(modules.flatten(bnn.stds).square()))
    p = MultivariateNormal(mean, torch.diag(variance) + factor @ factor.T)
    assert bnn.divergence().item() == pytest.approx(kl_divergence(q, p).item(), rel=1e-10)


def quadrature(order):
    points, weights = np.polynomial.hermite_e.hermegauss(order)
    return torch.tensor(points), torch.tensor(weights / math.sqrt(2 * math.pi))


@given(st.floats(-3, 3), st.floats(0.05, 3), st.floats(0.05, 3), st.floats(-1, 1))
def test_divergence_from_a_laplace(mean, std, scale, centre):
    prior = Laplace(scale, centre).resolve(nn.Linear(1, 1, bias=False))
    m, s = torch.tensor([mean], dtype=torch.float64), torch.tensor([std], dtype=torch.float64)
    found = prior.divergence(m, s, {"weight": m[:, None]}).item()
    grid = torch.linspace(mean - 12 * std, mean + 12 * std, 400_001, dtype=torch.float64)
    q, p = Normal(mean, std), LaplaceDistribution(centre, scale)
    expected = torch.trapezoid(q.log_prob(grid).exp() * (q.log_prob(grid) - p.log_prob(grid)), grid).item()
    assert found == pytest.approx(expected, abs=1e-6, rel=1e-6)
    assert found > 0


def test_divergence_from_no_belief_is_minus_the_entropy():
    bnn = spread(bayesianize(mlp().double(), Flat()))
    entropy = sum(Normal(m, bnn.stds[k]).entropy().sum() for k, m in bnn.means.items())
    assert bnn.divergence().item() == pytest.approx(-entropy.item(), rel=1e-10)


@given(st.integers(0, 2**32), st.floats(0.01, 10))
def test_divergence_is_positive_and_zero_only_at_the_prior(seed, scale):
    bnn = spread(bayesianize(mlp().double(), Gaussian(scale)), seed)
    assert bnn.divergence().item() > 0
    same = bayesianize(mlp().double(), Gaussian(scale), initial_std=scale)
    with torch.no_grad():
        same.mean.zero_()
    assert abs(same.divergence().item()) < 1e-9


def test_gradients_of_the_divergence_are_those_of_autograd():
    model = mlp().double()
    bnn = spread(bayesianize(model, Gaussian("fan-in", mean=0.1)))
    prior = bnn.prior
    mean, rho = (v.detach().clone().requires_grad_() for v in (bnn.mean, bnn.rho))
    means, stds = modules.unflatten(mean, bnn.like), modules.unflatten(nn.functional.softplus(rho), bnn.like)
    dense = sum(
        kl_divergence(Normal(m, stds[k]), Normal(torch.full_like(m, prior.mean[k]), prior.scale[k])).sum()
        for k, m in means.items()
    )
    (3 * dense).backward()
    (3 * bnn.divergence()).backward()
    torch.testing.assert_close(bnn.mean.grad, mean.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(bnn.rho.grad, rho.grad, rtol=1e-12, atol=1e-12)


def tiny():
    """Four weights: few enough for quadrature over all of them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)).double()


X = torch.tensor([[-1.0], [0.3], [1.2]], dtype=torch.float64)
Y = torch.tensor([[0.5], [-0.2], [1.0]], dtype=torch.float64)


def misfit(outputs):
    return (outputs - Y).square().mean()


def exact_loss(bnn, weight):
    """E_q[misfit] + weight·KL by Gauss–Hermite quadrature over all weights, differentiable in q's parameters."""
    points, weights = quadrature(16)
    grid = torch.cartesian_prod(*[points] * 4)
    mass = torch.cartesian_prod(*[weights] * 4).prod(1)
    std = nn.functional.softplus(bnn.rho)
    draws = bnn.mean + std * grid  # weight, bias, weight, bias
    hidden = torch.tanh(draws[:, 0] * X + draws[:, 1])
    values = (draws[:, 2] * hidden + draws[:, 3] - Y).square().mean(0)
    log_p = Normal(0.0, 1.0).log_prob(draws).sum(1)
    log_q = Normal(bnn.mean, std).log_prob(draws).sum(1)
    return (mass * (values + weight * (log_q - log_p))).sum()


class SampledGaussian(Gaussian):
    """A prior that does not know its closed form."""

    def divergence(self, mean, std, like):
        return None


ESTIMATES = {
    "weight": {},
    "local-reparam": {"estimator": "local-reparam"},
    "flipout": {"estimator": "flipout"},
    "weight, sampled divergence": {"prior": SampledGaussian()},
    "flipout, sampled divergence": {"prior": SampledGaussian(), "estimator": "flipout"},
    "path": {"gradient": "path"},
    "score": {"gradient": "score"},
    "score, sampled divergence": {"prior": SampledGaussian(), "gradient": "score"},
}


def gradients(bnn, draws, weight, seed):
    torch.manual_seed(seed)
    losses, grads = [], []
    for _ in range(draws):
        bnn.zero_grad()
        loss = bnn.objective(misfit(bnn(X)), weight)
        loss.backward()
        losses.append(loss.detach())
        grads.append(torch.cat([bnn.mean.grad, bnn.rho.grad]))
    return torch.stack(losses), torch.stack(grads)


@pytest.mark.parametrize("settings", ESTIMATES.values(), ids=list(ESTIMATES))
@pytest.mark.parametrize(("seed", "draws"), [(0, 500), later(0, 3000), later(1, 3000)])
def test_loss_and_gradient_are_unbiased(settings, seed, draws):
    """Nine z-scores a run, each beyond 4.5 once in 150 000: a false alarm once in 17 000 runs of one case."""
    bnn = spread(bayesianize(tiny(), **settings), seed=4)
    exact = exact_loss(bnn, 0.3)
    truth = torch.cat(torch.autograd.grad(exact, [bnn.mean, bnn.rho]))
    losses, grads = gradients(bnn, draws, 0.3, seed)
    assert abs((losses.mean() - exact.detach()) / (losses.std() / draws**0.5)) < 4.5
    z = (grads.mean(0) - truth) / (grads.std(0) / draws**0.5)
    assert z.abs().max() < 4.5


@pytest.mark.parametrize("seed", first([0, 1, 2]))
def test_local_noise_has_less_variance_than_shared_weights(seed):
    torch.manual_seed(seed)
    x, y = torch.randn(32, 5), torch.randn(32, 1)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    variance = {}
    for estimator in ("weight", "local-reparam", "flipout"):
        bnn = bayesianize(model, estimator=estimator, initial_std=0.3)
        grads = []
        for _ in range(400):
            bnn.zero_grad()
            bnn.objective((bnn(x) - y).square().mean(), 0.0).backward()
            grads.append(bnn.mean.grad.clone())
        variance[estimator] = torch.stack(grads).var(0).sum()
    assert variance["local-reparam"] < 0.5 * variance["weight"]
    assert variance["flipout"] < variance["weight"]


def conjugate(seed=0, features=1, n=20, noise=0.5):
    """A linear model with known noise under N(0, 1): its data, and the exact posterior's mean and precision."""
    x = torch.randn(n, features, generator=generator(seed), dtype=torch.float64)
    x[:, 1:] += 0.5 * x[:, :1]  # correlated features, so that the exact posterior does not factorise
    y = x.sum(1) + noise * torch.randn(n, generator=generator(seed + 1), dtype=torch.float64)
    precision = x.T @ x / noise**2 + torch.eye(features, dtype=torch.float64)
    return x, y, torch.linalg.solve(precision, x.T @ y / noise**2), precision


@pytest.mark.parametrize("seed", first([0, 1]))
def test_the_path_derivative_has_no_variance_at_the_posterior_and_the_total_has(seed):
    x, y, mean, precision = conjugate(seed)
    variance = {}
    for gradient in ("path", "total"):
        for prior in (Gaussian(), SampledGaussian()):
            bnn = bayesianize(nn.Linear(1, 1, bias=False).double(), prior, gradient=gradient)
            for off in (0.0, 1e-3, 1e-1):
                with torch.no_grad():
                    std = precision.diagonal().rsqrt()
                    bnn.mean.copy_(mean + off * std)
                    bnn.rho.copy_(torch.log(torch.expm1(std)))
                grads = []
                torch.manual_seed(seed)
                for _ in range(50):  # the same noise at every distance: ratios do not depend on how many
                    bnn.zero_grad()
                    nll = (bnn(x)[:, 0] - y).square().mean() / 2 / 0.5**2
                    bnn.objective(nll, 1 / len(x)).backward()
                    grads.append(torch.cat([bnn.mean.grad, bnn.rho.grad]))
                variance[gradient, type(prior), off] = torch.stack(grads).var(0).sum().item()
    for prior in (Gaussian, SampledGaussian):
        assert variance["path", prior, 0.0] < 1e-25
        assert variance["path", prior, 1e-3] < 1e-4 * variance["path", prior, 1e-1] * 1.01
        assert variance["total", prior, 0.0] > 0.1


@pytest.mark.parametrize(("gradient", "seeds", "bar"), [("total", 3, 70), later("total", 8, 8), later("path", 8, 8)])
def test_linear_regression_ends_at_the_best_mean_field_gaussian(gradient, seeds, bar):
    """The mean of q is the posterior's (t-test over the seeds), its deviation 1/√diag(precision) within 3 %."""
    x, y, mean, precision = conjugate(features=4, n=40)
    likelihood = br.likelihoods.Gaussian(noise=0.5)
    found = []
    for seed in range(seeds):
        method = BBB(gradient=gradient, lr=0.05, sigma_lr_ratio=1.0, initial_std=0.1, samples=4)
        model = nn.Linear(4, 1, bias=False).double()
        posterior = br.fit(
            model, (x, y), method, likelihood, prior=Gaussian(1.0), epochs=600, batch_size=40, seed=seed, val=0
        )
        found.append((posterior.mean["weight"][0], posterior.std["weight"][0]))
    means, stds = (torch.stack(parts) for parts in zip(*found, strict=True))
    t = (means.mean(0) - mean) / (means.std(0) / seeds**0.5)
    assert t.abs().max() < bar  # four t-scores, each beyond it once in 5 000 with 2 degrees of freedom, 10 000 with 7
    assert ((means - mean).abs() < 0.1 * precision.diagonal().rsqrt()).all()
    assert (stds.mean(0) * precision.diagonal().sqrt() - 1).abs().max() < 0.03


def test_blundells_prior_needs_and_gets_samples():
    bnn = spread(bayesianize(tiny(), ScaleMixture(0.25, 1.0, 0.1)), seed=4)
    assert bnn.divergence() is None
    grid = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    mean, std = bnn.mean.detach(), modules.flatten(bnn.stds)
    exact = 0.0
    for m, s in zip(mean, std, strict=True):
        q = Normal(m, s)
        p = 0.25 * Normal(0.0, 1.0).log_prob(grid).exp() + 0.75 * Normal(0.0, 0.1).log_prob(grid).exp()
        exact += torch.trapezoid(q.log_prob(grid).exp() * (q.log_prob(grid) - p.log()), grid).item()
    torch.manual_seed(0)
    values = torch.stack([bnn.objective(misfit(bnn(X)) * 0, 1.0).detach() for _ in range(2000)])
    assert abs(values.mean().item() - exact) < 4.5 * values.std().item() / 2000**0.5


def test_no_divergence_by_layer_is_refused():
    with pytest.raises(ValueError, match="and scale-mixture has none"):
        br.fit(mlp(), (torch.randn(8, 4), torch.randint(3, (8,))), BBB(by_layer=True), prior=ScaleMixture(), epochs=1)


def test_terms_are_logged_apart_and_by_layer():
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    posterior = br.fit(mlp(), (x, y), BBB(by_layer=True), epochs=2, batch_size=8)
    last = posterior.info["history"][-1]
    assert last["loss"] == pytest.approx(last["nll"] + last["penalty"], rel=1e-5)
    assert last["penalty"] == pytest.approx(last["penalty 0"] + last["penalty 2"], rel=1e-5)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0, 2.0])
def test_the_weights_of_an_epoch_make_one_divergence(ratio):
    """Whatever λ, the losses of an epoch add up to the same objective; λ = 0 leaves the divergence out."""
    x, y = torch.randn(32, 4, dtype=torch.float64), torch.randint(3, (32,))
    task = br.Task.create(mlp().double(), (x, y), temperature=0.7)
    plan = br.methods.Plan(epochs=1, steps_per_epoch=4, batch_size=8)
    learner = BBB(kl_ratio=ratio, lr=1e-12).start(task, plan, NOISE)
    logs = [learner.step(batch) for batch in task.batches(8, 0)]
    divergence = learner.network.divergence().item()
    weights = torch.stack([log["loss"] - log["nll"] for log in logs])
    assert weights.sum().item() / 4 == pytest.approx((0.7 / 32) * divergence * (ratio > 0), rel=1e-6, abs=1e-12)
    if ratio:
        assert (weights[1:] / weights[:-1]).tolist() == pytest.approx([ratio] * 3, rel=1e-5)


def test_means_and_deviations_by_turns():
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    task = br.Task.create(mlp(), (x, y))
    learner = BBB(alternate=2).start(task, br.methods.Plan(epochs=8, steps_per_epoch=1, batch_size=16), NOISE)
    moved = []
    for _ in range(8):
        before = learner.network.mean.detach().clone(), learner.network.rho.detach().clone()
        learner.step(br.data.Batch(x, y))
        after = learner.network.mean, learner.network.rho
        moved.append(tuple(not torch.equal(a, b) for a, b in zip(after, before, strict=True)))
    mean, rho = (True, False), (False, True)
    assert moved == [mean, mean, rho, rho, mean, mean, rho, rho]


def test_a_plateau_counts_only_the_epochs_of_its_group(monkeypatch):
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    task = br.Task.create(mlp(), (x, y))
    plan = br.methods.Plan(epochs=8, steps_per_epoch=1, batch_size=16)
    learner = BBB(alternate=2, schedule=br.optim.Plateau("nll")).start(task, plan, NOISE)
    plan.history.extend({"nll": float(epoch)} for epoch in range(6))
    seen = []
    monkeypatch.setattr(br.optim.Plateau, "at", lambda self, done, history: seen.append(history) or 1.0)
    learner.step(br.data.Batch(x, y))
    means, deviations = seen
    assert [logs["nll"] for logs in means] == [0, 1, 4, 5]
    assert [logs["nll"] for logs in deviations] == [2, 3]


def test_the_means_of_adam_go_as_far_as_their_fan_in_allows():
    """0.1/√fan-in in the first step, whatever the gradient; a rate of the user's is the same for all."""
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    model = nn.Sequential(nn.Linear(4, 25), nn.LayerNorm(25), nn.Linear(25, 3))
    task = br.Task.create(model, (x, y))
    plan = br.methods.Plan(epochs=4, steps_per_epoch=1, batch_size=16)
    steps = {}
    for lr in (None, 0.02):
        learner = BBB(lr=lr, schedule="constant").start(task, plan, NOISE)
        before = {name: mean.clone() for name, mean in learner.network.means.items()}
        learner.step(br.data.Batch(x, y))
        steps[lr] = {name: float((mean - before[name]).abs().median()) for name, mean in learner.network.means.items()}
    wanted = {"0.weight": 0.05, "0.bias": 0.05, "1.weight": 0.01, "1.bias": 0.01, "2.weight": 0.02, "2.bias": 0.02}
    assert steps[None] == pytest.approx(wanted, rel=1e-2)
    assert steps[0.02] == pytest.approx(dict.fromkeys(wanted, 0.02), rel=1e-2)


def test_plain_gradient_steps_are_bounded_by_a_stiff_prior():
    """lr·(η/N)·λ of up to 6e4: without a bound the pull of the prior alone throws the means out."""
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    method = BBB(lr=0.1, optimizer="sgd", initial_std=1e-3)
    found = br.fit(
        mlp(), (x, y), method, prior=br.priors.Gaussian({"0.weight": 3e-4, "": 1.0}), epochs=100, batch_size=8
    )
    assert found.mean["0.weight"].abs().max() < 3e-3


def test_groups_have_their_own_rates():
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    task = br.Task.create(mlp(), (x, y))
    plan = br.methods.Plan(epochs=4, steps_per_epoch=1, batch_size=16)
    own = Group("sgd", lr=0.5, schedule="constant")
    learner = BBB(lr=0.1, schedule="constant", deviations=own).start(task, plan, NOISE)
    learner.step(br.data.Batch(x, y))
    assert [type(o).__name__ for o in learner.optimizers] == ["Adam", "SGD"]
    assert [o.param_groups[0]["lr"] for o in learner.optimizers] == [0.1, 0.5]
    simple = BBB(lr=0.1, schedule="constant", sigma_lr_ratio=0.01).start(task, plan, NOISE)
    simple.step(br.data.Batch(x, y))
    assert [o.param_groups[0]["lr"] for o in simple.optimizers] == [0.1, pytest.approx(0.001)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kl_ratio": -1.0}, "at least 0 and finite, not -1.0"),
        ({"samples": 0}, "samples must be a whole number of at least 1, not 0"),
        ({"alternate": -1}, "alternate must be a whole number of at least 0"),
        ({"lr": 0.0}, "lr must be positive and finite, not 0.0"),
        ({"sigma_lr_ratio": -0.1}, "sigma_lr_ratio must be positive and finite, not -0.1"),
        ({"optimizer": "adamm"}, "unknown optimizer 'adamm': did you mean 'adam'"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin': did you mean 'cosine'"),
        ({"estimator": "weights"}, "unknown estimator 'weights': did you mean 'weight'"),
        ({"gradient": "paths"}, "unknown gradient 'paths'"),
        ({"initial_std": -1.0}, "initial_std must be a rule, or positive and finite"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        BBB(**settings)


def test_groups_that_share_a_parameter_are_refused():
    from bayesrule.methods.gradient import Trained
    from bayesrule.methods.point import PointLearner

    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    task, plan = br.Task.create(mlp(), (x, y)), br.methods.Plan(1, 1, 16)
    learner = PointLearner(task, plan, Group())
    weights = list(learner.parameters.values())
    trained = [Trained.by(Group(), weights), Trained.by(Group("sgd"), weights[:1])]
    with pytest.raises(ValueError, match="groups 0 and 1 share a parameter of shape"):
        super(PointLearner, learner).__init__(task, plan, learner.network, trained)
