"""How wide the prior is, where nobody says: settled by held-out data, told, and the same whoever asks again."""

import functools
import math

import pytest
import torch
from covering import first
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrule as br
from bayesrule.data import splits
from bayesrule.methods import Plan
from bayesrule.report.choices import choices
from bayesrule.task import Task
from bayesrule.training import Folder, belief
from bayesrule.training.settings import default_temperature

N, COLUMNS = 80, 20
KNOWN = br.likelihoods.Gaussian(1.0)
LONG = {"batch_size": 10, "epochs": 225, "likelihood": KNOWN}  # 1800 steps: 300 to settle it


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(COLUMNS, 1)


def table(deviation, seed=0, n=N):
    """y = wx + noise of 1, the weights w of a known deviation in units of 1/√fan-in."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, COLUMNS, generator=generator)
    w = deviation * torch.randn(COLUMNS, generator=generator) / COLUMNS**0.5
    return x, x @ w + torch.randn(n, generator=generator)


@functools.cache
def settled(deviation, seed=0):
    task = Task.create(linear(), table(deviation, seed), KNOWN)
    return belief.settle(task, Plan(1, 2400, 20), seed)


def exact(deviation, seed):
    """The mean held-out NLL of the mode, in closed form, for each scale."""
    x, y = (t.double() for t in table(deviation, seed))
    fold = splits.folds(y, belief.FOLDS, belief.FOLD, seed)
    x = torch.cat([x, torch.ones(N, 1)], 1)
    found = {}
    for scale in belief.SCALES:
        deviations = scale * torch.tensor([COLUMNS**-0.5] * COLUMNS + [1.0], dtype=torch.float64)
        misfit = torch.empty_like(y)
        for k in range(belief.FOLDS):
            seen, held = fold != k, fold == k
            precision = x[seen].T @ x[seen] + deviations.pow(-2).diag()
            misfit[held] = y[held] - x[held] @ torch.linalg.solve(precision, x[seen].T @ y[seen])
        found[scale] = float((misfit.square() / 2).mean() + math.log(2 * math.pi) / 2)
    return found


@pytest.mark.parametrize("deviation", [0.01, 3.0, 10.0])
@pytest.mark.parametrize("seed", first(range(2)))
def test_the_scale_is_that_of_the_modes_in_closed_form(deviation, seed):
    """Of a linear model under normal noise; the exact NLL of the scale that was chosen is next to the best."""
    found, truth = settled(deviation, seed), exact(deviation, seed)
    assert truth[found["scale"]] <= min(truth.values()) + 0.03
    if deviation < 10:  # the way to weights so far from their start is longer than 400 steps
        for scale, nll in truth.items():
            assert found["held_out_nll"][f"{scale:g}"] == pytest.approx(nll, abs=0.1)


def test_weights_that_are_nothing_have_the_narrowest_prior():
    assert settled(0.01)["scale"] == belief.SCALES[0]
    assert settled(10.0)["scale"] > 3 * belief.SCALES[0]


def test_it_says_what_was_chosen_what_it_beat_and_what_it_cost():
    found = settled(3.0)
    tried = {float(scale): nll for scale, nll in found["held_out_nll"].items()}
    close = min(tried.values()) + belief.TIE / N
    assert tuple(tried) == belief.SCALES
    assert found["scale"] == min(scale for scale, nll in tried.items() if nll <= close)
    assert (found["networks"], found["steps"]) == (belief.FOLDS * len(belief.SCALES), belief.LONGEST)


@pytest.fixture(scope="module")
def posterior():
    return br.fit(linear(), table(3.0), "map", **LONG)


def test_every_fit_that_leaves_it_open_tells(posterior):
    prior = posterior.info["prior"]
    scale = prior["settled"]["scale"]
    assert prior["fields"]["scale"] == {"weight": scale / COLUMNS**0.5, "bias": scale}
    again = br.priors.from_spec({"name": prior["name"], "fields": prior["fields"]})
    given = br.fit(linear(), table(3.0), "map", prior=again, **LONG)
    assert torch.equal(given.states[0]["weight"], posterior.states[0]["weight"])
    assert "settled" not in given.info["prior"]


def test_neither_the_start_nor_the_state_of_torch_matters(posterior):
    other = linear(seed=1)
    before = torch.get_rng_state()
    found = br.fit(other, table(3.0), "ivon", **LONG)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.info["prior"]["settled"] == posterior.info["prior"]["settled"]


class Bare(nn.Module):
    """A parameter that nobody knows how to draw."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(COLUMNS))

    def forward(self, x):
        return x @ self.slope


