"""Deep ensembles: the same method from several independent starts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bayesrule import modules, seeds
from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.likelihoods import Categorical
from bayesrule.methods.base import Learner, Logs, Method, Needs, Plan, context
from bayesrule.methods.dropout import MCDropout
from bayesrule.methods.point import MAP
from bayesrule.modules import Parameters
from bayesrule.posteriors import Mixture, Posterior, match
from bayesrule.seeds import Noise
from bayesrule.starts import reinitialise
from bayesrule.task import Task

TRAINED = 0.8  # of the targets' variance: weights drawn at random do not explain that much, but for rare toys
SEEN, FEW = 256, 32  # examples that it is judged by, and too few to judge


@dataclass(frozen=True)
class Ensemble(Method):
    """q(w) = 1/K Σ_k q_k(w): K learners of one method, each from its own random start (Lakshminarayanan 2017).

    ``members``: K. ``base``: the method of each member.
    """

    name: ClassVar[str] = "ensemble"
    summary: ClassVar[str] = "several networks from independent starts"
    weighs: ClassVar[bool] = True
    members: int = 5
    base: Method = field(default_factory=MAP)

    def __post_init__(self) -> None:
        if not isinstance(self.members, Integral) or self.members < 1:
            raise ValueError(f"members must be a whole number of at least 1, not {self.members!r}")

    def start(self, task: Task, plan: Plan, noise: Noise) -> EnsembleLearner:
        """Start each member from weights drawn anew, the same ones in all processes."""
        _warn_of_trained(task)
        members = []
        # One module to draw all starts in: a copy for each member would be made twice, here and by its learner.
        fresh = task.with_model(modules.twin(task.model))
        first: Parameters | None = None
        for _ in range(self.members):
            with noise.drawn_alike():
                reinitialise(fresh.model)
            members.append(self.base.start(fresh, plan, noise))  # which takes a copy of the weights
            if first is None:
                first = modules.snapshot(fresh.model)
            elif len(members) == 2:
                _check_differ(first, modules.snapshot(fresh.model))
        return EnsembleLearner(task, members)

    def needs(self, task: Task, epochs: int) -> Needs:
        """As the members have it."""
        return self.base.needs(task, epochs)


@dataclass(frozen=True)
class DropoutEnsemble(Ensemble):
    """An ensemble whose members are MC-dropout networks.

    ``members``: how many. ``base``: the dropout method of each.
    """

    name: ClassVar[str] = "dropout-ensemble"
    summary: ClassVar[str] = "several networks, each with dropout left on"
    base: Method = field(default_factory=MCDropout)


def _check_differ(one: Parameters, other: Parameters) -> None:
    """Refuse starts that are all the same."""
    if all(torch.equal(value, other[name]) for name, value in one.items()):
        raise ValueError(
            f"an ensemble needs starts that differ, but reset_parameters() gives {next(iter(one))!r} and all others "
            "the same values every time: its members would be one network; draw some weights at random there"
        )


def _warn_of_trained(task: Task) -> None:
    """Say so where the weights that the members throw away have learnt the task already."""
    if _explained(task) > TRAINED:
        warnings.warn(
            f"the module explains more than {TRAINED:.0%} of the targets' variance already, but an ensemble starts "
            "each member from weights drawn anew: its training is lost. To go on from it take method 'map' or 'swag', "
            "or 'laplace' with epochs=0",
            stacklevel=6,
        )


@torch.no_grad()
def _explained(task: Task) -> float:
    """1 − Σ‖y − E[y|f]‖²/Σ‖y − ȳ‖² over the first examples, classes one-hot: what the task's module knows of y."""
    batch = next(task.ordered(SEEN))
    buffers = modules.copies(dict(task.model.named_buffers()))  # which a pass may change
    with seeds.untouched(task.device):
        outputs = modules.call(task.model, batch.x, buffers or None)
    y, mean = task.likelihood.check(outputs, batch.y), task.likelihood.mean(outputs)
    if isinstance(task.likelihood, Categorical):
        y = one_hot(y, mean.shape[1]).movedim(-1, 1).to(mean)
    scatter = float((y - y.mean(0)).square().sum())
    if len(y) < FEW or scatter == 0:
        return 0.0
    return 1 - float((y - mean).square().sum()) / scatter


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
        return self._mixture([member.posterior() for member in self.members])

    def conclude(self, held: Batch | None) -> Posterior:
        """Each member by itself, and then what is unknown of the pooled likelihood."""
        mixture = self._mixture([member.conclude(held) for member in self.members])
        if held is None:
            return mixture
        return match(mixture, held)

    def _mixture(self, parts: list[Posterior]) -> Mixture:
        pooled = self.task.likelihood.pooled([part.likelihood for part in parts])
        return Mixture(parts, context(self.task, pooled, **_together(parts)))


def _together(parts: list[Posterior]) -> dict[str, Any]:
    """Of members that say whether they converged: whether all did, and the largest fall of a loss."""
    said = [part.info.get("diagnostics", {}) for part in parts]
    if not all("converged" in each for each in said):
        return {}
    return {"converged": all(each["converged"] for each in said), "fell": max(each["fell"] for each in said)}
