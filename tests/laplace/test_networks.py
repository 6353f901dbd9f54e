"""Networks, outputs and data of every kind under Laplace's method."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.curvature import jacobians
from bayesrule.likelihoods import Gaussian
from bayesrule.methods import Laplace
from bayesrule.training import Folder


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


class Tags(nn.Module):
    """Labels for each of four tokens, the classes in dimension 1 by a transposition."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 3)

    def forward(self, x):
        return self.layer(x).transpose(1, 2)


@pytest.mark.filterwarnings("ignore:the network's NLL is")
@pytest.mark.parametrize("predictive", ["sampling", "probit", "bridge"])
def test_outputs_with_positions_in_any_memory(predictive):
    x = normal(0, 20, 4, 2)
    y = x.sum(2).gt(0).long()
    assert jacobians(Tags(), x).shape == (20, 12, 9)
    posterior = br.fit(Tags(), (x, y), Laplace("all", predictive=predictive), epochs=0)
    probs = posterior.predict(x).probs
    assert probs.shape == (20, 3, 4)
    alone = nn.Linear(2, 3)
    alone.load_state_dict(Tags().layer.state_dict())
    same = br.fit(
        alone, (x.flatten(0, 1), y.flatten()), Laplace("all", tune="nothing", predictive=predictive), epochs=0
    )
    other = br.fit(Tags(), (x, y), Laplace("all", tune="nothing", predictive=predictive), epochs=0)
    if predictive != "sampling":  # whose points are for all outputs of an example together
        wanted = same.predict(x.flatten(0, 1)).probs.reshape(20, 4, 3).transpose(1, 2)
        torch.testing.assert_close(other.predict(x).probs, wanted, rtol=1e-4, atol=1e-5)


def test_drawn_labels_depend_on_the_seed_alone():
    model, found = mlp(), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(br.fit(model, classes(), Laplace("all", labels="sampled", samples=2), epochs=2, seed=0))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(found[0].precision.matrix, found[1].precision.matrix)


def test_few_directions_in_single_precision():
    """Variances a thousand million times below the prior's."""
    model, x, y = line(0.001, 5000)
    low, dense = (
        br.fit(model, (x, y), Laplace("all", s, tune="nothing"), Gaussian(0.001), br.priors.Gaussian(100.0), epochs=0)
        for s in ("lowrank", "dense")
    )
    torch.testing.assert_close(low.predict(x[:9]).epistemic, dense.predict(x[:9]).epistemic, rtol=0.02, atol=0)


def test_what_all_logits_share_does_not_enter_the_draws():
    data = classes()
    model = mlp().double()
    model.load_state_dict(br.fit(model, data, "map", epochs=20).states[0])
    method, prior = Laplace("last-layer", tune="nothing"), br.priors.Gaussian(100.0)
    posterior = br.fit(model, data, method, prior=prior, epochs=0)
    x = posterior.inputs(data[0][:4])
    _, covariance = posterior.moments(x)
    points = posterior.marginals(x, 64, torch.Generator().manual_seed(0))
    exact = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    torch.testing.assert_close((points[..., 0] - points[..., 1]).var(0, correction=0), exact, rtol=1e-5, atol=0)


def test_half_precision_is_refused_before_training():
    with pytest.raises(TypeError, match=r"laplace takes a model in float32 or float64, not torch\.bfloat16"):
        br.fit(mlp().bfloat16(), classes(), Laplace(), epochs=0)


class Recurrent(nn.Module):
    """80 outputs of an example."""

    def __init__(self, layer):
        super().__init__()
        self.table, self.layer, self.last = nn.Embedding(5, 4), layer, nn.Linear(4, 5)

    def forward(self, x):
        found = self.layer(self.table(x))
        return self.last(found[0] if isinstance(found, tuple) else found).transpose(1, 2)


LAYERS = {
    "lstm": lambda: nn.LSTM(4, 4, batch_first=True),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
}


@pytest.mark.filterwarnings("ignore:the network's NLL is")
@pytest.mark.parametrize("name", LAYERS)
def test_tangents_of_layers_with_kernels_of_their_own(name):
    torch.manual_seed(0)
    x = torch.randint(5, (6, 16), generator=torch.Generator().manual_seed(0))
    posterior = br.fit(Recurrent(LAYERS[name]()), (x, x), Laplace("all", "diagonal", labels="sampled"), epochs=0)
    assert posterior.predict(x, samples=4).probs.shape == (6, 5, 16)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: posterior.predict(x, samples=2).probs, range(4)))
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_a_run_under_a_posterior_as_prior_resumes_to_the_bit(tmp_path):
    data, method = classes(), Laplace("all", "diagonal", tune="evidence")
    first = br.fit(mlp(), data, method, epochs=5)
    whole = br.fit(mlp(), data, method, prior=first.as_prior(), epochs=3)

    def cut(at):
        if at.step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        br.fit(
            mlp(),
            data,
            method,
            prior=first.as_prior(),
            epochs=3,
            callbacks=[cut],
            out=Folder(tmp_path / "r", interval=0),
        )
    again = br.resume(tmp_path / "r", mlp(), data)
    assert all(torch.equal(w, whole.mean[name]) for name, w in again.mean.items())
    assert torch.equal(again.precision.values, whole.precision.values)
