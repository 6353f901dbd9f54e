"""The network's tangent: moments, links from logits to probabilities, and what large outputs get."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bayesrule as br
from bayesrule.curvature import jacobians
from bayesrule.likelihoods import Bernoulli, Categorical, Poisson
from bayesrule.posteriors import Context, Gaussian, Linearised
from bayesrule.posteriors.marginals import bridge, normal_draws, normals, probit, probit_of_classes
from bayesrule.structures import Diagonal

DOUBLE = torch.float64
seeds = st.integers(0, 2**20)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def covariances(seed, examples, width):
    factor = normal(seed, examples, width, width)
    return factor @ factor.mT


@given(seed=seeds, width=st.integers(1, 6), pairs=st.integers(6, 12), odd=st.integers(0, 1))
def test_points_have_the_moments(seed, width, pairs, odd):
    f, covariance = normal(seed, 4, width), covariances(seed + 1, 4, width)
    points = normal_draws(f, covariance, normals(2 * pairs + odd, width, generator(seed))) - f
    scale = float(covariance.abs().max())
    assert points.mean(0).abs().max() < 1e-10 * scale
    assert (torch.einsum("sbk,sbl->bkl", points, points) / len(points) - covariance).abs().max() < 1e-9 * scale


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_few_points_are_pairs_about_the_mean(samples):
    f, covariance = normal(0, 3, 10), covariances(1, 3, 10)
    points = normal_draws(f, covariance, normals(samples, 10, generator()))
    assert points.shape == (samples, 3, 10)
    for pair in range(samples // 2):
        torch.testing.assert_close(points[2 * pair] + points[2 * pair + 1], 2 * f)


@pytest.mark.parametrize("mean", [-3.0, 0.5, 2.0])
@pytest.mark.parametrize("variance", [0.1, 1.0, 20.0])
def test_probit_is_near_the_integral(mean, variance):
    """E σ(f) by quadrature: the approximation is known to be within .02."""
    z = torch.linspace(-9, 9, 20_001, dtype=DOUBLE)
    weights = (-0.5 * z.square()).softmax(0)
    exact = (weights * torch.sigmoid(mean + math.sqrt(variance) * z)).sum()
    found = torch.sigmoid(probit(torch.tensor(mean, dtype=DOUBLE), torch.tensor(variance, dtype=DOUBLE)))
    assert abs(float(found - exact)) < 0.02


@given(seed=seeds)
def test_two_classes_are_one_logit(seed):
    f, covariance = normal(seed, 5, 2), covariances(seed + 1, 5, 2)
    between = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    one = torch.sigmoid(probit(f[:, 0] - f[:, 1], between))
    torch.testing.assert_close(probit_of_classes(f, covariance).softmax(1)[:, 0], one)


@given(seed=seeds, shift=st.floats(0, 100), width=st.integers(2, 6))
def test_what_all_logits_share_does_not_matter(seed, shift, width):
    f, covariance = normal(seed, 3, width), covariances(seed + 1, 3, width)
    torch.testing.assert_close(
        probit_of_classes(f + shift, covariance + shift).softmax(1), probit_of_classes(f, covariance).softmax(1)
    )
    torch.testing.assert_close(bridge(f + shift, covariance).softmax(1), bridge(f, covariance).softmax(1))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_links_agree_with_many_draws_of_classes(seed):
    """Softmax's mean of 20 000 draws, whose standard error is below .004, at variances of about 8: 64 points are within
    .06, and the probit approximation is nearer than the plain softmax."""
    f, covariance = 2 * normal(seed, 6, 4), 2 * covariances(seed + 1, 6, 4)
    exact = normal_draws(f, covariance, normals(20_000, 4, generator(1))).softmax(2).mean(0)
    few = normal_draws(f, covariance, normals(64, 4, generator(2))).softmax(2).mean(0)
    assert (few - exact).abs().max() < 0.06
    assert (probit_of_classes(f, covariance).softmax(1) - exact).norm() < 0.7 * (f.softmax(1) - exact).norm()


@given(seed=seeds, size=st.integers(3, 6), concentration=st.floats(2, 200))
def test_the_bridge_comes_back_to_its_dirichlet(seed, size, concentration):
    """From α to the mean and covariance of its Laplace approximation, whose diagonal and centre the bridge inverts."""
    alpha = concentration * (0.2 + torch.rand(1, size, generator=generator(seed), dtype=DOUBLE))
    mean = alpha.log() - alpha.log().mean(1, keepdim=True)
    variance = 1 / alpha * (1 - 2 / size) + (1 / alpha).sum(1, keepdim=True) / size**2
    covariance = variance.diag_embed()
    outer = -1 / size * (1 / alpha[:, :, None] + 1 / alpha[:, None] - (1 / alpha).sum(1)[:, None, None] / size)
    off = outer * (1 - torch.eye(size, dtype=DOUBLE))
    torch.testing.assert_close((covariance + off).sum(2), torch.zeros(1, size, dtype=DOUBLE), atol=1e-10, rtol=0)
    torch.testing.assert_close(bridge(mean, covariance + off), alpha.log(), rtol=1e-6, atol=1e-6)


def posterior(model, likelihood, link="sampling", kind=Linearised, variance=0.02):
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    size = sum(p.numel() for p in mean.values())
    dtype = next(iter(mean.values())).dtype
    precision = Diagonal(torch.full((size,), 1 / variance, dtype=dtype))
    parts = mean, precision, dict(model.named_buffers()), Context(model, likelihood)
    return kind(*parts) if kind is Gaussian else kind(*parts, link)


def long_draw(f, covariance, count=400_000):
    """Mean probabilities and mean entropy of so many plain draws of logits."""
    factor = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(f.shape[1], dtype=DOUBLE))
    noise = torch.randn(count, f.shape[1], generator=generator(7), dtype=DOUBLE)
    probs = (f + torch.einsum("bkl,sl->sbk", factor, noise)).softmax(2)
    return probs.mean(0), torch.special.entr(probs).sum(2).mean(0)


@pytest.mark.parametrize("variance", [0.3, 20.0])
def test_probabilities_are_those_of_a_very_long_draw(variance):
    """Ten classes; the reference's own standard error is below .0008. 32 points are off by .1 at a variance of 20."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 10).double(), normal(0, 4, 3)
    tangent = posterior(model, Categorical(), variance=variance)
    found = tangent.predict(x)
    probs, entropy = long_draw(*tangent.moments(x))
    assert (found.probs - probs).abs().max() < 0.005
    assert (found.aleatoric - entropy).abs().max() < 0.01
    # whatever else is asked for: on some processors products of batches of other sizes differ in their last bits
    torch.testing.assert_close(tangent.predict(x[2:4]).probs, found.probs[2:4], rtol=0, atol=1e-10)


