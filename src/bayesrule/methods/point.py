"""One network: maximum likelihood and maximum a posteriori."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from bayesrule import modules
from bayesrule.data import Batch
from bayesrule.methods.base import Logs, Method, Needs, Plan, context
from bayesrule.methods.gradient import GradientLearner, Trained
from bayesrule.methods.mode import FEWEST, Mode, approach, has_mode, passes
from bayesrule.optim import Group
from bayesrule.posteriors import Particles, Posterior, match
from bayesrule.priors import Flat
from bayesrule.seeds import Noise
from bayesrule.task import Task


@dataclass(frozen=True)
class MAP(Method):
    """w* = argmin Σ_i −log p(y_i|f_w(x_i)) − η log p(w), by Adam with warm-up and a cosine schedule.

    ``lr``: Adam's learning rate after the warm-up.
    """

    name: ClassVar[str] = "map"
    summary: ClassVar[str] = "one network at the mode of the posterior"
    weighs: ClassVar[bool] = True
    post_hoc: ClassVar[bool] = True
    lr: float = 1e-2

    def start(self, task: Task, plan: Plan, noise: Noise) -> PointLearner:
        """Train a copy of the module."""
        return PointLearner(task, plan, Group(lr=self.lr))


@dataclass(frozen=True)
class MLE(Method):
    """w* = argmin Σ_i −log p(y_i|f_w(x_i)): MAP under a flat prior.

    ``lr``: Adam's learning rate after the warm-up.
    """

    name: ClassVar[str] = "mle"
    summary: ClassVar[str] = "one network at the maximum of the likelihood"
    weighs: ClassVar[bool] = True
    post_hoc: ClassVar[bool] = True
    lr: float = 1e-2

    def start(self, task: Task, plan: Plan, noise: Noise) -> PointLearner:
        """MAP without a prior."""
        if task.prior.learnt:
            raise ValueError("mle has no prior, and would forget what the posterior knows: take method 'map'")
        return PointLearner(task.with_prior(Flat()), plan, Group(lr=self.lr))

    def needs(self, task: Task, epochs: int) -> Needs:
        """As of any method, but no prior."""
        return replace(super().needs(task, epochs), prior=False)


class PointLearner(GradientLearner):
    """The weights of one network, and what is unknown of the likelihood, by gradients.

    ``prior`` is the task's, and may move as the fit goes on.
    """

    def __init__(self, task: Task, plan: Plan, group: Group) -> None:
        network = modules.training_mode(modules.twin(task.model))
        self.parameters = modules.parameters(network)
        self.prior = task.prior
        super().__init__(task, plan, network, [Trained.by(group, self.parameters.values())])

    def objective(self, batch: Batch) -> tuple[Tensor, Logs]:
        """−mean log p(y|f) − (η/N) log p(w)."""
        outputs = self.task.outputs(self.network, batch.x)
        penalty = -self.prior.log_prob(self.parameters)
        return self.task.loss(outputs, batch.y, self.likelihood, penalty, batch.weight)

    def posterior(self) -> Posterior:
        """One particle."""
        return Particles.of([self.network], context(self.task, self.learnt()))

    def conclude(self, held: Batch | None) -> Posterior:
        """One particle, at the mode if the length of training is not the user's; see `mode`."""
        self.check_sound()
        found = self.mode()
        if found is None:
            posterior = self.posterior()
        else:
            about = context(self.task, self.learnt(), converged=found.converged, fell=found.fell)
            posterior = Particles([modules.snapshot(self.network) | found.weights], about)
        if held is None and self.steps == 0:  # noise that no training has learnt is that about the network as it stands
            held = self.task.data.raw()
        if held is None:
            return posterior
        return match(posterior, held)

    def mode(self) -> Mode | None:
        """The mode next to where training has ended, in passes that together cost no more than the training did.

        None: the user said how long to train, a callback has stopped it, there are too many data for enough passes, or
        the loss is not a function of the weights alone.
        """
        whole = self.plan.to_convergence and self.steps == self.plan.steps
        most = passes(self.task, self.steps)
        if not whole or most < FEWEST or not has_mode(self.task, self.prior, self.network):
            return None
        return approach(self.task, self.prior, self.network, self.learnt(), most)

    def at_mode(self) -> nn.Module:
        """The network at its `mode`: a copy, or the network itself where there is none to go to."""
        found = self.mode()
        if found is None:
            return self.network
        network = modules.twin(self.network)
        network.load_state_dict(found.weights, strict=False)
        return network
