"""What is frozen is stored once: in memory, in files, in checkpoints."""

import copy
import os

import pytest
import torch
from covering import later
from torch import nn

import bayesrule as br
from bayesrule import modules
from bayesrule.files import FileError
from bayesrule.methods import BBB, IVON, MAP, SWAG, Ensemble, Laplace, MCDropout, Noise, Plan

X = torch.randn(64, 20, generator=torch.Generator().manual_seed(0))
Y = X[:, :2].argmax(1)
FROZEN = 1_000_000


class Adapted(nn.Module):
    """About 2 000 trained weights beside so many frozen ones, as with LoRA."""

    def __init__(self, frozen):
        super().__init__()
        self.enter, self.leave = nn.Linear(20, 86), nn.Linear(86, 2)
        self.base = nn.Linear(20, frozen // 20, bias=False).requires_grad_(False)

    def forward(self, x):
        return self.leave(torch.tanh(self.enter(x))) + self.base(x).mean(1, keepdim=True)


NOISE = Noise.on(torch.device("cpu"))


def adapted(frozen=FROZEN, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Adapted(frozen)


def storages(node, found, seen):
    """Every memory that tensors reachable from here take, once, with its size in bytes."""
    if id(node) in seen:
        return
    seen[id(node)] = node
    if isinstance(node, torch.Tensor):
        found[node.untyped_storage().data_ptr()] = node.untyped_storage().nbytes()
    elif isinstance(node, dict):
        for child in node.values():
            storages(child, found, seen)
    elif isinstance(node, list | tuple | set):
        for child in node:
            storages(child, found, seen)
    elif (
        hasattr(node, "__dict__")
        and not isinstance(node, type)
        and type(node).__module__.startswith(("bayesrule", "torch.nn", "torch.optim", __name__))
    ):
        storages(vars(node), found, seen)


def size(*nodes):
    found, seen = {}, {}
    for node in nodes:
        storages(node, found, seen)
    return sum(found.values())


def base_bytes(frozen):
    return size(adapted(frozen).base)


METHODS = {
    "map": MAP(),
    "ivon": IVON(),
    "bbb": BBB(),
    "swag": SWAG(rank=2, snapshots=4),
    "mc-dropout": MCDropout(),
    "laplace": Laplace(("leave",), tune="nothing"),
}


@pytest.mark.parametrize("base", METHODS.values(), ids=list(METHODS))
def test_an_ensemble_of_ten_grows_with_what_is_trained(base):
    """Memory while fitting and of the posterior, beyond one copy of what is frozen."""
    found = {}
    for frozen in (20, FROZEN):
        task = br.Task.create(adapted(frozen), (X, Y))
        torch.manual_seed(0)
        learner = Ensemble(10, base).start(task, Plan(epochs=1, steps_per_epoch=2, batch_size=32), NOISE)
        for batch in task.batches(32, 0):
            learner.step(batch)
        posterior = learner.posterior()
        posterior.predict(X[:4])
        once = base_bytes(frozen)
        found[frozen] = size(learner) - once, size(posterior) - once
    for small, large in zip(found[20], found[FROZEN], strict=True):
        assert large <= 1.2 * small


@pytest.mark.parametrize("name", ["map", "swag", "laplace", later("ivon"), later("bbb"), later("mc-dropout")])
def test_files_and_checkpoints_grow_with_what_is_trained(name, tmp_path):
    found, base = {}, METHODS[name]
    for frozen in (20, FROZEN):
        out = tmp_path / str(frozen)
        with pytest.raises(KeyboardInterrupt):
            br.fit(adapted(frozen), (X, Y), Ensemble(10, base), epochs=1, batch_size=32, out=out, callbacks=[interrupt])
        checkpoint = os.path.getsize(out / "checkpoint.safetensors")
        posterior = br.resume(out, adapted(frozen), (X, Y))
        found[frozen] = checkpoint, os.path.getsize(out / "posterior.safetensors")
        again = br.load(out / "posterior.safetensors", adapted(frozen))
        assert torch.equal(again.predict(X).probs, posterior.predict(X).probs)
    for small, large in zip(found[20], found[FROZEN], strict=True):
        assert large <= 1.2 * small


def interrupt(progress):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def fitted():
    return br.fit(adapted(200), (X, Y), MAP(), epochs=1)


def test_other_frozen_weights_are_refused(fitted, tmp_path):
    fitted.save(tmp_path / "p")
    with pytest.raises(FileError, match=r"'base\.weight' was frozen in the fit, .* load the frozen weights .* first"):
        br.load(tmp_path / "p", adapted(200, seed=1))
    loose = adapted(200).requires_grad_(True)  # what was frozen is known from the file
    again = br.load(tmp_path / "p", loose)
    assert torch.equal(again.predict(X).probs, fitted.predict(X).probs)
    again.save(tmp_path / "q")
    assert torch.equal(br.load(tmp_path / "q", loose).predict(X).probs, fitted.predict(X).probs)
    assert all(p.requires_grad for p in loose.parameters())


def test_a_resumed_fit_needs_the_same_frozen_weights(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        br.fit(adapted(200), (X, Y), MAP(), epochs=1, out=tmp_path, callbacks=[interrupt])
    with pytest.raises(ValueError, match="frozen parameters are not those of the run"):
        br.resume(tmp_path, adapted(200, seed=1), (X, Y))


def test_the_users_frozen_weights_can_change_after_a_fit():
    model = adapted(200)
    posterior = br.fit(model, (X, Y), Ensemble(2), epochs=1)
    before = posterior.predict(X).probs
    with torch.no_grad():
        model.base.weight.zero_()
    assert torch.equal(posterior.predict(X).probs, before)


def test_a_twin_shares_what_is_frozen():
    model = adapted(200)
    twin = modules.twin(model)
    assert twin.base.weight is model.base.weight
    assert twin.enter.weight is not model.enter.weight
    assert set(modules.snapshot(model)) == {"enter.weight", "enter.bias", "leave.weight", "leave.bias"}


def test_digests_tell_values_shapes_and_dtypes_apart():
    weight = torch.arange(4.0)
    others = [weight + 1, weight.view(2, 2), weight.double(), weight.to(torch.bfloat16)]
    found = [modules.digests({"w": w})["w"] for w in (weight, *others)]
    assert len(set(found)) == 5
    assert modules.digests({"w": copy.deepcopy(weight)})["w"] == found[0]
    assert modules.digests({"w": torch.eye(2).T})["w"] == modules.digests({"w": torch.eye(2)})["w"]
