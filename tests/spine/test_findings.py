"""Cases that once went wrong."""

import numpy as np
import pytest
import torch
from networks import classes, mlp
from torch import nn

import bayesrule as br
from bayesrule.methods import BBB, MAP, SWAG, Ensemble, MCDropout
from bayesrule.posteriors import networks
from bayesrule.training import Diverged, EarlyStopping, Folder

X, Y = classes()


class Died(Exception):
    pass


def dies_in_finish(monkeypatch):
    def finish(self, posterior):
        raise Died

    monkeypatch.setattr(Folder, "finish", finish)


def test_a_stop_survives_a_resume(tmp_path, monkeypatch):
    far, stop = (X, (Y + 1) % 3), EarlyStopping(patience=2)
    settings = {"epochs": 30, "batch_size": 16, "val": far, "callbacks": [stop]}
    whole = br.fit(mlp(), (X, Y), MAP(), **settings)
    with monkeypatch.context() as patch:
        dies_in_finish(patch)
        with pytest.raises(Died):
            br.fit(mlp(), (X, Y), MAP(), **settings, out=Folder(tmp_path, interval=0.0))
    resumed = br.resume(tmp_path, mlp(), (X, Y), val=far, callbacks=[stop])
    assert len(resumed.info["history"]) == len(whole.info["history"])
    assert torch.equal(resumed.predict(X).probs, whole.predict(X).probs)


def test_a_resume_needs_the_same_validation_data(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        dies_in_finish(patch)
        with pytest.raises(Died):
            br.fit(mlp(), (X, Y), MAP(), epochs=2, val=(X, Y), out=tmp_path)
    with pytest.raises(ValueError, match=r"pass val=\(X, y\) to resume if and only if"):
        br.resume(tmp_path, mlp(), (X, Y))
    with pytest.raises(ValueError, match="val is not that of the run"):
        br.resume(tmp_path, mlp(), (X, Y), val=(X, (Y + 1) % 3))


def test_a_finished_run_is_not_given_out_for_other_data(tmp_path):
    br.fit(mlp(), (X, Y), MAP(), epochs=1, out=tmp_path)
    with pytest.raises(ValueError, match="training data are not those of the run"):
        br.resume(tmp_path, mlp(), (X + 1, Y))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.net(x) + 0.001 * self.seen


@pytest.mark.parametrize("method", [MAP(), SWAG(), Ensemble(2), BBB()])
def test_infinite_masks_and_passing_buffers(method, tmp_path, monkeypatch):
    whole = br.fit(Masked(), (X, Y), method, epochs=3, batch_size=16)
    steps = []

    def die(progress):
        steps.append(progress.step)
        if progress.step == 5:
            raise Died

    with pytest.raises(Died):
        br.fit(Masked(), (X, Y), method, epochs=3, batch_size=16, callbacks=[die], out=Folder(tmp_path, interval=0.0))
    resumed = br.resume(tmp_path, Masked(), (X, Y))
    assert torch.equal(resumed.predict(X).probs, whole.predict(X).probs)


@pytest.mark.parametrize("method", [MAP(), Ensemble(2), SWAG(), BBB()])
def test_frozen_normalisation_stays(method):
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    model[:2].requires_grad_(False)
    model[1].running_mean.fill_(5.0)
    posterior = br.fit(model, (X, Y), method, epochs=2)
    tensors = []

    def collect(node):
        if isinstance(node, dict):
            tensors.extend(v for k, v in node.items() if k == "1.running_mean")
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else []:
            collect(child)

    collect(posterior.state())
    assert tensors
    assert all((t == 5.0).all() for t in tensors)


def test_dropout_in_a_transformer_is_at_work():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.layer(x).mean(1))

    x = torch.randn(48, 5, 4, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Net()
    assert br.fit(model, (x, Y), MCDropout(), epochs=5).predict(x).epistemic.mean() > 1e-3
    assert torch.backends.mha.get_fastpath_enabled()


def test_one_example_needs_its_dimension():
    posterior = br.fit(mlp(1), (X, X[:, 0]), MAP(), epochs=1)
    with pytest.raises(ValueError, match=r"one example alone is X\[None\]"):
        posterior.predict(X[0])
    assert posterior.predict(X[:1]).mean.shape == (1,)


def test_a_mixture_counts_all_its_networks(monkeypatch):
    posterior = br.fit(mlp(), (X, Y), Ensemble(5), epochs=1)
    monkeypatch.setattr(networks, "MEMORY", 3 * 48 * 3 * 4)
    with pytest.raises(MemoryError, match="5 networks on 48 examples"):
        posterior.predict(X)


def test_large_examples_go_through_a_few_at_a_time():
    sizes = []

    class Big(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x):
            sizes.append(len(x))
            return self.net(x[:, :4])

    x = torch.zeros(40, 2**20)
    x[:, :4] = X[:40]
    br.fit(Big(), (x, Y[:40]), MAP(), epochs=1, batch_size=4).predict(x)
    assert max(sizes) == 8


def test_raw_targets_draw_advice():
    with pytest.warns(UserWarning, match=r"targets are off the model's outputs by .*standardize"):
        br.Task.create(mlp(1), (X, 10_000 + X[:, 0]))


def test_a_share_of_a_loader_cannot_be_held_out():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8)
    with pytest.raises(ValueError, match=r"val=0.2 cannot be cut from data behind a loader"):
        br.fit(mlp(), loader, MAP(), epochs=1, val=0.2)


