"""The method that settles for itself how much to believe."""

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.data.splits import folds
from bayesrule.methods import Auto, Noise, Plan
from bayesrule.methods.candidates import Beliefs, Candidate
from bayesrule.posteriors import Particles
from bayesrule.task import Task

FEW = {"epochs": 40, "batch_size": 32}


def table(n=200, columns=4, classes=0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, columns, generator=generator)
    signal = 2 * x[:, 0] - x[:, 1]
    noise = torch.randn(n, generator=generator)
    if classes:
        return x, (signal + noise > 0).long()
    return x, signal + noise


def learner(method=None, task=None, epochs=4):
    task = task or Task.create(br.models.tabular(4, 1, hidden=(8,)), table())
    plan = Plan(epochs=epochs, steps_per_epoch=7, batch_size=32)
    noise = Noise.on(task.device, seed=1)
    return (method or Auto(scales=(1.0,), columns=(), ridges=(0.5,), lassos=())).start(task, plan, noise)


def diagnosis(posterior):
    return {found["name"]: found for found in posterior.info["diagnostics"]["candidates"]}


def test_no_network_learns_from_the_examples_that_it_is_judged_on():
    """With targets changed in one fold alone, exactly the networks that this fold is held out from stay as they are."""
    x, y = table(60)
    ends = []
    for change in (0.0, 5.0):
        task = Task.create(br.models.tabular(4, 1, hidden=(8,)), (x, y), br.likelihoods.Gaussian(1.0))
        first = learner(task=task)
        moved = torch.where(first.fold == 2, y + change, y)
        task = Task.create(br.models.tabular(4, 1, hidden=(8,)), (x, moved), br.likelihoods.Gaussian(1.0))
        own = learner(task=task)
        assert torch.equal(own.fold, first.fold)
        torch.manual_seed(0)
        for batch in [*task.batches(20, 0), *task.batches(20, 1)]:
            own.step(batch)
        ends.append(torch.cat([team.states()["linear.weight"].clone() for team in own.teams]))
    before, after = ends
    same = (before == after).flatten(1).all(1)
    kept = own.own_fold == 2
    used = torch.tensor([c != 0 for c in range(3) for _ in range(5 + 2)])  # the constant has no linear weights
    assert torch.equal(same[used], kept[used])


@pytest.mark.parametrize(("whole", "own"), [(2, [5, 6]), (0, [0, 1, 2, 3, 4])])
def test_the_posteriors_networks_have_seen_all_data_where_there_are_such(whole, own):
    """Networks from 5 on see all data; without any, those with a fold held out are taken."""
    task = Task.create(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), table())
    found = learner(Auto(scales=(1.0,), whole=whole, networks=20), task)
    assert found.own_fold.tolist() == list(range(5 + whole))
    assert bool((found.own_fold[5:, None] != found.fold).all())
    weights = found.teams[0].states()["0.weight"]
    kept = torch.stack([state["0.weight"] for state in found.conclude(None).states])
    used = [m for m in range(5 + whole) if bool((kept == weights[m]).all((1, 2)).any())]
    assert used == own


def test_folds_are_shares_of_every_class():
    y = torch.tensor([0] * 50 + [1] * 10)
    found = folds(y, count=5, share=0.2, seed=3)
    for k in range(5):
        assert (y[found == k] == 0).sum() == 10
        assert (y[found == k] == 1).sum() == 2
    part = folds(y, count=2, share=0.1, seed=3)
    assert (part >= 0).sum() == 12


def test_slopes_are_the_gradients_of_the_priors_log_densities():
    task = Task.create(br.models.tabular(4, 2, hidden=(5,)), table(classes=2))
    names = list(task.parameters())
    candidates = [
        Candidate("normal", {name: 0.5 + i for i, name in enumerate(names)}),
        Candidate("double exponential", dict.fromkeys(names, 0.7), "laplace"),
        Candidate("heavy tails", dict.fromkeys(names, 0.2), "pareto"),
    ]
    given = [br.priors.Gaussian(candidates[0].scales), br.priors.Laplace(0.7 / 2**0.5)]
    drawn = {name: torch.randn(3, *p.shape, requires_grad=True) for name, p in task.parameters().items()}
    loss = 0.0
    for index, (prior, weight) in enumerate(zip(given, (0.1, 3.0), strict=True)):
        loss = loss - weight * prior.resolve(task.model).log_prob({name: t[index] for name, t in drawn.items()})
    for t in drawn.values():
        loss = loss + 0.5 * 2 * (1 + t[2].abs() / 0.2).log().sum()
    wanted = torch.autograd.grad(loss, list(drawn.values()))
    Beliefs(candidates, 1, task.model).add_slopes(drawn, torch.tensor([0.1, 3.0, 0.5]))
    for t, gradient in zip(drawn.values(), wanted, strict=True):
        torch.testing.assert_close(t.grad, gradient)


