"""An agent: what it has seen, the posterior that it has made of it, and the arm that it plays next."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import files, likelihoods, methods, modules, posteriors
from bayesrule.decide.policies import AVAILABLE, Policy, chosen
from bayesrule.decide.rewards import WideAndDeep
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Method
from bayesrule.naming import from_spec, to_spec
from bayesrule.posteriors import Posterior, central_state
from bayesrule.priors import Gaussian
from bayesrule.seeds import mixed, untouched
from bayesrule.training import fit

START, ACT, FIT = range(3)  # what a seed is for
KIND = "bandit"  # of files
LR = 3e-3  # Adam's learning rate, of 1e-3, 3e-3 and 1e-2 the best of Thompson sampling on `environments.foraging`


@dataclass(frozen=True)
class Retraining:
    """How an agent learns from what it has seen.

    The network is trained from its last weights, with the last ``buffer`` steps, by at least ``updates`` mini-batches
    of ``batch_size``, in whole passes over these data: when a tenth more has been seen, and at least every ``every``
    steps. So the first rewards count at once, and later ones cost little. The first ``warmup`` arms are played at
    random. Rewards are divided by ``unit``, which should be about as large as they are. The weights' prior is
    N(0, scale²).
    """

    every: int = 100
    warmup: int = 1
    buffer: int = 20_000
    updates: int = 64
    batch_size: int = 128
    unit: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("every", "warmup", "buffer", "updates", "batch_size"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name in ("unit", "scale"):
            if not (value := getattr(self, name)) > 0:
                raise ValueError(f"{name} must be positive, not {value:g}")

    def due(self, step: int, trained: int) -> bool:
        """Whether to train before this step, where the last training was before the step ``trained``.

        >>> how, last, steps = Retraining(every=5), 0, []
        >>> for step in range(80):
        ...     if how.due(step, last):
        ...         last = step
        ...         steps.append(step)
        >>> steps[:14], steps[-3:]
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18], [67, 72, 77])
        """
        return step >= self.warmup and step - trained >= min(self.every, math.ceil(step / 10))

    def epochs(self, examples: int) -> int:
        """Passes over so many examples that make the updates."""
        per_pass = -(-examples // self.batch_size)
        return -(-self.updates // per_pass)


class Agent:
    """Plays one of ``arms`` arms at contexts of ``features`` numbers.

    A network expects a reward of a context and an arm, f_w([x, one-hot a]); what is not known of w is a posterior of
    any method, and the policy makes an arm of it. Random numbers depend on the seed and the step alone.

    Args:
        policy: a name (thompson, ucb, epsilon-greedy, greedy) or an object such as ``UCB(width=2.0)``.
        method: how the posterior is made, a name or an object; None: Laplace's method for the last layer, with a
            network that is trained on from its last weights; for the policies that ask the mean alone, MAP.
        model: the network, ``model(inputs)`` for inputs [B, features + arms]; None: `WideAndDeep` with ``hidden``.
        likelihood: of a reward in units of ``retraining.unit``; None: normal noise of one unit. Noise that is learnt
            may come to nothing while all rewards are alike, and the first that is not is then a shock.

    >>> agent = Agent(arms=2, features=3, policy="thompson", retraining=Retraining(every=5, warmup=5, updates=4))
    >>> for step in range(20):
    ...     context = torch.ones(3)
    ...     arm = agent.choose(context)
    ...     agent.observe(context, arm, reward=float(arm))
    >>> len(agent.arms_played)
    20
    """

    def __init__(
        self,
        arms: int,
        features: int,
        policy: str | Policy = "thompson",
        method: str | Method | None = None,
        *,
        model: nn.Module | None = None,
        hidden: tuple[int, ...] = (100, 100),
        likelihood: str | Likelihood | None = None,
        retraining: Retraining | None = None,
        seed: int = 0,
    ) -> None:
        if arms < 2:
            raise ValueError(f"arms must be at least 2, not {arms}: there is nothing to choose")
        if features < 1:
            raise ValueError(f"features must be at least 1, not {features}: a constant context is one number")
        self.arms, self.features, self.seed = arms, features, seed
        self.policy = chosen(policy)
        self.method = methods.choose(usual_method(self.policy) if method is None else method)
        self.retraining = retraining or Retraining()
        self.likelihood = likelihoods.Gaussian(1.0) if likelihood is None else likelihoods.choose(likelihood)
        self.model = _network(features, arms, hidden, seed) if model is None else modules.twin(model)
        self.posterior: Posterior | None = None
        self.contexts: list[Tensor] = []
        self.arms_played: list[int] = []
        self.rewards: list[float] = []
        self._trained = 0  # examples at the last training

    @property
    def step(self) -> int:
        """How many rewards it has seen."""
        return len(self.rewards)

    def choose(self, context: Any) -> int:
        """The arm to play at a context; trains first if it is time."""
        x = self._context(context)
        generator = torch.Generator().manual_seed(mixed(self.seed, ACT, self.step))
        if self.retraining.due(self.step, self._trained):
            self._train()
        if self.posterior is None:
            return int(torch.randint(self.arms, (), generator=generator))
        return self.policy.arm(self.values(x, generator), generator)

    def values(self, context: Tensor, generator: torch.Generator) -> Tensor:
        """What each of the policy's networks expects of each arm, [S, A], in units of the rewards."""
        assert self.posterior is not None
        given = _joined(context.expand(self.arms, -1), torch.arange(self.arms), self.arms)
        device = modules.device_of(self.model)
        draws = torch.Generator(device).manual_seed(mixed(self.seed, ACT, self.step, 1))
        with torch.no_grad():
            found = self.posterior.outputs(self.posterior.inputs(given), self.policy.asks, draws)
        return found.flatten(2)[..., 0].cpu() * self.retraining.unit

    def observe(self, context: Any, arm: int, reward: float) -> None:
        """Learn what an arm has given at a context."""
        if not 0 <= arm < self.arms:
            raise ValueError(f"arm must be one of 0 to {self.arms - 1}, got {arm}")
        if not torch.tensor(float(reward)).isfinite():
            raise ValueError(f"reward must be a finite number, got {reward} at step {self.step}")
        self.contexts.append(self._context(context))
        self.arms_played.append(int(arm))
        self.rewards.append(float(reward))

    def _train(self) -> None:
        """One fit from the last weights, with the last examples."""
        how = self.retraining
        last = slice(-how.buffer, None)
        arms = torch.tensor(self.arms_played[last])
        x = _joined(torch.stack(self.contexts[last]), arms, self.arms)
        y = torch.tensor(self.rewards[last], dtype=x.dtype) / how.unit
        network = modules.twin(self.model)
        if self.posterior is not None:
            network.load_state_dict(central_state(self.posterior), strict=False)
        self.posterior = fit(
            network,
            (x, y),
            self.method,
            self.likelihood,
            Gaussian(how.scale),
            1.0,
            epochs=how.epochs(len(y)),
            batch_size=min(how.batch_size, len(y)),
            seed=mixed(self.seed, FIT, self.step),
            val=0,
        )
        self._trained = self.step

    def _context(self, context: Any) -> Tensor:
        x = torch.as_tensor(context, dtype=modules.dtype_of(self.model)).detach().flatten()
        if len(x) != self.features:
            raise ValueError(f"context must have {self.features} numbers, as at the start: got {len(x)}")
        if not bool(x.isfinite().all()):
            raise ValueError(f"context must be finite numbers, got NaN or infinite ones at step {self.step}")
        return x

    def about(self) -> dict[str, Any]:
        """All that decides what it does, as plain data."""
        return {
            "arms": self.arms,
            "features": self.features,
            "policy": to_spec(self.policy),
            "method": to_spec(self.method),
            "likelihood": to_spec(self.likelihood),
            "retraining": asdict(self.retraining),
            "seed": self.seed,
            "network": modules.signature(self.model),
        }

    def save(self, path: str | Path) -> None:
        """Write all of it but the module's code to one file, atomically; `load_agent` reads it."""
        files.save(path, files.sealed(self._tree()), KIND)

    def _tree(self) -> dict[str, Tree]:
        return {
            "about": self.about(),
            "start": modules.snapshot(self.model),
            "contexts": torch.stack(self.contexts) if self.contexts else torch.zeros(0, self.features),
            "arms": torch.tensor(self.arms_played, dtype=torch.int64),
            "rewards": torch.tensor(self.rewards, dtype=torch.float64),
            "trained": self._trained,
            "posterior": None if self.posterior is None else self.posterior.tree(),
        }


