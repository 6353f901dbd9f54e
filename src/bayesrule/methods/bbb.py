"""Bayes by Backprop: a mean-field Gaussian by stochastic gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.data import Batch, inputs
from bayesrule.files import Tree
from bayesrule.methods.base import Logs, Method, Plan
from bayesrule.methods.gradient import GradientLearner, Trained
from bayesrule.modules import Parameters
from bayesrule.nn import Variational, bayesianize, check_settings, fan_ins, kl_weights
from bayesrule.optim import Group, Recipe, Schedule, choose
from bayesrule.posteriors import Gaussian
from bayesrule.seeds import Noise
from bayesrule.task import Task

FURTHEST = 0.1  # the rate of Adam for the means of weights with a fan-in of one, see `_by_fan_in`


@dataclass(frozen=True)
class BBB(Method):
    """min over q = Π_j N(mean_j, σ_j²) of E_q[−log p(D|w)] + η KL(q‖p), by gradients of samples (Blundell 2015).

    ``lr``, ``optimizer``, ``schedule``: how the means are trained; None is the optimiser's own rate, and for Adam
    0.1/√fan-in, each weight's own. ``sigma_lr_ratio``: the rate of the deviations as a multiple of the means', 0.01 for
    Adam's own, otherwise trained alike; or
    ``deviations``: a `br.optim.Group` of their own. ``alternate``: train means and deviations by turns, this many
    epochs each; 0 is both at once. ``initial_std``, ``initial_mean``, ``estimator``, ``gradient``: as for
    `br.nn.bayesianize`. ``samples``: draws in a step. ``kl_ratio``: λ of the weights π_i = λ^i/Σ_k λ^k that the
    divergence has in the batches of an epoch. ``by_layer``: log each layer's part of the divergence.
    """

    name: ClassVar[str] = "bbb"
    summary: ClassVar[str] = "a mean-field Gaussian by Bayes by Backprop"
    weighs: ClassVar[bool] = True
    variational: ClassVar[bool] = True
    # With 2000 the mean of a small network is up to 0.53 deviations off, with 4000 0.4 (tests/training).
    least_steps: ClassVar[int] = 4000
    lr: float | None = None
    sigma_lr_ratio: float = 3.0
    initial_std: float | str = 0.02
    initial_mean: str | None = None
    estimator: str = "weight"
    gradient: str = "total"
    samples: int = 1
    kl_ratio: float = 1.0
    optimizer: str | Recipe = "adam"
    schedule: str | Schedule = "cosine"
    deviations: Group | None = None
    alternate: int = 0
    by_layer: bool = False

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("alternate", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if not (math.isfinite(self.sigma_lr_ratio) and self.sigma_lr_ratio > 0):
            raise ValueError(f"sigma_lr_ratio must be positive and finite, not {self.sigma_lr_ratio}")
        if not isinstance(self.deviations, Group | None):
            raise TypeError(f"deviations must be a br.optim.Group or None, not {self.deviations!r}")
        kl_weights(1, self.kl_ratio)
        check_settings(self.estimator, self.gradient, self.initial_std, self.initial_mean)
        self.groups()

    def start(self, task: Task, plan: Plan, noise: Noise) -> VariationalLearner:
        """Train means and deviations of a copy of the module."""
        model = modules.training_mode(modules.twin(task.model))
        with noise.drawn_alike():  # first means, if they are not the module's own
            network = bayesianize(model, task.prior, self.estimator, self.gradient, self.initial_std, self.initial_mean)
        first = next(task.ordered(plan.batch_size)).x
        network.settle(*modules.arguments(inputs.each(inputs.duplicate, first)))  # a copy: the module may write into it
        if self.by_layer and not network.divergences():
            raise ValueError(
                "by_layer=True needs a prior whose divergence is a sum over layers in closed form, and "
                f"{task.prior.name} has none: leave it out"
            )
        return VariationalLearner(task, plan, network, self)

    def groups(self) -> tuple[Group, Group]:
        """How means and deviations are trained."""
        means = Group(self.optimizer, self.lr, self.schedule)
        return means, self.deviations or replace(means, lr=means.full_rate * self.sigma_lr_ratio)

    def reach(self, task: Task) -> Tensor | None:
        """Factors on the rate of the means, each weight's own; None is one for all."""
        means, _ = self.groups()
        kind = choose(means.optimizer).optimizer
        if kind == "adam" and self.lr is None:
            return _by_fan_in(task.model, means.full_rate)
        if kind == "sgd":
            return _by_stiffness(task, means.full_rate)
        return None


def _by_fan_in(model: nn.Module, lr: float) -> Tensor:
    """`FURTHEST`/√fan-in in units of lr; one for weights without a fan.

    Adam's steps are as long as the rate, however small the gradient is beside its noise. Those of a layer's weights,
    with signs of their own, then change its outputs by about `FURTHEST` for inputs of order one, whatever its width.
    """
    fans, parameters = fan_ins(model), modules.parameters(model)
    factors = {}
    for name, w in parameters.items():
        fan = fans[name]
        factors[name] = torch.full_like(w, FURTHEST / (lr * math.sqrt(fan)) if fan else 1.0)
    return modules.flatten(factors)


