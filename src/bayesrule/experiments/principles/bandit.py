"""Eat it or leave it: the regret of Thompson sampling beside ε-greedy and greedy choices on the mushroom bandit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bayesrule.decide import UCB, Agent, EpsilonGreedy, Greedy, Policy, Retraining, Thompson, environments
from bayesrule.decide import run as play
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import said
from bayesrule.likelihoods import Gaussian

POLICIES: dict[str, Policy] = {
    "thompson": Thompson(),
    "ucb": UCB(),
    "ε-greedy 5 %": EpsilonGreedy(0.05),
    "ε-greedy 1 %": EpsilonGreedy(0.01),
    "greedy": Greedy(),
}
COMPARED = {False: tuple(POLICIES), True: ("thompson", "ε-greedy 5 %", "ε-greedy 1 %", "greedy")}
LENGTHS = {False: ("foraging", 500), True: ("mushroom", 20_000)}
SEEDS = {False: 3, True: 5}
HIDDEN = (100, 100)
# For all policies alike; the judged seeds are 0 to 4. The ratio of scale and noise, which decides the trained network,
# is that of the least regret of Thompson sampling in 2000 steps of mushrooms, of five pairs with the seed 101, and of
# three of these with 102. Both together decide how wide the posterior is: at half of these an agent whose first bites
# are bad expects −16 to −25 of every mushroom, give or take 5, and eats none in the 200 steps that follow (seeds 100
# and 101). Training when a tenth more has been seen costs a third of training every 100 steps.
RETRAINING = Retraining(unit=10.0, every=1000, scale=0.2)
NOISE = 0.6  # of a reward, in units of 10
SOURCE = "Blundell et al. 2015, figure 6"


@dataclass(frozen=True)
class BanditQuestion:
    """A policy in a world, for so many steps."""

    policy: str
    world: str
    steps: int
    seed: int


def run(setting: Setting) -> Result:
    """Every policy with several seeds: worlds and their luck are the same for all of them."""
    world, steps = LENGTHS[setting.full]
    asked = []
    for seed in findings.seeds(setting, SEEDS[setting.full]):
        asked += [BanditQuestion(policy, world, steps, seed) for policy in COMPARED[setting.full]]
    answers = setting.answers(ask, asked)
    runs = findings.with_answers(asked, answers)
    data = {"runs": runs, "means": _means(runs)}
    return Result(claims_of(runs), data, lambda figure: _draw(figure, runs), (6.5, 3.6), _notes(runs))


def ask(question: BanditQuestion, data_dir: str | None) -> dict[str, Any]:
    """The regret of one run, with its curve."""
    options = {"data_dir": data_dir} if question.world == "mushroom" else {}
    world = environments.create(question.world, question.steps, question.seed, **options)
    features = world.contexts.shape[1]
    agent = Agent(
        world.arms,
        features,
        POLICIES[question.policy],
        hidden=HIDDEN,
        likelihood=Gaussian(NOISE),
        retraining=RETRAINING,
        seed=question.seed,
    )
    played = play(world, agent, question.steps).to_json()
    arms = agent.arms_played
    return {
        "regret": played["regret"],
        "curve": played["curve"],
        "reward": played["reward"],
        "eaten": sum(arms) / len(arms),
        "late": played["regret"] - played["curve"]["regret"][len(played["curve"]["regret"]) // 2 - 1],
    }


def _policies(runs: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["policy"] for row in runs))


def _of(runs: list[dict[str, Any]], policy: str, field: str = "regret") -> list[float]:
    return [row[field] for row in runs if row["policy"] == policy]


def _means(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each policy, over the seeds."""
    found = {}
    for policy in _policies(runs):
        regrets = _of(runs, policy)
        found[policy] = {
            "regret": float(np.mean(regrets)),
            "error": float(np.std(regrets, ddof=1) / len(regrets) ** 0.5),
            "late": float(np.mean(_of(runs, policy, "late"))),
        }
    return found


def claims_of(runs: list[dict[str, Any]]) -> tuple[Claim, ...]:
    """Thompson sampling beside each policy that does not know what it does not know."""
    return tuple(_below(runs, policy) for policy in ("ε-greedy 5 %", "ε-greedy 1 %", "greedy"))


def _below(runs: list[dict[str, Any]], policy: str) -> Claim:
    own, other = _of(runs, "thompson"), _of(runs, policy)
    gains = findings.differences(other, own)
    return Claim(
        SOURCE,
        f"Thompson sampling has less regret than {policy}, after {runs[0]['steps']} steps of {runs[0]['world']}",
        f"{said(own, 0)} against {said(other, 0)}; less with {sum(gain > 0 for gain in gains)} of {len(gains)} seeds",
        findings.better(gains),
    )


def _notes(runs: list[dict[str, Any]]) -> tuple[str, ...]:
    late = {policy: _of(runs, policy, "late") for policy in _policies(runs)}
    return (f"Regret in the second half: {findings.listed(late, 0)}.",)


def _draw(figure: Figure, runs: list[dict[str, Any]]) -> None:
    (ax,) = panels(figure, 1)
    for policy in _policies(runs):
        curves = np.array([row["curve"]["regret"] for row in runs if row["policy"] == policy])
        steps = next(row["curve"]["step"] for row in runs if row["policy"] == policy)
        (line,) = ax.plot(steps, curves.mean(0), label=policy)
        ax.fill_between(steps, curves.min(0), curves.max(0), color=line.get_color(), alpha=0.15, lw=0)
    ax.set(xlabel="step", ylabel="regret", title=f"{runs[0]['world']}: mean and range over seeds")
    ax.legend()
