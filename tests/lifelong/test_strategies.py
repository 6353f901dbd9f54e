"""Strategies: closed forms where there are any, and that each is the call it says it is."""

import itertools

import pytest
import torch
from short_strategies import small
from torch import nn

import bayesrule as br
from bayesrule import lifelong
from bayesrule.lifelong.fits import Fits
from bayesrule.lifelong.streams import Chapter
from bayesrule.methods import IVON, MAP, Laplace
from bayesrule.priors import Gaussian

NOISE = br.likelihoods.Gaussian(0.3)


def regression(n=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    return x, y + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)


def exact(x, y):
    """The posterior of a linear model without bias under N(0, 1): mean and precision."""
    precision = torch.eye(3, dtype=torch.float64) + x.T @ x / 0.3**2
    return torch.linalg.solve(precision, x.T @ y / 0.3**2), precision


def learnt(strategy, parts, model, epochs=0):
    past = lifelong.Past()
    for index, (x, y) in enumerate(parts):
        fits = Fits(model, NOISE, epochs, 8, index, len(y))
        past = strategy.learn(past, Chapter(f"part {index}", (x, y), (x, y)), fits)
    return past


@pytest.mark.parametrize("sizes", [(24,), (7, 17), (3, 9, 12), (1,) * 24])
@pytest.mark.parametrize("order", ["forth", "back"])
def test_linear_tasks_in_sequence_give_the_joint_posterior(sizes, order):
    x, y = regression()
    rows = torch.arange(24).split(list(sizes))
    parts = [(x[r], y[r]) for r in (rows if order == "forth" else rows[::-1])]
    dense = Laplace("all", "dense", tune="nothing", newton=1, predictive="weights")
    past = learnt(lifelong.Sequential(dense), parts, nn.Linear(3, 1, bias=False).double())
    mean, precision = exact(x, y)
    torch.testing.assert_close(past.belief.mean["weight"][0], mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(past.belief.precision.dense(), precision, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_any_cut_and_order_gives_the_joint_posterior(seed, temperature):
    x, y = regression(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    cuts = 1 + torch.randperm(23, generator=generator)[:5].sort().values
    rows = torch.tensor_split(torch.randperm(24, generator=generator), cuts)
    dense = Laplace("all", "dense", tune="nothing", newton=1, predictive="weights")
    strategy = lifelong.Sequential(dense, temperature=temperature)
    past = learnt(strategy, [(x[r], y[r]) for r in rows], nn.Linear(3, 1, bias=False).double())
    precision = torch.eye(3, dtype=torch.float64) + x.T @ x / 0.3**2 / temperature
    mean = torch.linalg.solve(precision, x.T @ y / 0.3**2 / temperature)
    torch.testing.assert_close(past.belief.mean["weight"][0], mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(past.belief.precision.dense(), precision, rtol=1e-8, atol=1e-8)


def test_mean_field_tasks_in_sequence_have_the_precisions_that_theory_says():
    """Diagonals of Gauss–Newton matrices add, whatever the order: the diagonal of the exact precision."""
    x, y = regression()
    diagonal = Laplace("all", "diagonal", tune="nothing", predictive="weights")
    for order in itertools.permutations(range(3)):
        parts = [(x[8 * k : 8 * k + 8], y[8 * k : 8 * k + 8]) for k in order]
        past = learnt(lifelong.Sequential(diagonal), parts, nn.Linear(3, 1, bias=False).double())
        torch.testing.assert_close(past.belief.precision.diagonal, exact(x, y)[1].diagonal(), rtol=1e-8, atol=1e-8)


def test_sequential_is_the_call_and_nothing_more():
    stream = lifelong.streams.toy(2, examples=32)
    model = br.models.mlp(2, 2, hidden=(4,))
    past = lifelong.Past()
    posterior = None
    for index, chapter in enumerate(stream):
        fits = Fits(model, br.likelihoods.Categorical(), 3, 8, index, 32)
        past = lifelong.Sequential(IVON()).learn(past, chapter, fits)
        settings = {"epochs": 3, "batch_size": 8, "seed": br.seeds.mixed(index, 0, 1), "val": 0}
        if posterior is None:
            posterior = br.fit(model, chapter.train, IVON(), "categorical", Gaussian(1.0), 1.0, **settings)
        else:
            posterior = br.fit(model, chapter.train, IVON(), prior=posterior, **settings)
    for name, mean in posterior.mean.items():
        assert torch.equal(past.belief.mean[name], mean)
    assert torch.equal(past.belief.precision.diagonal, posterior.precision.diagonal)


def test_a_past_that_counts_several_times_holds_the_mean_and_adds_the_curvature_once():
    """One weight: the mean of L(D|w) p(w)^s in closed form, and Λ_past + xᵀx/σ² whatever s is."""
    x, y = regression()
    parts = [(x[:12, :1], y[:12]), (x[12:, :1], y[12:])]
    laplace = Laplace("all", "diagonal", tune="nothing", newton=1, predictive="weights")
    before, curvature = [1.0 + float(parts[0][0].square().sum()) / 0.3**2, float(parts[1][0].square().sum()) / 0.3**2]
    slopes = [float(x[:, 0] @ y) / 0.3**2 for x, y in parts]
    for strength in (1.0, 4.0, 50.0):
        past = learnt(lifelong.Sequential(laplace, strength=strength), parts, nn.Linear(1, 1, bias=False).double())
        mean = (strength * slopes[0] + slopes[1]) / (strength * before + curvature)
        assert float(past.belief.mean["weight"]) == pytest.approx(mean, rel=1e-8)
        assert float(past.belief.precision.diagonal) == pytest.approx(before + curvature, rel=1e-8)


def test_a_past_that_counts_several_times_needs_independent_weights():
    x, y = regression()
    dense = Laplace("all", "dense", tune="nothing", newton=1, predictive="weights")
    with pytest.raises(ValueError, match="strength must be 1 unless the posterior is a Gaussian of independent"):
        learnt(lifelong.Sequential(dense, strength=2.0), [(x, y), (x, y)], nn.Linear(3, 1, bias=False).double())


def test_weighted_by_one_is_sequential_for_a_diagonal():
    stream = lifelong.streams.toy(2, examples=32)
    model = br.models.mlp(2, 2, hidden=(4,))
    laplace = Laplace("all", "diagonal", tune="nothing", lr=1e-3, predictive="weights")
    pair = lifelong.Weighted("diagonal", 1.0, lr=1e-3), lifelong.Sequential(laplace, predicts="mean")
    results = [lifelong.run(stream, strategy, model, epochs=3, batch_size=8) for strategy in pair]
    assert results[0].accuracy == results[1].accuracy
    assert results[0].nll[1] == pytest.approx(results[1].nll[1])


def test_functions_of_a_linear_model_are_the_posterior_of_the_past():
    """With as many points as weights and K = JΣJᵀ, FROMP's penalty is EWC's, and at strength 1/N Bayes' rule."""
    x, y = regression(12)
    model = nn.Linear(3, 1, bias=False).double()
    strategy = lifelong.Functions(points=3, rule="random", scale=1.0, jitter=1e-14, strength=1 / 6)
    first = learnt(strategy, [(x[:6], y[:6])], model)
    fits = Fits(model, NOISE, 0, 8, 1, 6)
    prior = strategy._prior(first, first.belief.as_prior(), fits).resolve(model)
    weights = first.belief.as_prior().resolve(model)
    at = [{"weight": torch.randn(1, 3, dtype=torch.float64)} for _ in range(3)]
    start = {"weight": first.posterior.states[0]["weight"]}
    for w in at:
        mine = prior.log_prob(w) - prior.log_prob(start)
        theirs = weights.log_prob(w) - weights.log_prob(start)
        # both are known to single precision alone: the prior's numbers are in the network's dtype
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_synaptic_intelligence_shares_out_the_fall_of_the_loss():
    """Σ_k ω_k is the fall of the mean loss along the path, to first order in the rate."""
    x, y = regression(64)
    task = br.Task.create(nn.Linear(3, 1, bias=False).double(), (x, y), NOISE, Gaussian(10.0))
    method = lifelong.SynapticIntelligence(lr=1e-4)
    from bayesrule.methods import Noise, Plan

    learner = method.start(task, Plan(400, 1, 64), Noise.on(task.device))
    batch = task.data.all()
    losses = [float(learner.step(batch)["nll"]) for _ in range(400)]
    with torch.no_grad():
        outputs = task.outputs(learner.network, batch.x)
        last = float(task.nll(outputs, batch.y, task.likelihood))
    assert float(learner.mattered.sum()) == pytest.approx(losses[0] - last, rel=0.02)


def test_synaptic_intelligence_as_a_prior_is_the_penalty_of_the_paper():
    x, y = regression(32)
    model = nn.Linear(3, 1, bias=False).double()
    posterior = br.fit(
        model, (x, y), lifelong.SynapticIntelligence(strength=0.5, lr=1e-2), NOISE, Gaussian(2.0), 1.0, epochs=3
    )
    extra = posterior.precision.diagonal - 1 / 4
    assert bool((extra >= 0).all())
    assert float(extra.max()) > 0
    away = torch.full((1, 3), 0.1, dtype=torch.float64)
    prior = posterior.as_prior()
    fall = prior.log_prob(posterior.mean) - prior.log_prob({"weight": posterior.mean["weight"] + away})
    torch.testing.assert_close(fall, 0.5 * ((extra + 0.25) * 0.01).sum())


STREAM = lifelong.streams.toy(2, examples=40)
HEADS = lifelong.streams.digits("task-il", 2).fewer(40)
SETTINGS = {"hidden": (8,), "epochs": 40, "batch_size": 8, "samples": 4}


@pytest.mark.parametrize("name", lifelong.AVAILABLE)
def test_every_strategy_learns_a_stream(name):
    strategy = small(name)
    stream = HEADS if strategy.heads == "many" else STREAM
    result = lifelong.run(stream, strategy, **SETTINGS)
    assert result.finished
    assert [len(row) for row in result.accuracy] == [2, 2]
    assert all(0 <= value <= 1 for row in result.accuracy for value in row)
    again = lifelong.run(stream, strategy, **SETTINGS)
    assert again.accuracy == result.accuracy
    assert again.nll == result.nll


@pytest.mark.parametrize("name", ["finetune", "ewc", "kfac-laplace", "fromp", "vcl", "replay", "frcl"])
def test_many_heads(name):
    stream = lifelong.streams.digits("task-il", 2).fewer(60)
    strategy = small(name)
    result = lifelong.run(stream, strategy, hidden=(16,), epochs=30, batch_size=16, samples=4)
    assert result.accuracy[0][0] > 0.8


def test_a_head_that_was_not_trained_has_not_moved_under_sequential_bayes():
    stream = lifelong.streams.digits("task-il", 2).fewer(60)
    torch.manual_seed(0)
    model = br.models.MultiHead(br.models.mlp(64, 8, hidden=()), 8, 2, 2)
    fits = Fits(model, br.likelihoods.Categorical(), 2, 16, 0, 60)
    flat = lifelong.Finetune(scale=1e6)
    past = flat.learn(lifelong.Past(), stream[0], fits)
    heads = past.posterior.states[0]["heads.weight"]
    torch.testing.assert_close(heads[2:], model.heads.weight.detach()[2:], atol=1e-4, rtol=0)
    assert not torch.allclose(heads[:2], model.heads.weight[:2], atol=1e-3)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="strength must be positive, not 0"):
        lifelong.Weighted(strength=0.0)
    with pytest.raises(ValueError, match="damping must be positive"):
        lifelong.SynapticIntelligence(damping=0.0)
    with pytest.raises(ValueError, match="predicts must be 'draws' or 'mean', not 'both'"):
        lifelong.Sequential(MAP(), predicts="both")
    with pytest.raises(ValueError, match="temperature must be positive, not 0"):
        lifelong.Sequential(MAP(), temperature=0.0)
    with pytest.raises(ValueError, match="strength must be positive, not -1"):
        lifelong.Coreset(strength=-1.0)
    with pytest.raises(ValueError, match="unknown strategy 'ewk': did you mean 'ewc'"):
        lifelong.run(STREAM, "ewk")
    with pytest.raises(ValueError, match="from 1 to all 40 examples of a task, not 50"):
        lifelong.run(STREAM, lifelong.Replay(points=50), epochs=1)
    with pytest.raises(ValueError, match="must leave examples of 'stretch 1'"):
        lifelong.run(STREAM, lifelong.Coreset(points=40), epochs=1)
