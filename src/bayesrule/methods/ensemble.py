"""Deep ensembles: the same method from several independent starts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from bayesrule import modules, seeds
from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.likelihoods import Categorical, Tokens
from bayesrule.methods.base import Learner, Logs, Method, Needs, Plan, context
from bayesrule.methods.dropout import MCDropout
from bayesrule.methods.point import MAP
from bayesrule.modules import Parameters
from bayesrule.posteriors import Mixture, Posterior, match, settled
from bayesrule.seeds import Noise
from bayesrule.starts import reinitialise
from bayesrule.task import Task

TRAINED = 0.8  # of the targets' variance: weights drawn at random do not explain that much, but for rare toys
SEEN, FEW = 256, 32  # examples that it is judged by, and too few to judge


@dataclass(frozen=True)
class Ensemble(Method):
    """q(w) = 1/K Σ_k q_k(w): K learners of one method, each from its own start (Lakshminarayanan 2017).

    The first starts from the module's own weights, trained or not; the others from weights that are drawn anew.

    ``members``: K. ``base``: the method of each member.
    """

    name: ClassVar[str] = "ensemble"
    summary: ClassVar[str] = "several networks: one from the module's own weights, the others from new ones"
    weighs: ClassVar[bool] = True
    members: int = 5
    base: Method = field(default_factory=MAP)

    def __post_init__(self) -> None:
        if not isinstance(self.members, Integral) or self.members < 1:
            raise ValueError(f"members must be a whole number of at least 1, not {self.members!r}")

    def start(self, task: Task, plan: Plan, noise: Noise) -> EnsembleLearner:
        """The first member from the module's own weights, the others from drawn ones, the same in all processes."""
        trained = _explained(task) > TRAINED
        if trained:
            _warn_of_trained(self.members)
        members = [self.base.start(task, plan, noise)]
        # One module to draw all starts in: a copy for each member would be made twice, here and by its learner.
        fresh = task.with_model(modules.twin(task.model))
        before = modules.snapshot(task.model)
        for _ in range(1, self.members):
            _draw(fresh.model, noise)
            if len(members) == 1 and _alike(before, fresh.model):
                _draw(fresh.model, noise)  # the module's own weights may have been drawn from the same seed
            if len(members) <= 2:  # no need to compare more: the module's own and a drawn one, two drawn ones
                _check_differ(before, fresh.model)
                before = modules.snapshot(fresh.model)
            own = _with_own_noise(fresh) if trained else fresh
            members.append(self.base.start(own, plan, noise))  # which takes a copy of the weights
        return EnsembleLearner(task, members)

    def needs(self, task: Task, epochs: int) -> Needs:
        """As the members have it."""
        return self.base.needs(task, epochs)

    def default_epochs(self, steps: int) -> int:
        """As long as a fit of one member."""
        return self.base.default_epochs(steps)


@dataclass(frozen=True)
class DropoutEnsemble(Ensemble):
    """An ensemble whose members are MC-dropout networks.

    ``members``: how many. ``base``: the dropout method of each.
    """

    name: ClassVar[str] = "dropout-ensemble"
    summary: ClassVar[str] = "several networks, each with dropout left on"
    base: Method = field(default_factory=MCDropout)


def _draw(module: nn.Module, noise: Noise) -> None:
    """New weights, the same in all processes."""
    with noise.drawn_alike():
        reinitialise(module)


def _alike(state: Parameters, module: nn.Module) -> bool:
    """Whether a module holds just these values."""
    own = modules.snapshot(module)
    return all(torch.equal(value, own[name]) for name, value in state.items())


def _check_differ(state: Parameters, module: nn.Module) -> None:
    """Refuse starts that are all the same."""
    if _alike(state, module):
        raise ValueError(
            f"an ensemble needs starts that differ, but reset_parameters() gives {next(iter(state))!r} and all others "
            "the same values every time: its members would be one network; draw some weights at random there"
        )


