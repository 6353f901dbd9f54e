"""Bandits: policies by hand, regret, resuming to the bit, a user's own world, and what is refused."""

import json
import math

import pytest
import torch

import bayesrule as br
from bayesrule.decide import UCB, Agent, Dealt, EpsilonGreedy, Greedy, Played, Retraining, Thompson, environments, run
from bayesrule.decide import running as running_module
from bayesrule.decide.policies import chosen

SHORT = Retraining(every=15, warmup=10, updates=8, batch_size=16, unit=10.0)


def slow(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def agent(policy="thompson", method=None, seed=0, **options):
    settings = {"hidden": (8,), "retraining": SHORT} | options
    return Agent(2, 32, policy, method, seed=seed, **settings)


def test_policies_by_hand():
    values, generator = torch.tensor([[1.0, 0.0, 0.9], [1.0, 0.0, 1.3]]), torch.Generator()
    assert Thompson().arm(values[:1], generator) == 0
    assert Greedy().arm(values, generator) == 2
    assert UCB(width=0.0).arm(values, generator) == 2
    assert UCB(width=1.0).arm(torch.tensor([[1.0, 0.0], [1.0, 1.9]]), generator) == 1


def test_epsilon_is_the_share_of_arms_at_random():
    """3000 steps: ε/2 of them are the other arm, within four standard errors."""
    values, generator = torch.tensor([[1.0, 0.0]]), torch.Generator().manual_seed(0)
    other = sum(EpsilonGreedy(0.3).arm(values, generator) for _ in range(3000))
    assert abs(other / 3000 - 0.15) < 4 * math.sqrt(0.15 * 0.85 / 3000)


def test_one_network_a_step_is_played_as_often_as_its_arm_is_best():
    """Thompson's share of an arm is the posterior probability that it is the best: the frequency over seeds."""
    who = agent(retraining=Retraining(every=1000, warmup=40, updates=32, batch_size=16, unit=10.0))
    world = environments.foraging(60)
    run(world, who, 41)
    assert who.posterior is not None
    x = who._context(world.context(50))
    given = torch.cat([x.expand(2, -1), torch.eye(2)], 1)
    outputs = who.posterior.outputs(given, 1000, torch.Generator().manual_seed(5))[..., 0]
    share = float((outputs[:, 1] > outputs[:, 0]).float().mean())
    played = []
    for seed in range(150):
        who.seed = seed
        played.append(who.choose(world.context(50)))
    assert abs(sum(played) / 150 - share) < 4 * math.sqrt(max(share * (1 - share), 0.01) / 150)


def test_rewards_of_mushrooms_are_those_of_the_rules():
    world = environments.foraging(4000)
    assert set(world.rewards[:, 1].tolist()) == {5.0, -35.0}
    assert not world.rewards[:, 0].any()
    poison = world.means[:, 1] == -15
    lucky = (world.rewards[poison, 1] == 5).double().mean()
    assert abs(float(lucky) - 0.5) < 4 * math.sqrt(0.25 / int(poison.sum()))


def test_another_seed_is_another_world_and_the_same_is_the_same():
    first, again, other = (environments.wheel(50, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.rewards, again.rewards)
    assert not torch.equal(first.contexts, other.contexts)


def test_regret_is_of_expectations():
    contexts, means = torch.zeros(3, 1), torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.5, 0.5]])
    world = Dealt("three", contexts, torch.full((3, 2), 9.0), means)
    played = run(world, Agent(2, 1, "greedy", retraining=Retraining(warmup=10)), 3)
    by_hand = [float(means[step].max() - means[step, arm]) for step, arm in enumerate(played.arms)]
    assert played.regrets == by_hand
    assert played.regret == pytest.approx(sum(by_hand))
    assert played.rewards == [9.0] * 3


