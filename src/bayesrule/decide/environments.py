"""Worlds for contextual bandits: a context is seen, an arm is chosen, and only that arm's reward is learnt."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bayesrule.naming import unknown
from bayesrule.seeds import mixed

MUSHROOM = "UCI_Mushroom/agaricus-lepiota.data"
SKIP, EAT = 0, 1  # the arms of whoever meets a mushroom
EDIBLE, POISON = 5.0, -35.0  # rewards of eating; one poisonous mushroom in two is as good as an edible one
CONTEXTS, REWARDS, RULE = range(3)  # what a seed is for


@runtime_checkable
class Environment(Protocol):
    """What a bandit plays with: contexts and rewards as functions of the step, so that a run can go on after a break.

    An environment may also have ``expected(step)``, the mean reward of every arm [A]: then there is a regret.
    """

    @property
    def name(self) -> str:
        """What results call it."""

    @property
    def arms(self) -> int:
        """A, the number of arms."""

    def context(self, step: int) -> Tensor:
        """The numbers that are seen before an arm is chosen, [D]."""

    def reward(self, step: int, arm: int) -> float:
        """What the chosen arm gives."""


@dataclass(frozen=True, eq=False)
class Dealt:
    """An environment whose steps are dealt out beforehand, so that all policies meet the same luck.

    ``contexts``: [T, D]. ``rewards``: what each arm would give, [T, A]. ``means``: its expectation, [T, A].

    >>> world = Dealt("two", torch.zeros(1, 3), torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5, 0.0]]))
    >>> world.arms, world.reward(0, 1), world.expected(0)
    (2, -1.0, tensor([0.5000, 0.0000]))
    """

    name: str
    contexts: Tensor
    rewards: Tensor
    means: Tensor

    def __post_init__(self) -> None:
        if self.rewards.shape != self.means.shape or len(self.contexts) != len(self.rewards):
            raise ValueError(
                f"rewards and means must both be [T, A] for contexts [T, D]: got {list(self.rewards.shape)}, "
                f"{list(self.means.shape)} and {list(self.contexts.shape)}"
            )

    @property
    def steps(self) -> int:
        """T, how many steps are dealt out."""
        return len(self.rewards)

    @property
    def arms(self) -> int:
        """A."""
        return self.rewards.shape[1]

    def context(self, step: int) -> Tensor:
        """What is seen at a step."""
        return self.contexts[step]

    def reward(self, step: int, arm: int) -> float:
        """What an arm gives at a step."""
        return float(self.rewards[step, arm])

    def expected(self, step: int) -> Tensor:
        """What every arm gives at a step on average."""
        return self.means[step]


def mushroom(steps: int, seed: int = 0, data_dir: str | Path | None = None) -> Dealt:
    """Eat or leave a mushroom that is drawn at random from the 8124 of the UCI table (Blundell et al. 2015).

    Leaving it (arm 0) gives 0, eating it (arm 1) 5 if it is edible, and else −35 or 5, each with probability ½, so −15
    on average. The context is the one-hot code of its 22 attributes, 117 numbers; a missing value is one of its own.
    """
    features, edible = _table(data_dir)
    return foraged("mushroom", features, edible, steps, seed)


def foraging(steps: int, seed: int = 0, attributes: int = 8, values: int = 4) -> Dealt:
    """Mushrooms that are made up: the small world for tests, and for settings of the one of real mushrooms.

    Each of some attributes has one of some values, at random. A network with random weights, of the seed, says what is
    edible: about half.

    >>> world = foraging(steps=100)
    >>> world.contexts.shape, world.means.unique()
    (torch.Size([100, 32]), tensor([-15.,   0.,   5.]))
    """
    rule = _generator(seed, RULE)
    count = 2000
    codes = torch.randint(values, (count, attributes), generator=rule)
    features = torch.nn.functional.one_hot(codes, values).flatten(1).float()
    hidden = (features @ torch.randn(features.shape[1], 16, generator=rule) / attributes**0.5).tanh()
    worth = hidden @ torch.randn(16, generator=rule)
    return foraged("foraging", features, worth > worth.median(), steps, seed)


def foraged(name: str, features: Tensor, edible: Tensor, steps: int, seed: int) -> Dealt:
    """Mushrooms drawn with replacement, and the luck of whoever eats them."""
    _check_steps(steps)
    rows = torch.randint(len(features), (steps,), generator=_generator(seed, CONTEXTS))
    lucky = torch.rand(steps, generator=_generator(seed, REWARDS)) < 0.5
    good = edible[rows]
    rewards, means = torch.zeros(steps, 2), torch.zeros(steps, 2)
    rewards[:, EAT] = torch.where(good | lucky, EDIBLE, POISON)
    means[:, EAT] = torch.where(good, EDIBLE, (EDIBLE + POISON) / 2)
    return Dealt(name, features[rows], rewards, means)


def wheel(steps: int, seed: int = 0, delta: float = 0.95) -> Dealt:
    """The wheel (Riquelme et al. 2018): seldom, and only far out, another arm is worth much more than the usual one.

    Contexts are uniform in the unit disc. Within the radius ``delta`` the first arm gives 1.2 and the four others 1.0
    on average; outside, one of the four, by the quadrant, gives 50. The noise has a deviation of 0.01.

    >>> world = wheel(1000, delta=0.5)
    >>> round(float((world.means.amax(1) == 50).float().mean()), 1)  # 1 − δ² of the disc
    0.8
    """
    _check_steps(steps)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be a radius between 0 and 1, both excluded: got {delta:g}")
    drawn = torch.rand(steps, 2, generator=_generator(seed, CONTEXTS))
    radius, angle = drawn[:, 0].sqrt(), 2 * torch.pi * drawn[:, 1]
    contexts = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    quadrant = 1 + (contexts[:, 0] < 0).long() + 2 * (contexts[:, 1] < 0).long()
    means = torch.ones(steps, 5)
    means[:, 0] = 1.2
    outside = radius > delta
    means[outside, quadrant[outside]] = 50.0
    noise = 0.01 * torch.randn(steps, 5, generator=_generator(seed, REWARDS))
    return Dealt("wheel", contexts, means + noise, means)


ENVIRONMENTS: dict[str, Callable[..., Dealt]] = {"foraging": foraging, "mushroom": mushroom, "wheel": wheel}


def create(name: str, steps: int, seed: int = 0, **options: object) -> Dealt:
    """The environment called ``name``, see `ENVIRONMENTS`.

    >>> create("whell", 10)
    Traceback (most recent call last):
    ValueError: unknown environment 'whell': did you mean 'wheel'? Valid: foraging, mushroom, wheel
    """
    if name not in ENVIRONMENTS:
        raise unknown("environment", name, ENVIRONMENTS)
    return ENVIRONMENTS[name](steps, seed, **options)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")


def _generator(seed: int, purpose: int) -> torch.Generator:
    return torch.Generator().manual_seed(mixed(seed, purpose))


def _table(data_dir: str | Path | None) -> tuple[Tensor, Tensor]:
    """One-hot attributes of all mushrooms, [N, D], and whether each is edible."""
    given = data_dir or os.environ.get("BAYESRULE_DATA")
    if not given:
        raise FileNotFoundError(
            "the mushroom bandit is read from a file, and no directory was given: set data_dir or $BAYESRULE_DATA to "
            f"the one that holds {MUSHROOM}"
        )
    path = Path(given).expanduser() / MUSHROOM
    if not path.is_file():
        raise FileNotFoundError(f"looked for {path} and did not find it: set data_dir or $BAYESRULE_DATA")
    rows = [line.split(",") for line in path.read_text(encoding="utf-8").split()]
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]) or row[0] not in ("e", "p"):
            raise ValueError(
                f"{path}, line {number}: must be e or p and {len(rows[0]) - 1} letters, separated by commas, got "
                f"{','.join(row)!r}"
            )
    columns = list(zip(*rows, strict=True))[1:]
    coded = []
    for column in columns:
        letters = sorted(set(column))
        index = torch.tensor([letters.index(letter) for letter in column])
        coded.append(torch.nn.functional.one_hot(index, len(letters)))
    return torch.cat(coded, 1).float(), torch.tensor([row[0] == "e" for row in rows])