def test_validation_data_are_checked_before_training():
    seen = []
    with pytest.raises(ValueError, match="3"):
        br.fit(mlp(), (X, Y), MAP(), epochs=1, val=(X, Y + 5), callbacks=[seen.append])
    assert seen == []


def test_numpy_numbers_are_numbers(tmp_path):
    method = Ensemble(np.int64(2), MAP(lr=np.float32(0.01)))
    settings = {"seed": np.int64(3), "epochs": np.int64(1), "temperature": np.float32(1.0)}
    br.fit(mlp(), (X, Y), method, prior=br.priors.Gaussian(np.float64(2.0)), **settings).save(tmp_path / "p")
    assert br.load(tmp_path / "p", mlp()).info["seed"] == 3


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: br.fit(mlp(), (X, Y), seed=None), "seed must be a whole number"),
        (lambda: Ensemble(2.5), "members must be a whole number"),
        (lambda: SWAG(swa_lr_ratio=-1.0), "swa_lr_ratio must lie in"),
        (lambda: br.fit(mlp(), (X, Y), prior="structured"), "unknown prior 'structured'"),
    ],
)
def test_wrong_values(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_prior_is_no_method():
    with pytest.raises(TypeError, match="method must be a name or a method object, not Gaussian"):
        br.fit(mlp(), (X, Y), br.priors.Gaussian())


def test_overflow_at_the_end_of_an_epoch_is_divergence():
    with pytest.raises(Diverged, match="no longer finite after step"):
        br.fit(mlp(1), (X, X[:, 0]), MAP(lr=1e38), epochs=1, batch_size=48, val=0.2)


def test_missing_parts_of_the_inputs_are_named():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, a, b):
            return self.net(a) + b.sum()

    with pytest.raises(ValueError, match=r"cannot take the inputs \(X\['a'\].*unexpected keyword argument 'c'"):
        br.Task.create(Two(), ({"a": X, "c": X}, Y))


def test_the_story_of_a_posterior_is_complete():
    info = br.fit(mlp(1), (X, X[:, 0]), MAP(), epochs=1).info
    assert info["prior"]["fields"]["scale"] == "kaiming"
    assert info["versions"]["bayesrule"] == br.__version__


@pytest.mark.parametrize("ood", [X.tolist(), X.numpy(), (X, Y), torch.utils.data.TensorDataset(X, Y)])
def test_inputs_from_elsewhere_in_any_form(ood):
    posterior = br.fit(mlp(), (X, Y), MAP(), epochs=1)
    assert br.evaluate(posterior, (X, Y), ood=ood, bootstrap=0)["auroc_ood"] == 0.5
