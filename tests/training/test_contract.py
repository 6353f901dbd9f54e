"""What the loop promises to methods, and they to the loop."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import modules
from bayesrule.methods import IVON, MAP, SWAG, Ensemble, Laplace, Needs, Noise, Plan
from bayesrule.methods.base import context
from bayesrule.methods.point import PointLearner
from bayesrule.optim import Group, Plateau
from bayesrule.posteriors import Particles, match
from bayesrule.training import Diverged


def data(n=48, seed=0):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(1)


def model(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return all(map(same, a, b)) if isinstance(a, list | tuple) else a == b


@dataclass(frozen=True)
class Whole(MAP):
    """MAP that sees all data in each step, draws from both streams, and has something to tell."""

    name: ClassVar[str] = "whole"

    def start(self, task, plan, noise):
        return WholeLearner(task, plan, Group(lr=self.lr), noise)

    def needs(self, task, epochs):
        return Needs("none", full_batch=True)


class WholeLearner(PointLearner):
    def __init__(self, task, plan, group, noise):
        super().__init__(task, plan, group)
        self.noise, self.sizes, self.drawn = noise, [], []

    def step(self, batch):
        self.sizes.append(len(batch.y))
        self.drawn.append((torch.rand((), generator=self.noise.shared).item(), torch.rand(()).item()))
        return super().step(batch)

    def conclude(self, held):
        about = context(self.task, self.learnt(), sizes=self.sizes, drawn=self.drawn)
        return Particles.of([self.network], about)


def test_a_method_may_ask_for_all_data_in_each_step_and_report_diagnostics():
    posterior = br.fit(model(), data(), Whole(), epochs=4, batch_size=8)
    found = posterior.info["diagnostics"]
    assert found["sizes"] == [48] * 4
    assert len(posterior.info["history"]) == 4
    assert posterior.info["method"]["name"] == "whole"


def test_a_loader_that_cuts_batches_is_refused_by_a_method_that_needs_all_data():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=16)
    with pytest.raises(ValueError, match=r"whole takes all data in one step, but the DataLoader makes 3 batches"):
        br.fit(model(), loader, Whole(), epochs=1)


def test_the_two_streams_differ_and_depend_on_seed_and_step_alone():
    drawn = [br.fit(model(), data(), Whole(), epochs=3, seed=s).info["diagnostics"]["drawn"] for s in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    values = [value for fit in (drawn[0], drawn[2]) for step in fit for value in step]
    assert len(set(values)) == len(values)


def test_draws_of_code_without_a_generator_can_be_shared():
    noise = Noise.on(torch.device("cpu"), seed=5)
    torch.manual_seed(1)
    with noise.drawn_alike():
        first = torch.randn(3)
    after = torch.randn(3)
    shared = torch.Generator().manual_seed(5)
    assert torch.equal(first, torch.randn(3, generator=shared))
    assert torch.equal(torch.randn(3, generator=noise.shared), torch.randn(3, generator=shared))  # it goes on
    torch.manual_seed(1)
    assert torch.equal(after, torch.randn(3))


@pytest.mark.parametrize("method", [MAP(), SWAG(rank=2, snapshots=3), Laplace("all"), Ensemble(2), IVON()])
def test_the_end_changes_nothing_in_the_learner(method):
    x, _ = data(120)
    task, noise = br.Task.create(model(1), (x, x[:, 0])), Noise.on(torch.device("cpu"))
    learner = method.start(task, Plan(2, 8, 16), noise)
    for batch in task.batches(16, 0):
        learner.step(batch)
    before = {name: t.clone() for name, t in _tensors(learner.state_dict())}
    held = br.data.Batch(x[:30], x[:30, 0])
    noise.seed(shared=0, own=0)
    first = learner.conclude(held)
    noise.seed(shared=0, own=0)
    again = learner.conclude(held)
    assert same(first.state(), again.state())
    assert same(first.likelihood.unknowns(), again.likelihood.unknowns())
    assert same(dict(_tensors(learner.state_dict())), before)


def _tensors(tree, path=""):
    if isinstance(tree, torch.Tensor):
        yield path, tree.detach()
    elif isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _tensors(value, f"{path}/{key}")


def test_matching_gives_another_posterior_and_leaves_the_first():
    x, _ = data(60)
    posterior = br.fit(model(1), (x, x[:, 0]), "map", epochs=2, val=0)
    noise = posterior.likelihood.noise.clone()
    matched = match(posterior, br.data.Batch(x, 10 * x[:, 0]))
    assert torch.equal(posterior.likelihood.noise, noise)
    assert matched.likelihood.noise > 2 * noise
    assert same(matched.state(), posterior.state())


def test_a_plateau_may_watch_held_out_data():
    schedule = Plateau("val_nll", patience=0)
    x, y = data()
    far = x, (y + 1) % 3  # the better the fit, the worse on these
    method = br.methods.BBB(schedule=schedule)
    fits = [br.fit(model(), (x, y), m, epochs=6, val=far) for m in (method, br.methods.BBB(schedule="constant"))]
    moved = [float((q.mean["2.weight"] - model()[2].weight).detach().norm()) for q in fits]
    assert moved[0] < moved[1]


class Explosive(nn.Module):
    """A network whose outputs are NaN from its seventh training step on."""

    def __init__(self):
        super().__init__()
        self.net, self.calls = model(), 0

    def forward(self, x):
        self.calls += self.training
        return self.net(x) * (float("nan") if self.calls > 6 else 1.0)


@pytest.fixture
def slow_to_read(monkeypatch):
    """As if the CPU were a device that has to be waited for."""
    monkeypatch.setattr(modules, "SYNCHRONOUS", ())


def test_logs_that_wait_on_the_device_are_those_that_do_not(slow_to_read, monkeypatch):
    seen = []
    waited = br.fit(model(), data(), "bbb", epochs=3, batch_size=16, callbacks=[seen.append]).info["history"]
    monkeypatch.undo()
    assert waited == br.fit(model(), data(), "bbb", epochs=3, batch_size=16).info["history"]
    assert seen[0].logs["loss"] == pytest.approx(seen[0].logs["nll"] + seen[0].logs["penalty"])


def test_a_loss_that_is_not_finite_is_found_later_and_its_step_named(slow_to_read, tmp_path):
    with pytest.raises(Diverged, match=r"the loss is nan at step 6 \(epoch 2\)"):
        br.fit(Explosive(), data(), MAP(), epochs=4, batch_size=16)


def test_a_gradient_that_is_not_finite_is_found_when_someone_looks(slow_to_read):
    layer, x = nn.Linear(2, 1), torch.ones(3, 2)
    optimizer = br.optim.IVON(layer.parameters(), lr=0.1, ess=3)
    for step in range(4):
        with optimizer.sampled():
            (layer(x).sum() * (float("inf") if step == 2 else 1.0)).backward()
        optimizer.step()
    with pytest.raises(FloatingPointError, match=r"step 2: a gradient was NaN, infinite or beyond all measure"):
        optimizer.state_dict()


@pytest.mark.parametrize("method", ["map", "bbb", "ivon", "vogn"])
def test_bfloat16_forward_passes(method):
    x, y = data(200)
    seen = set()

    class Watched(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            if self.training:
                seen.add(out.dtype)
            return out

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), Watched(16, 3))
    fit = {"epochs": 30, "prior": br.priors.Gaussian(1.0)}
    posterior = br.fit(network, (x, y), method, autocast="bfloat16", **fit)
    assert torch.bfloat16 in seen  # VOGN runs some layers again, in float32
    assert posterior.info["autocast"] == "bfloat16"
    assert (posterior.predict(x).label == y).float().mean() > 0.9
    assert posterior.predict(x).probs.dtype == torch.float32


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="autocast must be 'bfloat16', or None for the model's own dtype, not 'half'"):
        br.fit(model(), data(), "map", autocast="half")


def test_precision_survives_a_resume(tmp_path):
    class Stop(Exception):
        pass

    def stop(progress):
        if progress.step == 4:
            raise Stop

    folder = br.training.Folder(tmp_path / "run", interval=0.0)
    with pytest.raises(Stop):
        br.fit(model(), data(), "map", epochs=3, batch_size=16, autocast="bfloat16", out=folder, callbacks=[stop])
    resumed = br.resume(tmp_path / "run", model(), data())
    whole = br.fit(model(), data(), "map", epochs=3, batch_size=16, autocast="bfloat16")
    assert same(resumed.state(), whole.state())
