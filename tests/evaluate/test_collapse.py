"""Does the diagnosis tell a posterior that has collapsed onto the prior from one that listens to the data?"""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import bayesrule as br
from bayesrule.data import Batch
from bayesrule.posteriors import Context, Gaussian
from bayesrule.structures import Diagonal
from bayesrule.training import collapse

X, Y = br.data.moons(seed=0)


def posterior_of(model, mean, std, likelihood="categorical"):
    """A diagonal Gaussian with the same mean and deviation for all weights."""
    weights = {name: torch.full_like(w, mean) for name, w in model.named_parameters()}
    count = sum(w.numel() for w in weights.values())
    precision = Diagonal(torch.full((count,), std**-2.0))
    return Gaussian(weights, precision, {}, Context(model, br.likelihoods.choose(likelihood)))


def test_terms_by_layer_and_weight():
    """KL(q‖p) of every weight is that of two normals, and layers add theirs up."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2, bias=False))
    prior = br.priors.Gaussian({"0": 0.5, "1": 0.2}).resolve(model)
    found = collapse.diagnose(posterior_of(model, 0.1, 0.2), prior, Batch(X, Y), 0.5, 400)
    wide, equal = (float(kl_divergence(Normal(0.1, 0.2), Normal(0.0, s))) for s in (0.5, 0.2))
    assert found.layers["0"].kl == pytest.approx(9 * wide, rel=1e-5)
    assert found.layers["1"].kl == pytest.approx(6 * equal, rel=1e-5)
    assert found.end.kl == pytest.approx(9 * wide + 6 * equal, rel=1e-5)
    assert found.ratio() == pytest.approx(400 * found.end.nll / (0.5 * found.end.kl))
    assert found.balanced == 0.05  # 400/15 is more than the temperature, so it is a tenth of it
    assert found.at_prior == 0  # the nearest are 0.125 nats from it


def test_the_share_of_weights_at_the_prior():
    model = nn.Linear(2, 2)
    same = collapse.diagnose(posterior_of(model, 0.0, 0.5), br.priors.Gaussian(0.5).resolve(model), Batch(X, Y), 1, 200)
    assert same.at_prior == 1
    assert same.end.kl == pytest.approx(0, abs=1e-5)
    under_laplace = br.priors.Laplace(0.5).resolve(model)
    found = collapse.diagnose(posterior_of(model, 0.0, 0.05), under_laplace, Batch(X, Y), 1, 200)
    assert found.at_prior == 0
    assert sum(layer.kl for layer in found.layers.values()) == pytest.approx(found.end.kl, rel=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_constant_outputs(seed):
    """Of classes the entropy of their frequencies, of reals the log-density at their mean and deviation."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(100, 2, generator=generator)
    labels = (torch.rand(100, generator=generator) < 0.2).long()
    share = float(labels.double().mean())
    model = nn.Linear(2, 2)
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    prior = br.priors.Gaussian(1.0).resolve(model)
    found = collapse.diagnose(posterior_of(model, 0.0, 1.0), prior, Batch(x, labels), 1, 100)
    assert found.constant == pytest.approx(entropy, abs=1e-5)
    y = 3 + 2 * torch.randn(100, generator=generator)
    model = nn.Linear(2, 1)
    prior = br.priors.Gaussian(1.0).resolve(model)
    likelihood = br.likelihoods.choose("gaussian").matched(model(x).detach(), y)
    found = collapse.diagnose(posterior_of(model, 0.0, 1.0, likelihood), prior, Batch(x, y), 1, 100)
    deviation = y.double().std(correction=0)
    assert found.constant == pytest.approx(float(deviation.log()) + 0.5 * math.log(2 * math.pi * math.e), abs=1e-4)


def test_expected_and_predictive_likelihood_of_a_sharp_posterior():
    """Where q is a point both are the network's own."""
    model = nn.Linear(2, 2)
    posterior = posterior_of(model, 0.3, 1e-6)
    with torch.no_grad():
        for w in model.parameters():
            w.fill_(0.3)
        nll = nn.functional.cross_entropy(model(X), Y)
    found = collapse.diagnose(posterior, br.priors.Gaussian(1.0).resolve(model), Batch(X, Y), 1, 200)
    assert found.end.nll == pytest.approx(float(nll), abs=1e-4)
    assert found.predictive == pytest.approx(float(nll), abs=1e-4)


def fitted(width, method, temperature, epochs, seed=0):
    torch.manual_seed(seed)
    model = br.models.mlp(2, 2, (width,))
    return br.fit(model, (X, Y), method, prior="fan-in", temperature=temperature, epochs=epochs, batch_size=32, val=0)


COLLAPSED = 62.5  # τ of a network of width 5000 at η = 1: 25 002 weights and 400 examples
QUICK = [(50, "bbb"), (500, "ivon")]
SLOW = [(width, method) for width in (50, 150, 500, 1500, 5000) for method in ("bbb", "ivon", "vogn", "von")]


