"""Acquisitions as objects: on posteriors, by name, and what they are not for."""

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import active
from bayesrule.active import information
from bayesrule.active.acquisition import AVAILABLE, View, chosen, leverage
from bayesrule.data import inputs


@pytest.fixture(scope="module")
def classes():
    x, y = br.data.moons(seed=0)
    posterior = br.fit(br.models.mlp(2, 2, hidden=(8,)), (x[:20], y[:20]), method="bbb", epochs=20)
    return View(posterior, x[20:120], x[:20], x[20:], samples=12)


@pytest.fixture(scope="module")
def reals():
    x = torch.linspace(-1, 1, 60)[:, None]
    seen = (x[:20], (3 * x[:20, 0]).sin())
    posterior = br.fit(nn.Linear(1, 1), seen, "laplace", br.likelihoods.Gaussian(noise=0.3), prior=1.0, epochs=50)
    return View(posterior, x[20:], x[:20], x[20:], samples=200)


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize("kind", ["classes", "reals"])
def test_every_acquisition_gives_different_rows_and_the_same_again(name, kind, request):
    if kind not in AVAILABLE[name].kinds:
        return
    view = request.getfixturevalue(kind)
    found = chosen(name).choose(view, 5, generator())
    assert len(set(found.tolist())) == 5
    assert 0 <= int(found.min()) <= int(found.max()) < len(view)
    assert torch.equal(chosen(name).choose(view, 5, generator()), found)


def test_draws_are_of_the_same_networks_wherever_they_are_looked_at(classes):
    x = inputs.join([classes.candidates, classes.known])
    both = classes.outputs_at(x)
    assert torch.allclose(both[:, :100], classes.outputs, atol=1e-6)
    assert torch.allclose(both[:, 100:], classes.outputs_at(classes.known), atol=1e-6)


def test_scores_are_those_of_the_prediction(classes):
    prediction = classes.posterior.likelihood.predict(classes.outputs)
    assert torch.allclose(information.entropy(classes.probs), prediction.entropy, atol=1e-6)
    assert torch.allclose(information.bald(classes.probs), prediction.epistemic, atol=1e-6)


def test_one_output_of_a_yes_or_no():
    x, y = br.data.moons(seed=0)
    posterior = br.fit(br.models.mlp(2, 1, hidden=(8,)), (x[:20], y[:20]), method="map", epochs=5)
    view = View(posterior, x[20:40], None, x, samples=1)
    assert view.probs.shape == (1, 20, 2)
    assert torch.allclose(view.probs.sum(2), torch.ones(1, 20))


def test_the_farthest_input_of_a_line_has_the_most_of_everything(reals):
    """A linear model knows least at its ends: the candidates start where the known rows stop, and end at x = 1."""
    for name in ("bald", "relevance", "k-centre"):
        assert int(chosen(name).choose(reals, 1, generator())) == len(reals) - 1


def test_relevance_is_the_leverage_of_a_linear_model(reals):
    """tr(Λ J Σ Jᵀ) in closed form, within the error of 200 draws: a variance's is √(2/S) of it."""
    x = reals.candidates.double()
    known = torch.cat([reals.known.double(), torch.ones(20, 1)], 1)
    covariance = torch.linalg.inv(known.T @ known / 0.09 + torch.eye(2))
    features = torch.cat([x, torch.ones(40, 1)], 1)
    exact = torch.einsum("ni,ij,nj->n", features, covariance, features) / 0.09
    assert float((leverage(reals) / exact - 1).abs().max()) < 6 * (2 / 200) ** 0.5


def test_what_a_label_tells_of_others_or_adds_to_a_batch_is_less_than_it_tells_of_the_network(classes):
    """Both bounds that screening stands on hold for the drawn networks themselves, whatever they are."""
    alone = information.bald(classes.probs)
    assert (information.epig(classes.probs, classes.probs_at(classes.pool)) <= alone + 1e-6).all()
    batch = information.batchbald(classes.probs, 4)
    gains = batch.information.diff(prepend=torch.zeros(1, dtype=batch.information.dtype))
    assert (gains <= alone[batch.rows] + 1e-6).all()


def test_screening_leaves_the_choice_of_its_base(classes):
    base = active.BatchBALD()
    everyone = active.Screened(base, keep=len(classes)).choose(classes, 5, generator())
    assert torch.equal(everyone.sort().values, base.choose(classes, 5, generator()).sort().values)
    kept = information.bald(classes.probs).argsort(descending=True)[:7]
    few = active.Screened(active.EPIG(), keep=7, samples=12).choose(classes, 5, generator())
    assert torch.isin(few, kept).all()
    targets = classes.some_of_the_pool(100, generator())
    scores = information.epig(classes.probs, classes.probs_at(targets))
    assert torch.allclose(scores[few], scores[kept].sort(descending=True).values[:5], atol=1e-6)  # rows may tie


BAD = {
    "base must be BALD, BatchBALD or EPIG, not Entropy": lambda: active.Screened(active.Entropy()),
    "keep must be at least 1, not 0": lambda: active.Screened(keep=0),
    "samples must be at least 2, not 1": lambda: active.Screened(samples=1),
    "expected-variance' is for reals and counts, not for classes": lambda: chosen("expected-variance").check("classes"),
    "entropy' is for classes, not for reals: take random, bald, epig": lambda: chosen("entropy").check("reals"),
    "unknown acquisition 'batchbold': did you mean 'batchbald'": lambda: chosen("batchbold"),
    "targets must be at least 1 row of the pool, not 0": lambda: active.EPIG(targets=0),
    "configurations must be at least 2, not 1": lambda: active.BatchBALD(configurations=1),
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_refused(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()