def _warn_of_trained(members: int) -> None:
    """Say what becomes of weights that have learnt the task already."""
    others = members - 1
    if others:
        warnings.warn(
            f"the module explains more than {TRAINED:.0%} of the targets' variance already: the first member of the "
            f"ensemble goes on from it, but the other {others} start from weights drawn anew. To keep to the module's "
            "own weights take method 'map' or 'swag', or 'laplace' with epochs=0",
            stacklevel=6,
        )


def _with_own_noise(task: Task) -> Task:
    """The task with its likelihood's unknowns started from the outputs of its module: not as small as a trained one's.

    Noise that fits the residuals of a trained network makes the first steps of one that is not far too long.
    """
    batch = next(task.ordered(SEEN))
    return replace(task, likelihood=settled(task.likelihood, _outputs(task, batch)[None], batch.y))


@torch.no_grad()
def _explained(task: Task) -> float:
    """1 − Σ‖y − E[y|f]‖²/Σ‖y − ȳ‖² over the first examples, classes one-hot: what the task's module knows of y."""
    batch = next(task.ordered(SEEN))
    outputs = _outputs(task, batch)
    y, mean = task.likelihood.check(outputs, batch.y), task.likelihood.mean(outputs)
    if isinstance(task.likelihood, Tokens):
        return 0.0  # a pre-trained model knows much of any text: that it goes on from there is no surprise
    if isinstance(task.likelihood, Categorical):
        y = one_hot(y, mean.shape[1]).movedim(-1, 1).to(mean)
    scatter = float((y - y.mean(0)).square().sum())
    if len(y) < FEW or scatter == 0:
        return 0.0
    return 1 - float((y - mean).square().sum()) / scatter


@torch.no_grad()
def _outputs(task: Task, batch: Batch) -> Tensor:
    """Those of the task's module, whose buffers stay as they are."""
    buffers = modules.copies(dict(task.model.named_buffers()))  # which a pass may change
    with seeds.untouched(task.device):
        return modules.call(task.model, batch.x, buffers or None)


class EnsembleLearner(Learner):
    """Several learners side by side on the same batches."""

    def __init__(self, task: Task, members: list[Learner]) -> None:
        self.task, self.members = task, members

    def step(self, batch: Batch) -> Logs:
        """One step of every member; the logs are averages."""
        logged: dict[str, list[Tensor]] = {}
        for member in self.members:
            for name, value in member.step(batch).items():
                logged.setdefault(name, []).append(value)
        return {name: torch.stack(values).mean() for name, values in logged.items()}

    def state_dict(self) -> Tree:
        """The members' states."""
        return {"members": [member.state_dict() for member in self.members]}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        for member, saved in zip(self.members, state["members"], strict=True):
            member.load_state_dict(saved)

    def posterior(self) -> Posterior:
        """The mixture of the members' posteriors."""
        return _mixture(self.task, [member.posterior() for member in self.members])

    def conclude(self, held: Batch | None) -> Posterior:
        """Each member by itself, and then what is unknown of the pooled likelihood."""
        return joined(self.task, [member.conclude(held) for member in self.members], held)


def joined(task: Task, parts: Sequence[Posterior], held: Batch | None) -> Posterior:
    """One posterior from those of all members, and what held-out data tell of the likelihood they have in common."""
    mixture = _mixture(task, parts)
    if held is None:
        return mixture
    return match(mixture, held)


def _mixture(task: Task, parts: Sequence[Posterior]) -> Mixture:
    pooled = task.likelihood.pooled([part.likelihood for part in parts])
    starts = ["the module's own weights", *["drawn anew"] * (len(parts) - 1)]
    return Mixture(list(parts), context(task, pooled, starts=starts, **_together(parts)))


def _together(parts: Sequence[Posterior]) -> dict[str, Any]:
    """Of members that say whether they converged: whether all did, and the largest fall of a loss."""
    said = [part.info.get("diagnostics", {}) for part in parts]
    if not all("converged" in each for each in said):
        return {}
    return {"converged": all(each["converged"] for each in said), "fell": max(each["fell"] for each in said)}