def _by_stiffness(task: Task, lr: float) -> Tensor | None:
    """min(1, N/(ηλ·lr)) for weights of prior precision λ; None for a prior that is no Gaussian.

    From a rate of 2N/(ηλ) on, the pull of the prior alone drives plain gradient steps further out each time: so does
    a prior that many examples have taught, when there are few new ones.
    """
    parameters = task.parameters()
    try:
        _, precisions = task.prior.mean_field(parameters)
    except ValueError:
        return None
    factors = {}
    for name, w in parameters.items():
        stiffness = (lr * task.weight * precisions[name]).to(w)
        factors[name] = stiffness.reciprocal().clamp(max=1).expand(w.shape)
    return modules.flatten(factors)


class VariationalLearner(GradientLearner):
    """Gradients of the likelihood under drawn weights plus the weighted divergence."""

    network: Variational

    def __init__(self, task: Task, plan: Plan, network: Variational, method: BBB) -> None:
        groups = method.groups()
        means, deviations = Trained.by(groups[0], [network.mean]), Trained.by(groups[1], [network.rho])
        means = means._replace(reach=method.reach(task))
        span = method.alternate
        if span:
            means = means._replace(turn=lambda epoch: epoch // span % 2 == 0)
            deviations = deviations._replace(turn=lambda epoch: epoch // span % 2 == 1)
        super().__init__(task, plan, network, [means, deviations])
        self.method = method
        self.first = network.rho.detach().clone()
        self.travelled = 0.0  # the sum of the deviations' rates so far
        self.shares = kl_weights(plan.steps_per_epoch, method.kl_ratio) * plan.steps_per_epoch

    def objective(self, batch: Batch) -> tuple[Tensor, Logs]:
        """Mean −log p(y|f) + π_i·M·(η/N)·KL(q‖p), averaged over draws."""
        share = float(self.shares[self.steps % self.plan.steps_per_epoch])
        if self.method.samples == 1:
            return self._draw(batch, share)
        losses: list[Tensor] = []
        logged: dict[str, list[Tensor]] = {}
        for _ in range(self.method.samples):
            loss, logs = self._draw(batch, share)
            losses.append(loss)
            for name, value in logs.items():
                logged.setdefault(name, []).append(value)
        return torch.stack(losses).mean(), {name: torch.stack(values).mean() for name, values in logged.items()}

    def _draw(self, batch: Batch, share: float) -> tuple[Tensor, Logs]:
        nll = self.task.nll(self.task.outputs(self.network, batch.x), batch.y, self.likelihood, batch.weight)
        loss, divergence = self.network.terms(nll, share * self.task.weight)
        logs = {"loss": loss.detach(), "nll": nll.detach(), "penalty": self.task.weight * divergence.detach()}
        if self.method.by_layer:
            logs |= self._by_layer()
        return loss, logs

    def _by_layer(self) -> Logs:
        layers: Logs = {}
        for name, value in self.network.divergences().items():
            layer = f"penalty {name.rpartition('.')[0]}".rstrip()
            layers[layer] = layers.get(layer, torch.zeros(())) + self.task.weight * value
        return layers

    def tensors(self) -> Parameters:
        """Means, deviations, and the module's buffers under their own names."""
        learnt = {"q.mean": self.network.mean, "q.rho": self.network.rho}
        return learnt | dict(self.network.module.named_buffers())

    def step(self, batch: Batch) -> Logs:
        """As for any learner."""
        turn = self.trained[1].turn
        trains = turn is None or turn(self.steps // self.plan.steps_per_epoch)
        logs = super().step(batch)
        if trains:
            self.travelled += self.trained[1].optimizer.param_groups[0]["lr"]
        return logs

    def state_dict(self) -> Tree:
        """As for any learner, and how far the deviations could go."""
        return {**super().state_dict(), "travelled": self.travelled}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        super().load_state_dict(state)
        self.travelled = state["travelled"]

    def posterior(self) -> Gaussian:
        """The diagonal Gaussian q over the original module's parameters.

        The diagnosis ``sigma_from_start`` is how much of an error in the first log σ is left, see `_start_share`.
        """
        found = self.network.posterior(self.learnt(), self.task.data.scaling)
        share = self._start_share()
        if share is None:
            return found
        return found.with_context(info=found.context.info | {"diagnostics": {"sigma_from_start": share}})

    @torch.no_grad()
    def _start_share(self) -> float | None:
        """How much of an error in the first log σ is left, averaged over weights; None unless Adam or its kin train it.

        Near its optimum the loss of a weight is (η/N)(½Λσ² − log σ), whose second derivative in log σ is 2η/N wherever
        the optimum is. A step of Adam in ρ goes down this slope by lr/√v, v the mean square of its gradients, which are
        noise for the most part: exp(−2(η/N)(d log σ/dρ)²/√v · Σ lr) of an error is left. On the way there, |ρ − ρ₀| of
        Σ lr at least, the slope is constant, and nothing is forgotten.
        """
        state = self.trained[1].optimizer.state.get(self.network.rho, {})
        if not {"exp_avg_sq", "step"} <= set(state):
            return None
        beta = self.trained[1].optimizer.param_groups[0]["betas"][1]
        size = (state["exp_avg_sq"] / (1 - beta ** float(state["step"]))).sqrt()
        k = torch.sigmoid(self.network.rho) / torch.nn.functional.softplus(self.network.rho)
        near = (self.travelled - (self.network.rho - self.first).abs()).clamp_min(0)
        return float((-2 * self.task.weight * k.square() / size * near).exp().mean())
