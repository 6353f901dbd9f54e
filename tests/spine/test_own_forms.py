"""Modules that return more than a tensor, data sets that give dicts, and predictions of what a fit takes."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from networks import classes, mlp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bayesrule as br

X, Y = classes()


@dataclass
class Answer:
    """What a network of the user's returns."""

    logits: Tensor
    hidden: Tensor


@dataclass
class Scores:
    """The same by names that tell nothing."""

    scores: Tensor
    hidden: Tensor


class Network(nn.Module):
    """Returns what ``form`` makes of logits and hidden numbers; the same weights as `mlp`."""

    def __init__(self, form):
        super().__init__()
        self.body, self.form = mlp(), form

    def forward(self, x):
        return self.form(self.body(x), x)


FORMS = {
    "dict": (lambda logits, hidden: {"hidden": hidden, "logits": logits}, "logits"),
    "dataclass": (Answer, "logits"),
    "tuple": (lambda logits, hidden: (hidden, logits), 1),
}
OTHERS = {
    "other-dict": (lambda logits, hidden: {"hidden": hidden, "scores": logits}, "scores"),
    "other-dataclass": (Scores, "scores"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["map", "laplace", "ivon", "ensemble", "bbb"])
def test_a_part_of_what_a_module_returns(form, method, tmp_path):
    make, output = FORMS[form]
    model = Network(make)
    given = {"epochs": 2, "out": tmp_path}
    posterior = br.fit(model, (X, Y), method, output=output, **given)
    plain = br.fit(Network(lambda logits, hidden: logits), (X, Y), method, epochs=2)
    assert torch.equal(posterior.predict(X).probs, plain.predict(X).probs)
    again = br.load(tmp_path / "posterior.safetensors", model)
    assert torch.equal(again.predict(X).probs, plain.predict(X).probs)
    assert torch.equal(br.resume(tmp_path, model, (X, Y)).predict(X).probs, plain.predict(X).probs)
    assert not model._forward_hooks  # the user's own is as it was


@pytest.mark.parametrize("form", ["dict", "dataclass"])
def test_logits_are_meant_where_nobody_says(form):
    found = br.fit(Network(FORMS[form][0]), (X, Y), "ivon", epochs=2)
    plain = br.fit(mlp(), (X, Y), "ivon", epochs=2)
    assert torch.equal(found.predict(X).probs, plain.predict(X).probs)


def test_a_fit_that_was_cut_goes_on_with_the_part(tmp_path):
    def cut(at):
        if at.step == 3:
            raise InterruptedError

    make, output = FORMS["dict"]
    folder = br.training.Folder(tmp_path, interval=0)
    with pytest.raises(InterruptedError):
        br.fit(Network(make), (X, Y), "map", epochs=2, callbacks=[cut], out=folder, output=output)
    found = br.resume(tmp_path, Network(make), (X, Y))
    whole = br.fit(Network(make), (X, Y), "map", epochs=2, output=output)
    assert torch.equal(found.predict(X).probs, whole.predict(X).probs)


@pytest.mark.parametrize(
    ("form", "output", "match"),
    [
        ("other-dict", None, r"Network returned dict: say which part of it, output='hidden' or output='scores'"),
        ("other-dataclass", None, r"returned Scores: say which part of it, output='scores' or output='hidden'"),
        ("tuple", None, r"returned tuple: say which part of it, output=0 or output=1"),
        ("dict", "logit", r"output='logit' must name a part .* output='hidden' or output='logits'"),
        ("tuple", 5, r"output=5 must name a part"),
    ],
)
def test_a_part_that_is_not_named_or_not_there(form, output, match):
    with pytest.raises(TypeError, match=match):
        br.fit(Network({**FORMS, **OTHERS}[form][0]), (X, Y), "map", epochs=1, output=output)
    with pytest.raises(TypeError, match="leave output out, it is one tensor"):
        br.fit(mlp(), (X, Y), "map", epochs=1, output="logits")


class Rows(Dataset):
    """Examples as dicts, as the libraries of language models give them."""

    def __init__(self, target="labels"):
        self.target = target

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        row = {"x": X[i]}
        return row | {self.target: Y[i]} if self.target else row


class ByName(nn.Module):
    """Takes x by its name."""

    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize("target", ["labels", "label", "y", "target", "targets"])
def test_data_sets_of_dicts(target):
    found = br.fit(ByName(), Rows(target), "map", epochs=2)
    plain = br.fit(ByName(), ({"x": X}, Y), "map", epochs=2)
    assert torch.equal(found.predict({"x": X}).probs, plain.predict({"x": X}).probs)
    loader = DataLoader(Rows(target), batch_size=7, shuffle=True)
    torch.testing.assert_close(found.predict(loader).probs, plain.predict({"x": X}).probs)
    torch.testing.assert_close(found.predict(Rows(target="")).probs, plain.predict({"x": X}).probs)


def test_dicts_without_a_target_or_with_two_are_refused():
    with pytest.raises(ValueError, match=r"pairs \(x, y\) of tensors, got dict\(x: Tensor, answer: Tensor\).*labels"):
        br.fit(ByName(), Rows("answer"), "map", epochs=1)

    class Two(Rows):
        def __getitem__(self, i):
            return super().__getitem__(i) | {"y": Y[i]}

    with pytest.raises(ValueError, match="must name its target once, got y and labels"):
        br.fit(ByName(), Two(), "map", epochs=1)


@pytest.fixture(scope="module")
def learnt():
    """Posteriors of several kinds, on standardised data."""
    data = br.data.standardize((3 + X, Y))
    return {name: br.fit(mlp(), data, name, epochs=2) for name in ("map", "swag", "ivon")}


@pytest.mark.parametrize("name", ["map", "swag", "ivon"])
def test_predict_takes_what_fit_takes(learnt, name):
    posterior, x = learnt[name], 3 + X
    wanted = posterior.predict(x).probs
    forms = {
        "array": x.numpy(),
        "frame": pd.DataFrame(x.numpy()),
        "list": x.tolist(),
        "pairs": TensorDataset(x, Y),
        "inputs": TensorDataset(x),
        "loader": DataLoader(TensorDataset(x, Y), batch_size=5, shuffle=True, drop_last=True),
        "loader of inputs": DataLoader(x, batch_size=5),
        "data": br.data.standardize((x, Y)),
    }
    for form, given in forms.items():
        torch.testing.assert_close(posterior.predict(given).probs, wanted, msg=form)


def test_predict_of_reals_behind_a_loader_is_in_the_users_units():
    x, y = np.linspace(-1, 1, 60)[:, None], 1000 + 50 * np.linspace(-1, 1, 60)
    posterior = br.fit(nn.Linear(1, 1).double(), br.data.standardize((x, y)), "map", epochs=300)
    found = posterior.predict(DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=16))
    torch.testing.assert_close(found.mean, posterior.predict(x).mean)
    assert abs(float(found.mean.mean()) - 1000) < 5


def test_posteriors_and_priors_show_themselves_in_notebooks(learnt):
    page = learnt["map"]._repr_html_()
    assert "Particles(method=&#x27;map&#x27;" in page
    assert "<td>epochs</td><td>2</td>" in page
    assert br.priors.Gaussian(0.5)._repr_html_() == (
        "<table><tr><td>prior</td><td>gaussian</td></tr><tr><td>scale</td><td>0.5</td></tr>"
        "<tr><td>mean</td><td>None</td></tr></table>"
    )
    taught = learnt["ivon"].as_prior()._repr_html_()
    assert "Structured(parameters=" in taught