X, Y = table(3.0)
LOADER = DataLoader(TensorDataset(X, Y), batch_size=10)
LEFT = {
    "short": (linear, (X, Y), {"epochs": 70, "batch_size": 10}, "a fit of 560 steps is too short to try several: 1500"),
    "few": (linear, (X[:40], Y[:40]), {"epochs": 450, "batch_size": 10}, "of 40 examples none can be held out"),
    "loader": (linear, LOADER, {"epochs": 225}, "data behind a loader cannot be held out"),
    "bare": (Bare, (X, Y), LONG, "cannot draw a fresh start for parameter 'slope'"),
}


@pytest.mark.parametrize("case", LEFT)
def test_where_it_cannot_be_settled_the_rule_stays_and_why_is_said(case):
    make, data, settings, why = LEFT[case]
    prior = br.fit(make(), data, "map", val=0, **settings).info["prior"]
    assert prior["settled"]["scale"] is None
    assert prior["settled"]["why"].startswith(why)
    assert prior["fields"]["scale"] == "kaiming"


@pytest.mark.parametrize("settings", [{"prior": 0.5}, {"method": "mle"}, {"method": "auto"}], ids=str)
def test_nothing_is_settled_where_it_is_said_or_does_not_matter(settings):
    found = br.fit(linear(), table(3.0), **{"method": "map"} | settings, **LONG)
    assert "settled" not in found.info["prior"]


def test_a_trained_module_is_taken_as_it_is():
    assert "settled" not in br.fit(linear(), table(3.0), "laplace", epochs=0).info["prior"]


class PowerCut(Exception):
    """What ends a fit in the middle."""


def test_a_resumed_fit_has_the_prior_of_the_one_that_was_cut(tmp_path, posterior, monkeypatch):
    def cut(progress):
        if progress.step == 30:
            raise PowerCut

    with pytest.raises(PowerCut):
        br.fit(linear(), table(3.0), "map", callbacks=[cut], out=Folder(tmp_path, interval=0), **LONG)
    monkeypatch.setattr(belief, "settle", lambda *args: pytest.fail("the checkpoint knows it"))
    found = br.resume(tmp_path, linear(seed=1), table(3.0))
    assert torch.equal(found.states[0]["weight"], posterior.states[0]["weight"])
    assert found.info["prior"] == posterior.info["prior"]


