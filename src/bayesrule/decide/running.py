"""Runs: an agent in an environment, step by step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrule import files, showing
from bayesrule.decide.agents import Agent, load_agent
from bayesrule.decide.environments import Environment
from bayesrule.locks import held

POINTS = 400  # of a curve that a file holds
INTERVAL = 30.0  # seconds between checkpoints


@dataclass(frozen=True)
class Played:
    """A run of a bandit.

    ``arms`` and ``rewards``: of each step. ``regrets``: by how much the best arm's mean reward is above that of the arm
    that was played; empty where the environment does not tell.
    """

    environment: str
    agent: dict[str, Any]
    arms: list[int]
    rewards: list[float]
    regrets: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def regret(self) -> float:
        """Σ_t max_a r̄(x_t, a) − r̄(x_t, a_t)."""
        self._check_regrets()
        return sum(self.regrets)

    @property
    def curve(self) -> Tensor:
        """The regret up to each step, [T].

        >>> Played("two", {}, [0, 1], [1.0, 0.0], [0.0, 0.5]).curve
        tensor([0.0000, 0.5000], dtype=torch.float64)
        """
        self._check_regrets()
        return torch.tensor(self.regrets, dtype=torch.float64).cumsum(0)

    def _check_regrets(self) -> None:
        if not self.regrets:
            raise ValueError(
                f"{self.environment} has no regret: give it expected(step), the mean reward of every arm at a step"
            )

    def to_json(self) -> dict[str, Any]:
        """The contents of ``result.json``: the sums, and the curve at evenly spread steps."""
        plain: dict[str, Any] = {
            "environment": self.environment,
            "agent": self.agent,
            "steps": len(self.arms),
            "reward": sum(self.rewards),
            "seconds": self.seconds,
        }
        if self.regrets:
            steps = sorted({round((index + 1) * len(self.arms) / POINTS) for index in range(POINTS)} - {0})
            curve = self.curve
            plain["regret"] = self.regret
            plain["curve"] = {"step": steps, "regret": [float(curve[step - 1]) for step in steps]}
        return plain

    def _repr_html_(self) -> str:
        """The sums, for notebooks."""
        rows: list[tuple[str, Any]] = [("steps", len(self.arms)), ("reward", f"{sum(self.rewards):.1f}")]
        if self.regrets:
            rows.append(("regret", f"{self.regret:.1f}"))
        return showing.table(rows, f"{self.environment}, {self.agent.get('policy', {}).get('name', 'agent')}")


def run(
    environment: Environment,
    agent: Agent,
    steps: int,
    out: str | Path | None = None,
    tell: Callable[[str], object] | None = None,
) -> Played:
    """Let an agent play.

    Args:
        environment: any object with ``name``, ``arms``, ``context(step)`` and ``reward(step, arm)``; with
            ``expected(step)`` there is a regret.
        agent: it is played on, from where it stands.
        steps: up to this step.
        out: a directory for the agent, every half a minute, and ``result.json``: the same call with it goes on from
            there, and gives the same to the bit.
        tell: called with a line now and then.
    """
    if not isinstance(environment, Environment):
        raise TypeError(
            "environment must have name, arms, context(step) and reward(step, arm), which "
            f"{type(environment).__name__} has not all; see br.decide.environments.Dealt"
        )
    if environment.arms != agent.arms:
        raise ValueError(f"agent must have as many arms as {environment.name}, {environment.arms}, not {agent.arms}")
    dealt = getattr(environment, "steps", steps)
    if not 1 <= steps <= dealt:
        raise ValueError(f"steps must be between 1 and the {dealt} that {environment.name} has, not {steps}")
    if out is None:
        return _run(environment, agent, steps, None, tell)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        return _run(environment, _continued(folder, agent), steps, folder, tell)


def _run(
    environment: Environment,
    agent: Agent,
    steps: int,
    folder: Path | None,
    tell: Callable[[str], object] | None,
) -> Played:
    began = last = time.monotonic()
    if agent.step > steps:
        raise ValueError(f"steps must be at least the {agent.step} that the agent has played, not {steps}")
    while agent.step < steps:
        step = agent.step
        context = environment.context(step)
        arm = agent.choose(context)
        agent.observe(context, arm, environment.reward(step, arm))
        if time.monotonic() - last > INTERVAL:
            last = time.monotonic()
            if folder is not None:
                agent.save(folder / "agent.safetensors")
            if tell is not None:
                tell(f"{environment.name}, {agent.policy.name}: step {agent.step}/{steps}")
    played = Played(
        environment.name,
        agent.about(),
        list(agent.arms_played),
        list(agent.rewards),
        _regrets(environment, agent.arms_played),
        time.monotonic() - began,
    )
    if folder is not None:
        agent.save(folder / "agent.safetensors")
        files.write_atomically(folder / "result.json", json.dumps(played.to_json(), indent=1))
    return played


def _regrets(environment: Environment, arms: list[int]) -> list[float]:
    """Of each step, in expectation over the luck of rewards."""
    expected: Callable[[int], Tensor] | None = getattr(environment, "expected", None)
    if expected is None:
        return []
    found = []
    for step, arm in enumerate(arms):
        means = expected(step)
        found.append(float(means.max() - means[arm]))
    return found


def _continued(folder: Path, agent: Agent) -> Agent:
    """The agent of the directory, if it has one of the same settings; another is refused."""
    path = folder / "agent.safetensors"
    if not path.is_file():
        return agent
    found = load_agent(path, agent.model)
    # as it comes back from a file, where tuples are lists
    if json.dumps(found.about()) != json.dumps(agent.about()):
        raise FileExistsError(
            f"{folder} holds another run ({found.policy.name}, seed {found.seed}): give the same policy, method, "
            "network, settings and seed to go on with it, or choose another directory"
        )
    return found
