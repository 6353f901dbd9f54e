"""What a resumed fit keeps, and what it asks for."""

import pytest
import torch
from networks import classes, mlp
from torch import nn
from torch.utils.data import DataLoader, Dataset

import bayesrule as br
from bayesrule.methods import BBB, MAP, SWAG, Ensemble
from bayesrule.training import EarlyStopping, Folder

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


class Rows(Dataset):
    def __init__(self, changed=None):
        self.y = Y.clone()
        if changed is not None:
            self.y[changed] = (Y[changed] + 1) % 3

    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        return X[index], self.y[index]


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: DataLoader(rows, batch_size=16, shuffle=True)])
def test_a_resume_needs_every_row_of_a_data_set_to_be_the_same(tmp_path, monkeypatch, wrap):
    with monkeypatch.context() as patch:
        dies_in_finish(patch)
        with pytest.raises(Died):
            br.fit(mlp(), wrap(Rows()), MAP(), epochs=1, out=tmp_path)
    with pytest.raises(ValueError, match="training data are not those of the run"):
        br.resume(tmp_path, mlp(), wrap(Rows(changed=len(Y) - 1)))
    br.resume(tmp_path, mlp(), wrap(Rows()))


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
def test_infinite_masks_and_buffers_that_are_not_saved_survive_a_resume(method, tmp_path, monkeypatch):
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