class Two(nn.Module):
    """y = a·x₁ + b·x₂: two groups of ten weights."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 1, bias=False), nn.Linear(10, 1, bias=False)

    def forward(self, x):
        return self.a(x[:, :10]) + self.b(x[:, 10:])


def two(seed=0):
    torch.manual_seed(seed)
    return Two()


def two_groups(deviations, seed, n=100):
    """Columns at right angles to each other, XᵀX = n·I, and noise of 1."""
    generator = torch.Generator().manual_seed(seed)
    x = math.sqrt(n) * torch.linalg.qr(torch.randn(n, 20, generator=generator, dtype=torch.float64)).Q
    w = torch.randn(20, generator=generator, dtype=torch.float64) * torch.tensor(deviations).repeat_interleave(10)
    return x.float(), (x @ w + torch.randn(n, generator=generator, dtype=torch.float64)).float()


@pytest.mark.parametrize("seed", first([1, 3, 4]))
def test_scales_by_layer_are_those_of_the_largest_evidence_in_closed_form(seed):
    """Least squares are N(0, s² + 1/n) then, so that the evidence is largest at s² = mean ŵ² − 1/n in each group."""
    x, y = two_groups((3.0, 0.3), seed)
    task = Task.create(Two(), (x, y), KNOWN)
    found = belief.settle(task, Plan(1, 2400, 20), seed, by_layer=True)["layers"]
    wanted = ((x.T @ y / 100).square().reshape(2, 10).mean(1) - 0.01).sqrt()
    assert found["chosen"] == "evidence"
    assert found["scales"]["a.weight"] == pytest.approx(float(wanted[0]), rel=1e-3)
    assert found["scales"]["b.weight"] == pytest.approx(float(wanted[1]), rel=0.05)
    assert found["held_out_nll"]["evidence"] < found["held_out_nll"][belief.ONE] - belief.TIE / 100


def test_one_scale_stays_where_scales_by_layer_gain_nothing(monkeypatch):
    """Whatever the evidence says: here the same scale for both, and a hundred times too wide a one for the second."""
    x, y = two_groups((1.0, 1.0), seed=0)
    task = Task.create(Two(), (x, y), KNOWN)
    one = belief._deviations(task.model, 3.0)
    for told in (one, one | {"b.weight": 0.01 * one["b.weight"]}):
        monkeypatch.setattr(belief, "_by_evidence", lambda *args, told=told: told)
        found = belief._layers(task, Plan(1, 250, 100), 3.0, 5, 0)
        assert (found["scales"], found["chosen"]) == (None, belief.ONE)


@pytest.fixture(scope="module")
def layered():
    return br.fit(two(), two_groups((3.0, 0.3), seed=1), "map", prior="by-layer", **LONG)


def test_a_fit_by_layer_tells_and_is_one_under_the_prior_that_it_tells(layered):
    prior = layered.info["prior"]
    settled = prior["settled"]
    assert prior["name"] == "gaussian"
    assert prior["fields"]["scale"] == settled["layers"]["scales"]
    assert settled["scale"] is not None
    (_, said) = choices(layered.info)
    assert said.startswith("every layer has its own scale, evidence: a.weight ")


def test_a_resumed_fit_by_layer_has_the_prior_of_the_one_that_was_cut(tmp_path, layered, monkeypatch):
    def cut(progress):
        if progress.step == 30:
            raise PowerCut

    data = two_groups((3.0, 0.3), seed=1)
    with pytest.raises(PowerCut):
        br.fit(two(), data, "map", prior="by-layer", callbacks=[cut], out=Folder(tmp_path, interval=0), **LONG)
    monkeypatch.setattr(belief, "settle", lambda *args: pytest.fail("the checkpoint knows it"))
    found = br.resume(tmp_path, two(seed=1), data)
    assert torch.equal(found.states[0]["a.weight"], layered.states[0]["a.weight"])
    assert found.info["prior"] == layered.info["prior"]


@pytest.mark.parametrize(
    "settings", [{"method": "mle"}, {"method": "auto"}, {"method": "laplace", "epochs": 0}], ids=str
)
def test_who_has_no_use_for_scales_by_layer_is_told(settings):
    with pytest.raises(ValueError, match="prior='by-layer' is settled before training"):
        br.fit(linear(), table(3.0), **LONG | {"prior": "by-layer"} | settings)


def test_a_task_of_its_own_cannot_have_an_open_prior():
    with pytest.raises(ValueError, match=r"settled by br\.fit"):
        Task.create(linear(), table(3.0), prior="by-layer")
    with pytest.raises(ValueError, match="no density"):
        br.priors.ByLayer().log_prob({})


def test_variational_methods_are_cold_under_scales_by_layer_as_under_one():
    ivon = br.methods.AVAILABLE["ivon"]()
    assert default_temperature(ivon, "by-layer") == default_temperature(ivon, br.priors.ByLayer()) == br.Cold()
