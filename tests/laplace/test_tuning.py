"""What settles the precision and the noise: held-out data, the evidence, the units."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrule as br
from bayesrule.likelihoods import Gaussian
from bayesrule.methods import Ensemble, Laplace


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))


def classes(n=150):
    x = normal(0, n, 3)
    return x, (x @ normal(1, 3, 3)).argmax(1)


def line(noise, n=200):
    x = normal(0, n, 3)
    model = nn.Linear(3, 1)
    return model, x, (model(x).detach()[:, 0] + noise * normal(1, n))


def test_noise_of_held_out_data_counts_in_the_curvature_too():
    model, x, y = line(0.01)
    held = x, model(x).detach()[:, 0] + normal(2, 200)
    found = br.fit(model, (x, y), Laplace("all", tune="nothing"), epochs=0, val=held)
    wanted = br.fit(model, (x, y), Laplace("all", tune="nothing"), Gaussian(float(found.likelihood.noise)), epochs=0)
    assert abs(float(found.likelihood.noise) - 1) < 0.2
    torch.testing.assert_close(found.predict(x).epistemic, wanted.predict(x).epistemic, rtol=1e-3, atol=0)


def test_noise_of_several_outputs_is_that_of_all_data():
    x = normal(0, 3000, 3)
    model = nn.Linear(3, 2)
    y = model(x).detach() + 0.1 * normal(1, 3000, 2)
    y[:1024, 0] = model(x).detach()[:1024, 0]
    found = br.fit(model, (x, y), Laplace("all"), epochs=0)
    rms = (y - model(x).detach()).square().mean(0).sqrt()
    torch.testing.assert_close(found.likelihood.noise, rms, rtol=0.02, atol=0)


def test_members_of_an_ensemble_are_tuned_on_held_out_data():
    method, prior = Ensemble(2, Laplace("all", tune="held-out")), br.priors.Gaussian(100.0)
    posterior = br.fit(mlp(), classes(), method, prior=prior, epochs=20, val=classes(300))
    assert all(part.spread < 1 for part in posterior.components)
    assert br.fit(mlp(), classes(), method, epochs=1).info["n"] == 120


def test_whole_numbers_behind_a_loader_are_real_targets():
    x, y = normal(0, 120, 3), normal(1, 120).mul(3).round().long()
    loader = DataLoader(TensorDataset(x, y), batch_size=20)
    posterior = br.fit(mlp(1), loader, Laplace("all"), Gaussian(), epochs=5)
    assert 1 < float(posterior.likelihood.noise) < 6


def test_held_out_data_that_cannot_be_spared_are_asked_for():
    x, y = classes(80)
    with pytest.raises(ValueError, match=r"laplace needs held-out data.*val=\(X, y\)"):
        br.fit(mlp(), (x, y), Laplace("all", tune="held-out"), epochs=2)


def test_the_evidence_is_in_units_of_y():
    model, x, y = line(0.3)
    data = [br.data.standardize((x, factor * y)) for factor in (1.0, 1000.0)]
    found = [br.fit(copy.deepcopy(model), train, Laplace("all"), epochs=20).info["diagnostics"] for train in data]
    assert abs(found[0]["log_evidence"] - found[1]["log_evidence"] - 200 * math.log(1000)) < 0.1


def test_an_untrained_network_is_told():
    with pytest.warns(UserWarning, match="no better than .* of guessing by the frequency of each class"):
        br.fit(mlp(), classes(), Laplace(), epochs=0)


def test_any_thousand_of_the_held_out_examples_tune():
    x, y = classes(3000)
    model = mlp()
    model.load_state_dict(br.fit(model, (x[:300], y[:300]), "map", epochs=10).states[0])
    order = y.argsort()
    vals = (x, y), (x[order], y[order])
    posteriors = [br.fit(model, (x[:300], y[:300]), Laplace("all"), epochs=0, val=val) for val in vals]
    assert 0.1 < posteriors[0].spread / posteriors[1].spread < 10


def test_with_more_weights_than_examples_held_out_data_choose_the_factor_by_its_mean():
    """Against a posterior mean of log factor from log-probabilities at each of them, computed one by one."""
    train, held = classes(100), classes(300)
    net = br.models.mlp(3, 3, hidden=(40,))
    found = br.fit(net, train, Laplace("all", "dense", tune="held-out"), epochs=20, val=held)
    powers = torch.tensor([-3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5], dtype=torch.float64)
    about = found.with_context(likelihood=found.likelihood.uncalibrated()).context  # the temperature comes afterwards
    plain = br.posteriors.Linearised(found.mean, found.precision * found.spread, found.fixed, about)
    logs = []
    for power in powers.tolist():
        other = br.posteriors.Linearised(found.mean, plain.precision * 10**-power, found.fixed, about)
        logs.append(other.predict(held[0]).log_prob(held[1]).double().sum())
    expected = float((torch.stack(logs).softmax(0) * powers).sum())
    assert abs(math.log10(found.spread) - expected) < 1e-3