def check_both(width, method, epochs, seed=0):
    """Collapsed at a τ of 62.5; not at τ = 1 and τ = 0.1."""
    with pytest.warns(UserWarning, match="the posterior has collapsed onto the prior: .* try temperature=") as told:
        high = fitted(width, method, br.Balanced(COLLAPSED), epochs, seed)
    assert told[0].filename == __file__  # the user's line, not one of the library
    found = br.evaluate.collapse(high)
    assert found.collapsed, str(found)
    assert found.balanced < found.temperature
    for tau in (1.0, 0.1):
        found = br.evaluate.collapse(fitted(width, method, br.Balanced(tau), epochs, seed))  # a warning is an error
        assert not found.collapsed, str(found)
        assert "listens to the data" in found.says
        assert found.start.kl != found.end.kl


@pytest.mark.parametrize(("width", "method"), QUICK)
def test_a_collapsed_fit_is_told_from_a_balanced_one(width, method):
    check_both(width, method, epochs=100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("width", "method"), SLOW)
def test_a_collapsed_fit_is_told_from_a_balanced_one_at_all_widths(width, method, seed):
    check_both(width, method, epochs=150, seed=seed)


def test_data_that_say_little_are_no_collapse():
    """Neither noise nor a weak signal: a fit that has little to learn is not at the prior with nearly all weights."""
    for strength in (0.0, 0.3):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(300, 5, generator=generator)
        y = strength * x[:, 0] + torch.randn(300, generator=generator)
        torch.manual_seed(0)
        model = br.models.mlp(5, 1, (50,))
        posterior = br.fit(model, br.data.standardize((x, y)), "ivon", prior="fan-in", epochs=20)
        found = br.evaluate.collapse(posterior, train=(x, y))
        assert not found.collapsed


def test_a_short_fit_is_not_warned_of():
    posterior = fitted(50, "bbb", br.Balanced(COLLAPSED), epochs=2)
    with pytest.raises(ValueError, match="only fits of 1000 steps or more"):
        br.evaluate.collapse(posterior)
    found = br.evaluate.collapse(posterior, train=(X, Y))
    assert not found.collapsed
    assert "though it is not the prior" in found.says


def test_the_figures_are_kept_with_the_posterior_and_can_be_made_again(tmp_path):
    posterior = fitted(20, "ivon", br.Cold(0.5), epochs=80)
    posterior.save(tmp_path / "q.safetensors")
    loaded = br.load(tmp_path / "q.safetensors", br.models.mlp(2, 2, (20,)))
    kept, again = br.evaluate.collapse(loaded), br.evaluate.collapse(loaded, train=(X, Y))
    assert kept == br.evaluate.collapse(posterior)
    assert again.start is None
    assert again.end.kl == pytest.approx(kept.end.kl, rel=1e-5)
    assert again.end.nll == pytest.approx(kept.end.nll, rel=1e-4)
    assert again.constant == pytest.approx(kept.constant, rel=1e-4)
    assert kept.start is not None
    said = br.evaluate.collapse(loaded, train=(X, Y), prior=br.priors.Gaussian("fan-in"))  # cold as in the fit
    assert said.end.kl == pytest.approx(kept.end.kl, rel=1e-5)
    for part in (*kept.layers, "start: likelihood", "end: likelihood"):
        assert part in str(kept)


def test_figures_are_in_the_units_of_the_network():
    """Targets on any scale give the same verdict."""
    x = torch.linspace(-1, 1, 100)[:, None]
    y = torch.sin(4 * x[:, 0])
    found = []
    for scale in (1.0, 1000.0):
        torch.manual_seed(0)
        data = br.data.standardize((x, scale * y + 5 * scale))
        model = br.models.mlp(1, 1, (10,))
        posterior = br.fit(model, data, "ivon", prior="fan-in", temperature=0.1, epochs=30, val=0)
        found.append(br.evaluate.collapse(posterior, train=(x, scale * y + 5 * scale)))
    assert found[0].constant == pytest.approx(found[1].constant, rel=1e-3)
    assert found[0].predictive == pytest.approx(found[1].predictive, rel=1e-2)


def test_a_prior_that_earlier_data_have_taught_is_not_judged_unasked():
    past = fitted(20, "ivon", 1.0, epochs=5)
    model = br.models.mlp(2, 2, (20,))
    after = br.fit(model, (X, Y), "ivon", prior=past, epochs=2)
    with pytest.raises(ValueError, match="train must be the training data"):
        br.evaluate.collapse(after)
    with pytest.raises(ValueError, match="prior must be given"):
        br.evaluate.collapse(after, train=(X, Y))
    assert not br.evaluate.collapse(after, train=(X, Y), prior=past.as_prior()).collapsed


@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        ("map", {}, "train must be the training data"),
        ("map", {"train": (X, Y)}, "posterior must be Gaussian, .* not one of kind 'particles'"),
        ("bbb", {"prior": br.priors.Gaussian(1.0)}, "train must be the training data"),
        ("bbb", {"train": (X, Y), "prior": br.priors.ScaleMixture()}, "has no closed form"),
    ],
)
def test_what_cannot_be_told(method, given, says):
    posterior = br.fit(br.models.mlp(2, 2, (4,)), (X, Y), method, epochs=1)
    with pytest.raises(ValueError, match=says):
        br.evaluate.collapse(posterior, **given)