@pytest.mark.parametrize("policy", ["thompson", *slow("ucb", "epsilon-greedy")])
def test_a_run_that_was_killed_goes_on_to_the_bit(policy, tmp_path, monkeypatch):
    world = environments.foraging(60)
    whole = run(world, agent(policy), 60)
    monkeypatch.setattr(running_module, "INTERVAL", -1.0)  # a checkpoint after each step
    calls, observe = [0], Agent.observe

    def killed(self, *args, **kwargs):
        calls[0] += 1
        if calls[0] == 38:
            raise KeyboardInterrupt
        observe(self, *args, **kwargs)

    monkeypatch.setattr(Agent, "observe", killed)
    with pytest.raises(KeyboardInterrupt):
        run(world, agent(policy), 60, out=tmp_path)
    monkeypatch.setattr(Agent, "observe", observe)
    resumed = run(world, agent(policy), 60, out=tmp_path)
    assert resumed.arms == whole.arms
    assert resumed.regrets == whole.regrets
    stored = json.loads((tmp_path / "result.json").read_text())
    assert stored["regret"] == whole.regret
    assert stored["curve"]["regret"][-1] == whole.regret
    longer = run(environments.foraging(70), agent(policy), 70, out=tmp_path)
    assert longer.arms[:60] == whole.arms


def test_a_person_can_play_without_a_loop(tmp_path):
    world, first = environments.foraging(40), agent("ucb")
    for step in range(40):
        arm = first.choose(world.context(step))
        first.observe(world.context(step), arm, world.reward(step, arm))
        if step == 25:
            first.save(tmp_path / "agent.safetensors")
            first = br.decide.load_agent(tmp_path / "agent.safetensors", hidden=(8,))
    assert first.arms_played == run(world, agent("ucb"), 40).arms


def test_a_world_of_ones_own_needs_no_base_class():
    class Coin:
        name = "coin"
        arms = 2

        def context(self, step):
            return [1.0]

        def reward(self, step, arm):
            return float(arm)

    who = Agent(2, 1, "greedy", hidden=(4,), retraining=Retraining(every=20, warmup=20, updates=300))
    played = run(Coin(), who, 60)
    assert sum(played.arms[40:]) == 20  # the arm that always pays
    with pytest.raises(ValueError, match=r"coin has no regret: give it expected\(step\)"):
        played.regret  # noqa: B018
    assert "regret" not in played.to_json()


@pytest.mark.parametrize("method", ["ivon", "ensemble", *slow("map", "laplace", "swag")])
def test_any_posterior_will_do(method):
    played = run(environments.foraging(30), agent("thompson", method), 30)
    assert len(played.arms) == 30
    assert "thompson" in played._repr_html_()


def test_nothing_of_the_users_changes():
    model, before = br.models.mlp(34, 1, hidden=(8,)), torch.get_rng_state()
    weights = [p.clone() for p in model.parameters()]
    run(environments.foraging(30), agent(model=model), 30)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_mushrooms_are_read(tmp_path):
    folder = tmp_path / "UCI_Mushroom"
    folder.mkdir()
    (folder / "agaricus-lepiota.data").write_text("e,x,a\np,y,a\ne,y,?\n")
    world = environments.mushroom(200, data_dir=tmp_path)
    assert world.contexts.shape == (200, 4)
    assert set(world.means[:, 1].tolist()) == {5.0, -15.0}
    (folder / "agaricus-lepiota.data").write_text("e,x,a\nq,y,a\n")
    with pytest.raises(ValueError, match=r"line 2: must be e or p and 2 letters"):
        environments.mushroom(5, data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="looked for"):
        environments.mushroom(5, data_dir=tmp_path / "nowhere")


def test_a_directory_of_another_run_is_refused(tmp_path):
    world = environments.foraging(12)
    run(world, agent(), 12, out=tmp_path)
    with pytest.raises(FileExistsError, match="holds another run"):
        run(world, agent(seed=1), 12, out=tmp_path)
    with pytest.raises(ValueError, match="at least the 12 that the agent has played, not 5"):
        run(world, agent(), 5, out=tmp_path)


