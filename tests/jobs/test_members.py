"""Members of an ensemble as jobs: what `br.fit` gives, to the bit, and only those are learnt that are not there yet."""

import pickle
import warnings
from concurrent.futures import Future

import pytest
import torch

import bayesrule as br
from bayesrule import jobs
from bayesrule.methods import MAP, SWAG, DropoutEnsemble, Ensemble, Laplace
from bayesrule.training import fit_members

METHODS = {  # with the prior: one is left open, and settled once for all members
    "map": (Ensemble(members=3), None),
    "swag": (Ensemble(members=2, base=SWAG(rank=3)), 1.0),
    "laplace": (Ensemble(members=2, base=Laplace("all", "kronecker")), 1.0),
}


class Elsewhere:
    """An executor that is like another machine: what it is given and what it gives back goes as bytes."""

    def __init__(self, lost_after=None):
        self.handed_in, self.lost_after = 0, lost_after

    def submit(self, fn, /, *args):
        self.handed_in += 1
        found = Future()
        if self.lost_after is not None and self.handed_in > self.lost_after:
            found.set_exception(ChildProcessError("the machine is gone"))
            return found
        fn, args = pickle.loads(pickle.dumps((fn, args)))
        found.set_result(pickle.loads(pickle.dumps(fn(*args))))
        return found


def moons():
    return br.data.moons(120, seed=0)


def network():
    torch.manual_seed(0)
    return br.models.mlp(2, 2, hidden=(8,))


def tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [t for part in parts for t in tensors(part)]


def same(found, wanted):
    """Whether two posteriors are equal to the bit."""
    pairs = list(zip(tensors(found.state()), tensors(wanted.state()), strict=True))
    assert pairs
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", METHODS)
@jobs.threads(1)
def test_members_learnt_apart_are_those_of_one_fit_to_the_bit(name):
    method, prior = METHODS[name]
    wanted = br.fit(network(), moons(), method, prior=prior, epochs=3, seed=4)
    with jobs.on(Elsewhere()):
        found = fit_members(network(), moons(), method, prior=prior, epochs=3, seed=4)
    assert same(found, wanted)
    x = moons()[0][:5]
    assert torch.equal(found.predict(x).probs, wanted.predict(x).probs)
    assert found.info["prior"] == wanted.info["prior"]
    assert found.info["diagnostics"] == wanted.info["diagnostics"]
    losses = [[epoch["loss"] for epoch in each.info["history"]] for each in (found, wanted)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@jobs.threads(1)
def test_so_are_those_with_noise_and_held_out_data():
    """What is unknown of the likelihood is settled once, for the mixture."""
    torch.manual_seed(1)
    x = torch.rand(120, 2)
    y = x.sum(1) + 0.1 * torch.randn(120)
    model = br.models.mlp(2, 1, hidden=(4,))
    train, val = br.data.standardize((x[:90], y[:90])), (x[90:], y[90:])
    options = {"val": val, "prior": 1.0, "epochs": 4}
    wanted = br.fit(model, train, Ensemble(members=2), **options)
    found = fit_members(model, train, Ensemble(members=2), **options)
    assert same(found, wanted)
    assert torch.equal(found.predict(x).variance, wanted.predict(x).variance)
    assert "val_nll" in wanted.info["history"][0]
    assert "val_nll" not in found.info["history"][0]  # that of a mixture, which nobody had


@jobs.threads(1)
def test_members_that_draw_have_noise_of_their_own():
    """The first has that of the step, as in one fit; no other has the masks of the first."""
    model = br.models.mlp(2, 2, hidden=(8,), dropout=0.5)
    torch.manual_seed(0)
    method = DropoutEnsemble(members=2)
    wanted = br.fit(model, moons(), method, prior=1.0, epochs=2)
    found = fit_members(model, moons(), method, prior=1.0, epochs=2)
    again = fit_members(model, moons(), method, prior=1.0, epochs=2)
    assert same(found, again)
    assert not same(found, wanted)
    assert same(found.components[0], wanted.components[0])


def test_processes_of_this_machine_learn_the_same(tmp_path):
    x, y = moons()
    before = x.clone()
    with jobs.threads(2):
        found = fit_members(network(), (x, y), Ensemble(members=2), processes=2, prior=1.0, epochs=2, out=tmp_path)
    with jobs.threads(1):
        wanted = br.fit(network(), moons(), Ensemble(members=2), prior=1.0, epochs=2)
    assert same(found, wanted)
    assert torch.equal(x, before)
    assert not x.is_shared()  # what torch moves between processes are copies
    assert same(br.resume(tmp_path, network(), moons()), wanted)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["posterior.safetensors"]
    assert not (tmp_path / "members").exists()


@jobs.threads(1)
def test_what_was_learnt_before_a_machine_was_lost_is_not_learnt_again(tmp_path):
    wanted = br.fit(network(), moons(), Ensemble(members=3), prior=1.0, epochs=2)
    arguments = network(), moons(), Ensemble(members=3)
    with pytest.raises(ChildProcessError), jobs.on(Elsewhere(lost_after=2)):
        fit_members(*arguments, out=tmp_path, prior=1.0, epochs=2)
    assert 1 <= len(list((tmp_path / "members").iterdir())) <= 2
    done = len(list((tmp_path / "members").iterdir()))
    other = Elsewhere()
    with pytest.raises(ChildProcessError), jobs.on(Elsewhere(lost_after=0)):
        fit_members(*arguments, out=tmp_path, prior=1.0, epochs=3)  # another fit: none of its members is there
    with jobs.on(other):
        found = fit_members(*arguments, out=tmp_path, prior=1.0, epochs=2)
    assert other.handed_in == 3 - done
    assert same(found, wanted)
    with pytest.raises(FileExistsError, match="holds another run"):
        fit_members(*arguments, out=tmp_path, prior=1.0, epochs=2)


def test_of_a_network_that_is_frozen_in_part_members_share_what_is_frozen():
    model = network()
    model[1].requires_grad_(False)
    found = fit_members(model, moons(), Ensemble(members=2), prior=1.0, epochs=1)
    first, second = (dict(part.context.model.named_parameters()) for part in found.components)
    name = next(iter(br.modules.frozen(model)))
    assert first[name] is second[name]
    assert same(found, br.fit(model, moons(), Ensemble(members=2), prior=1.0, epochs=1))


def test_a_network_that_is_trained_warns_once():
    x = torch.linspace(-1, 1, 200)[:, None]
    model = torch.nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-50.0], [50.0]]))
        model.bias.zero_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit_members(model, (x, x[:, 0] > 0), Ensemble(members=2), prior=1.0, epochs=1)
    assert sum("drawn anew" in str(each.message) for each in caught) == 1


def test_what_is_no_ensemble_is_refused(monkeypatch):
    with pytest.raises(TypeError, match=r"method must be an ensemble, not 'map'.*br\.fit"):
        fit_members(network(), moons(), MAP(), epochs=1)
    with pytest.raises(ValueError, match="processes must be a whole number of at least 1, not 0"):
        fit_members(network(), moons(), processes=0)
    monkeypatch.setattr("bayesrule.processes.count", lambda: 2)
    with pytest.raises(ValueError, match="must be called in one process, not under torchrun in 2"):
        fit_members(network(), moons())