def test_weights_that_come_and_go_by_column_have_the_slope_of_the_group_laplace_prior():
    layer = nn.Linear(4, 5, bias=False)
    weights = {"weight": torch.randn(1, 5, 4, requires_grad=True)}
    prior = br.priors.GroupLaplace(0.7 / 6**0.5, outgoing=True).resolve(layer)  # the variance of a weight is (n + 1)s²
    (wanted,) = torch.autograd.grad(-2.0 * prior.log_prob({"weight": weights["weight"][0]}), weights["weight"])
    beliefs = Beliefs([Candidate("columns", {"weight": 0.7}, columns="weight")], 1, layer)
    beliefs.add_slopes(weights, torch.tensor([2.0]))
    torch.testing.assert_close(weights["weight"].grad, wanted)


def test_the_network_of_a_candidate_without_one_is_zero_in_the_posterior():
    own = learner()
    lean, full = own.teams
    x = own.task.data.x[:3]
    for k, team in ((1, lean), (1, full)):
        outputs = team.outputs_without(k, x)
        for c, found in enumerate(outputs):
            whole = team.whole(c * own.each + k)
            assert set(whole) == set(own.task.parameters())
            torch.testing.assert_close(torch.func.functional_call(own.task.model, whole, x), found)
    assert not whole["network.1.weight"].equal(torch.zeros(8, 4))
    assert lean.whole(0)["network.1.weight"].equal(torch.zeros(8, 4))


def test_inputs_that_do_not_matter_are_left_out():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 6, generator=generator)
    y = (2 * x[:, 0]).sin() * x[:, 1] + 0.1 * torch.randn(300, generator=generator)
    task = Task.create(br.models.tabular(6, 1, hidden=(16,)), (x, y))
    own = learner(Auto(scales=(1.2,), columns=(1.2,), ridges=(), lassos=(), folds=2, whole=0), task, epochs=60)
    for epoch in range(60):
        for batch in task.batches(43, epoch):
            own.step(batch)
    plain, by_column = own.teams[1].states()["network.1.weight"].norm(dim=1).view(2, 2, 6).mean(1)
    assert by_column[2:].max() < 0.1 * by_column[:2].min()
    assert by_column[2:].max() < 0.5 * plain[2:].min()


@pytest.mark.parametrize("classes", [0, 2])
def test_many_networks_at_once_learn_what_a_loop_over_them_does(classes):
    """As products of matrices, by vmap, and in a loop."""
    ends = []
    for way in ("products", "vmap", "loop"):
        torch.manual_seed(0)
        network = br.models.tabular(4, classes or 1, hidden=(8,)).double()
        own = learner(task=Task.create(network, table(classes=classes)))
        for team in own.teams:
            assert team.layers is not None
            if way != "products":
                team.layers = None
                team.at_once = way == "vmap" and team._runs_at_once()
                assert team.at_once == (way == "vmap")
        for step, batch in enumerate(own.task.batches(32, 0)):
            torch.manual_seed(step)
            own.step(batch)
        ends.append(own.tensors())
    for name, wanted in ends[2].items():
        for found in ends[:2]:
            torch.testing.assert_close(found[name], wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(8), nn.Dropout(0.2)])
def test_modules_that_cannot_run_at_once_or_draw_masks_are_learnt_too(layer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), layer, nn.Tanh(), nn.Linear(8, 2))
    x, y = table(classes=2)
    posterior = br.fit(model, (x, y), Auto(scales=(2.0,), folds=2), epochs=20)
    assert float((posterior.predict(x).label == y).float().mean()) > 0.75


def test_pure_noise_is_left_to_the_constant():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 10, generator=generator), (torch.rand(300, generator=generator) < 0.2).long()
    posterior = br.fit(br.models.tabular(10, 2, hidden=(16,)), (x, y), "auto", **FEW)
    fresh = torch.randn(200, 10, generator=generator)
    assert float((posterior.predict(fresh).probs[:, 1] - y.float().mean()).abs().mean()) < 0.06