def test_yes_or_no_is_integrated_as_well():
    model, x = nn.Linear(3, 2).double(), normal(0, 5, 3)
    tangent = posterior(model, Bernoulli(), variance=8.0)
    f, covariance = tangent.moments(x)
    z = torch.linspace(-9, 9, 20_001, dtype=DOUBLE)
    points = torch.sigmoid(f[..., None] + covariance.diagonal(dim1=1, dim2=2).sqrt()[..., None] * z)
    exact = (points * (-0.5 * z.square()).softmax(0)).sum(2)
    torch.testing.assert_close(tangent.predict(x).probs, exact, rtol=0, atol=1e-3)


def test_what_is_nearly_impossible_has_a_finite_log_probability():
    model = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [300.0], [-300.0]]))
    found = posterior(model, Categorical(), variance=1e-4).predict(torch.ones(2, 1))
    torch.testing.assert_close(found.log_prob(torch.tensor([0, 2])), torch.tensor([-300.0, -600.0]), rtol=1e-3, atol=0)
    assert found.aleatoric.isfinite().all()


def test_a_linear_network_is_its_own_tangent():
    """Drawn weights and the exact moments are the same: z-tests of 24 numbers at |z| < 5, error rate 2e-5."""
    model, x = nn.Linear(3, 2).double(), normal(0, 6, 3)
    exact = posterior(model, br.likelihoods.Gaussian(0.3)).predict(x)
    drawn = posterior(model, br.likelihoods.Gaussian(0.3), kind=Gaussian).predict(x, samples=20_000)
    assert ((drawn.mean - exact.mean) / (exact.epistemic / 20_000).sqrt()).abs().max() < 5
    assert ((drawn.epistemic / exact.epistemic - 1) / math.sqrt(2 / 20_000)).abs().max() < 5


def test_a_segmentation_network_is_drawn_as_a_whole():
    """64 outputs at most get a covariance; more are f + J δ with one δ for all examples."""
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1)).double(),
        normal(0, 5, 1, 6, 6),
    )
    tangent = posterior(model, Categorical())
    found = tangent.outputs(x, 4, generator(3))
    assert found.shape == (4, 5, 3, 6, 6)
    j = jacobians(model, x)
    for each, network in zip(found, tangent.networks(4, generator(3)), strict=True):
        direction = network.drawn.weights[network.index]
        torch.testing.assert_close(each, model(x).detach() + (j @ direction).view(5, 3, 6, 6))
    marginals = tangent.marginals(x, 4, generator(3))
    assert torch.equal(marginals, found)
    prediction = posterior(model, Categorical()).predict(x)
    assert prediction.label.shape == (5, 6, 6)
    with pytest.raises(ValueError, match="link 'probit' is for up to 64 outputs"):
        posterior(model, Categorical(), "probit").predict(x)


@pytest.mark.parametrize("link", ["sampling", "probit", "bridge"])
def test_it_comes_back_from_a_file(link, tmp_path):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), normal(0, 7, 3).float()
    one = posterior(model, Categorical(), link)
    one.save(tmp_path / "p.safetensors")
    again = br.load(tmp_path / "p.safetensors", nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    assert isinstance(again, Linearised)
    assert again.link == link
    assert torch.equal(again.predict(x).probs, one.predict(x).probs)


@pytest.mark.parametrize(
    ("link", "likelihood", "match"),
    [
        ("probitt", Categorical(), "unknown link 'probitt': did you mean 'probit'"),
        ("probit", Poisson(), "link 'probit' is not for the likelihood 'poisson': take 'sampling'"),
        ("bridge", Bernoulli(), "link 'bridge' is not for the likelihood 'bernoulli'"),
    ],
)
def test_links_that_are_refused(link, likelihood, match):
    with pytest.raises(ValueError, match=match):
        posterior(nn.Linear(2, 1), likelihood, link)


def test_several_labels_keep_their_own_variances():
    model, x = nn.Linear(3, 4).double(), normal(0, 5, 3)
    found = posterior(model, Bernoulli(), "probit")
    f, covariance = found.moments(x)
    wanted = probit(f, covariance.diagonal(dim1=1, dim2=2)).sigmoid()
    torch.testing.assert_close(found.predict(x).probs, wanted)