def load_agent(path: str | Path, model: nn.Module | None = None, hidden: tuple[int, ...] = (100, 100)) -> Agent:
    """An agent as it was saved, which goes on as if there had been no break.

    ``model`` or ``hidden``: the network that it was made with.
    """
    tree = files.unsealed(path, files.load(path, KIND))
    about = tree["about"]
    agent = Agent(
        about["arms"],
        about["features"],
        from_spec("policy", about["policy"], AVAILABLE),
        from_spec("method", about["method"], methods.AVAILABLE),
        model=model,
        hidden=hidden,
        likelihood=from_spec("likelihood", about["likelihood"], likelihoods.AVAILABLE),
        retraining=Retraining(**about["retraining"]),
        seed=about["seed"],
    )
    if difference := modules.difference(about["network"], modules.signature(agent.model)):
        raise files.FileError(f"{path}: does not fit the model: {difference}")
    agent.model.load_state_dict(tree["start"], strict=False)
    agent.contexts = list(tree["contexts"])
    agent.arms_played, agent.rewards = tree["arms"].tolist(), tree["rewards"].tolist()
    agent._trained = tree["trained"]
    if tree["posterior"] is not None:
        agent.posterior = posteriors.from_tree(path, tree["posterior"], agent.model)
    return agent


def usual_method(policy: Policy) -> Method:
    """Laplace's method for the last layer; MAP for policies that ask for nothing but the mean."""
    if policy.name in ("greedy", "epsilon-greedy"):
        return methods.MAP(lr=LR)
    return methods.Laplace(subset="last-layer", structure="dense", tune="nothing", predictive="weights", lr=LR)


def _network(features: int, arms: int, hidden: tuple[int, ...], seed: int) -> nn.Module:
    if not hidden:
        raise ValueError("hidden must be the widths of at least one layer, got none; for a linear model give model=")
    with untouched(torch.device("cpu")):
        torch.manual_seed(mixed(seed, START))
        return WideAndDeep(features, arms, hidden)


def _joined(contexts: Tensor, arms: Tensor, count: int) -> Tensor:
    """Contexts [N, D] and arms [N] as inputs of the network, [N, D + A]."""
    return torch.cat([contexts, torch.nn.functional.one_hot(arms, count).to(contexts)], 1)