def test_a_linear_table_is_learnt_as_well_as_by_least_squares():
    x, y = table(300)
    test, truth = table(2000, seed=1)
    posterior = br.fit(
        br.models.tabular(4, 1, hidden=(16,)), br.data.standardize((x, y)), Auto(scales=(1.2,)), epochs=50
    )
    prediction = posterior.predict(test)
    ones = torch.ones(300, 1)
    exact = torch.cat([test, torch.ones(2000, 1)], 1) @ torch.linalg.lstsq(torch.cat([x, ones], 1), y).solution
    assert float((prediction.mean - truth).square().mean()) < 1.02 * float((exact - truth).square().mean())
    low, high = prediction.interval(0.9)
    assert 0.87 < float(((truth > low) & (truth < high)).float().mean()) < 0.93


def test_what_is_not_linear_needs_the_network():
    x, _ = table(400)
    y = (x[:, 0] * x[:, 1] > 0).long()
    posterior = br.fit(br.models.tabular(4, 2, hidden=(32,)), (x, y), Auto(scales=(2.7,)), epochs=40)
    found = diagnosis(posterior)
    network = sum(each["weight"] for name, each in found.items() if name.startswith(("network", "columns")))
    assert network > 0.9
    assert found["constant"]["held_out_nll"] == pytest.approx(0.69, abs=0.03)


def test_few_of_many_columns_are_found_where_rows_are_few():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 150, generator=generator)
    y = 2 * x[:, 3] - x[:, 70] + 0.3 * torch.randn(100, generator=generator)
    posterior = br.fit(br.models.tabular(150, 1, hidden=(2,)), br.data.standardize((x, y)), "auto", epochs=100)
    assert not any(name.startswith("network") for name in diagnosis(posterior))
    test = torch.randn(500, 150, generator=generator)
    error = posterior.predict(test).mean - (2 * test[:, 3] - test[:, 70])
    ridge = torch.linalg.solve(x.T @ x + 10 * torch.eye(150), x.T @ y)
    assert float(error.square().mean()) < 0.5 * float((test @ ridge - (2 * test[:, 3] - test[:, 70])).square().mean())


def test_a_prior_of_the_users_own_is_the_only_candidate():
    posterior = br.fit(br.models.tabular(4, 1, hidden=(8,)), table(), "auto", prior=br.priors.Gaussian(0.3), epochs=3)
    assert list(diagnosis(posterior)) == ["the prior given"]


def test_the_posterior_holds_as_many_networks_as_it_says():
    posterior = br.fit(br.models.tabular(4, 1, hidden=(8,)), table(), Auto(networks=7), epochs=2)
    assert isinstance(posterior, Particles)
    assert len(posterior.states) == 7


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scales": ()}, "scales must hold at least one"),
        ({"scales": (1.0, -1.0)}, "scales must be positive"),
        ({"whole": -1}, "whole must be a whole number of at least 0"),
        ({"folds": 1}, "folds must be a whole number of at least 2"),
        ({"networks": 0}, "networks must be a whole number of at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Auto(**settings)


def test_one_example_cannot_be_held_out():
    with pytest.raises(ValueError, match="only one"):
        br.fit(nn.Linear(2, 1), (torch.ones(1, 2), torch.full((1,), 0.5)), "auto", epochs=1)


def test_networks_that_do_not_fit_into_memory_are_refused_before_training():
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3000, 8000)

        def forward(self, x):
            return self.first(x)[:, :2]

    with pytest.raises(MemoryError, match="fewer scales or folds"):
        br.fit(Large(), (torch.zeros(4, 3000), torch.tensor([0, 1, 0, 1])), "auto", epochs=1)


def test_noise_that_weights_could_fit_away_is_learnt_from_examples_that_were_held_out():
    """Targets that are noise alone, of deviation 1, and more columns than rows: trained networks reproduce them."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 60, generator=generator), torch.randn(40, generator=generator)
    task = Task.create(br.models.tabular(60, 1, hidden=(2,)), (x, y))
    own = learner(Auto(ridges=(5.0,), lassos=(), paretos=(0.1,), folds=2, whole=1), task)
    assert diagnosis(own.conclude(None)).keys() == {"constant", "ridge 5", "pareto 0.1"}
    batch = next(task.ordered(40))
    for _ in range(300):
        own.step(batch)
    noise = own._noise()["log_noise"].exp().view(3, 3)
    (team,) = own.teams
    residuals = (team.outputs(x)[3:6, :, 0] - y).square()
    seen = own.fold != own.own_fold[3:6, None]
    deviations = (residuals * seen).sum(1).div(seen.sum(1)).sqrt()
    assert (deviations < 0.3).all()
    assert (noise[1] > 0.8).all()
    torch.testing.assert_close(noise[:, 2], noise[:, :2].mean(1), rtol=0.1, atol=0)
