"""Modules and data that cannot be learnt, or only in a way that nobody means: a clear word each, before training."""

import warnings

import pytest
import torch
from networks import classes, mlp
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm

import bayesrule as br
from bayesrule.methods import BBB, IVON, MAP, SWAG, Ensemble, Laplace, MCDropout

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated"),
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.spectral_norm`"),
]


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(mlp())


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(self.w.dtype) @ self.w).real


class Cut(nn.Module):
    """Outputs without a graph."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x).detach()


class Chooses(Cut):
    def forward(self, x):
        return self.net(x).argmax(1)


class CutInEval(Cut):
    """As careful people write it: no graph where none is needed."""

    def forward(self, x):
        with torch.set_grad_enabled(self.training):
            return self.net(x)


REFUSED = {
    "scripted": (scripted, TypeError, "the model is scripted .* pass what it was scripted from"),
    "scripted in part": (lambda: nn.Sequential(scripted()), TypeError, "layer '0' is scripted"),
    "DataParallel": (lambda: nn.DataParallel(mlp()), TypeError, r"the model is a DataParallel.*pass .*model\.module"),
    "lazy": (lambda: nn.LazyLinear(3), ValueError, r"'weight' has no shape yet: call the model once.*model\(X\[:2\]\)"),
    "lazy buffers": (
        lambda: nn.Sequential(mlp(), nn.LazyBatchNorm1d(affine=False)),
        ValueError,
        r"'1\.running_mean' has no shape yet",
    ),
    "meta": (lambda: mlp().to("meta"), ValueError, r"'0\.weight' is on the meta device.*to_empty"),
    "half": (lambda: mlp().half(), TypeError, r"'0\.weight' is torch\.float16.*model\.float\(\)"),
    "complex": (Complex, TypeError, r"'w' is torch\.complex64: priors and posteriors are of real weights"),
    "detached": (
        Cut,
        ValueError,
        r"outputs of Cut do not depend on any of its trainable parameters \('net\.0\.weight'",
    ),
    "labels": (Chooses, TypeError, r"the model must give real numbers, such as logits, not torch\.int64"),
}


@pytest.mark.parametrize("method", ["map", "ivon", "laplace", "bbb"])
@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=list(REFUSED))
def test_refused_before_training(make, error, message, method):
    with pytest.raises(error, match=message):
        br.fit(make(), classes(), method, callbacks=[lambda progress: pytest.fail("it trains")])


def test_a_module_that_makes_no_graph_in_eval_mode_can_be_trained():
    x, y = classes()
    posterior = br.fit(CutInEval(), (x, y), "map", epochs=20)
    assert (posterior.predict(x).probs.argmax(1) == y).float().mean() > 0.8


def pruned(layer):
    prune.l1_unstructured(layer, "weight", amount=0.5)
    return layer


def used(make):
    def made(layer):
        layer = make(layer)
        layer(torch.randn(2, 4))
        return layer

    return made


HOOKS = {
    "spectral norm": spectral_norm,
    "spectral norm, used": used(spectral_norm),
    "weight norm": weight_norm,
    "pruned": pruned,
}
METHODS = [
    MAP(),
    IVON(),
    BBB(),
    BBB(estimator="flipout"),
    SWAG(rank=3, snapshots=4),
    Laplace("all"),
    MCDropout(),
    Ensemble(2),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("make", HOOKS.values(), ids=list(HOOKS))
def test_weights_that_hooks_make(make, method, tmp_path):
    """They train, predict alike every time, go through a file, and leave the user's module as it was."""
    torch.manual_seed(0)
    model = nn.Sequential(make(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3))
    made, (x, y) = model[0].weight, classes()
    posterior = br.fit(model, (x, y), method, epochs=2)
    assert model[0].weight is made
    probs = posterior.predict(x).probs
    posterior.save(tmp_path / "posterior")
    assert torch.equal(br.load(tmp_path / "posterior", model).predict(x).probs, probs)
    assert torch.equal(posterior.predict(x).probs, probs)


def test_a_pruned_network_stays_pruned():
    model = nn.Sequential(pruned(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3))
    posterior = br.fit(model, classes(), "map", epochs=2)
    x = torch.eye(4).requires_grad_()
    network = next(iter(posterior.networks(1, torch.Generator())))
    network(x).sum().backward()  # at every unit vector the gradient is that of one network, of weights that are there
    dead = model[0].weight_mask.sum(0) == 0
    assert (x.grad[:, dead] == 0).all()


@pytest.mark.filterwarnings("ignore:.*cannot be vectorised")
@pytest.mark.filterwarnings("ignore:the network's NLL is")
def test_curvature_of_weights_that_hooks_make_is_that_of_their_successors():
    """weight_norm by a hook and by a parametrisation: the same function of two tensors, so the same curvature."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    found = []
    for make in (weight_norm, nn.utils.parametrizations.weight_norm):
        other = nn.Linear(4, 3)
        other.load_state_dict(layer.state_dict())
        model = nn.Sequential(make(other))
        posterior = br.fit(model, classes(), Laplace("all", "dense", tune="nothing"), epochs=0)
        found.append(posterior.predict(classes()[0]).probs)
    torch.testing.assert_close(*found)


class TestBatchNorm:
    def net(self):
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))

    def test_batches_of_one_are_refused_before_training(self):
        x, y = classes()
        said = r"batches of one example, which layer '1' \(BatchNorm1d\) cannot train on.*batch_size"
        with pytest.raises(ValueError, match=said):
            br.fit(self.net(), (x, y), "map", epochs=1, batch_size=1)
        with pytest.raises(ValueError, match=said):
            br.fit(self.net(), (x[:1], y[:1]), "map", epochs=1)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:33], y[:33]), batch_size=16)
        with pytest.raises(ValueError, match=said):
            br.fit(self.net(), loader, "map", epochs=1)

    def test_batches_of_one_picture_are_fine(self):
        x, y = torch.randn(6, 1, 4, 4), torch.arange(6) % 3
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
        posterior = br.fit(net, (x, y), "map", epochs=1, batch_size=1)
        assert posterior.info["batch_size"] == 1
        assert bool(posterior.predict(x).probs.isfinite().all())

    @pytest.mark.filterwarnings("ignore:the network's NLL is")
    def test_a_trained_or_frozen_norm_needs_no_batch(self):
        x, y = classes()
        taken = br.fit(self.net(), (x, y), Laplace(), epochs=0, batch_size=1)
        assert bool(taken.predict(x).probs.isfinite().all())
        net = self.net()
        net[1].requires_grad_(False)
        trained = br.fit(net, (x, y), "map", epochs=1, batch_size=1)
        assert bool(trained.predict(x).probs.isfinite().all())