class Half:
    """A world without rewards."""

    name = "half"
    arms = 2

    def context(self, step):
        return [0.0]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: agent("thomson"), ValueError, "did you mean 'thompson'"),
        (lambda: chosen(3), TypeError, "policy must be a name or a policy object"),
        (lambda: Agent(1, 3), ValueError, "arms must be at least 2, not 1"),
        (lambda: Agent(2, 0), ValueError, "features must be at least 1"),
        (lambda: EpsilonGreedy(1.5), ValueError, "epsilon must be a probability"),
        (lambda: UCB(width=-1.0), ValueError, "width must not be negative"),
        (lambda: Greedy(samples=0), ValueError, "samples must be at least 1"),
        (lambda: Retraining(every=0), ValueError, "every must be at least 1, not 0"),
        (lambda: Retraining(unit=0.0), ValueError, "unit must be positive, not 0"),
        (lambda: agent().choose([1.0]), ValueError, "context must have 32 numbers"),
        (lambda: agent().choose(torch.full((32,), math.nan)), ValueError, "context must be finite"),
        (lambda: agent().observe(torch.zeros(32), 2, 0.0), ValueError, "arm must be one of 0 to 1, got 2"),
        (lambda: agent().observe(torch.zeros(32), 0, math.nan), ValueError, "reward must be a finite number"),
        (lambda: environments.wheel(0), ValueError, "steps must be at least 1"),
        (lambda: environments.wheel(5, delta=1.0), ValueError, "delta must be a radius"),
        (lambda: run(environments.wheel(5), agent(), 5), ValueError, "as many arms as wheel, 5, not 2"),
        (lambda: run(environments.foraging(5), agent(), 6), ValueError, "between 1 and the 5 that foraging has"),
        (lambda: run(Half(), Agent(2, 1), 6), TypeError, "which Half has not all"),
        (lambda: Dealt("x", torch.zeros(2, 1), torch.zeros(3, 2), torch.zeros(3, 2)), ValueError, "rewards and means"),
        (lambda: Played("x", {}, [0], [1.0]).curve, ValueError, "x has no regret"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_doubt_survives_a_bad_reward():
    """The weight of a context that was never met has its prior: f there varies at least as much as that.

    400 draws, and the bound is four standard errors below.
    """
    how = Retraining(warmup=1, updates=200, unit=10.0, scale=0.1)
    who = Agent(2, 10, "thompson", hidden=(20,), retraining=how)
    met = torch.eye(10)[:5]
    who.observe(met[0], 1, -35.0)
    for step in range(60):
        who.observe(met[step % 5], 0, 0.0)
    who.choose(met[0])  # which trains
    inputs = torch.cat([torch.eye(10)[5:], torch.tensor([0.0, 1.0]).expand(5, 2)], 1)
    drawn = who.posterior.outputs(inputs, 400, torch.Generator().manual_seed(0)).flatten(2)[..., 0]
    assert (drawn.std(0) > 0.1 * (1 - 4 / 800**0.5)).all()


def test_noise_and_scale_together_widen_doubt_and_leave_the_network():
    """The mode depends on their ratio alone, and deviations grow with both: twice, for the same draws."""
    networks, drawn = [], []
    for factor in (1.0, 2.0):
        how = Retraining(warmup=1, updates=40, scale=0.1 * factor)
        who = Agent(2, 4, likelihood=br.likelihoods.Gaussian(0.3 * factor), hidden=(6,), retraining=how)
        for step in range(8):
            who.observe(torch.eye(4)[step % 4], step % 2, float(step))
        who.choose(torch.ones(4))  # which trains
        given = torch.cat([torch.eye(4), torch.tensor([0.0, 1.0]).expand(4, 2)], 1)
        networks.append(who.posterior.at_mean()(given))
        drawn.append(who.posterior.outputs(given, 50, torch.Generator().manual_seed(0)))
    assert torch.allclose(*networks, atol=1e-3)
    narrow, wide = drawn
    assert torch.allclose(wide - wide.mean(0), 2 * (narrow - narrow.mean(0)), atol=1e-2)


def test_a_network_needs_hidden_layers():
    with pytest.raises(ValueError, match="hidden must be the widths of at least one layer, got none"):
        Agent(2, 3, hidden=())
