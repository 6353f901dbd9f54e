"""From where training ends to the mode of the posterior, and a test of whether it is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesrule import modules, processes
from bayesrule.data import Arrays
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import Parameters
from bayesrule.priors import Flat, Prior
from bayesrule.task import Task

BATCH = 256  # examples at a time: a pass over so many costs little more than a step of training
FEWEST = 100  # passes that are worth a start: with fewer no fit comes to its mode
ITERATIONS = 10  # of L-BFGS, after which the fall of the loss is looked at
MEMORY = 20  # past steps that L-BFGS knows the curvature by
NEAR = 1e-3  # nats for each weight that these iterations may still gain at a mode


@dataclass(frozen=True, eq=False)
class Mode:
    """The weights that were reached, and how sure it is that they are at a mode.

    ``fell``: by how many nats −Σ log p(y|f)/η − log p(w) fell in the last `ITERATIONS`. ``converged``: whether that is
    less than `NEAR` for each weight, or for each example where these are fewer.
    """

    weights: Parameters
    converged: bool
    fell: float


def passes(task: Task, steps: int) -> int:
    """Passes over all data that cost about as much as so many steps of training."""
    return steps // task.data.steps(BATCH)


def has_mode(task: Task, prior: Prior, network: nn.Module) -> bool:
    """Whether the loss of training is a smooth function of the weights alone, which full passes can follow.

    Not if examples are read anew each time; not of a network that does something else in training than in prediction,
    such as dropout or BatchNorm; and not under a prior that may have edges, as Laplace's has.
    """
    if not isinstance(task.data, Arrays) or modules.dtype_of(network) not in (torch.float32, torch.float64):
        return False
    if modules.has_batch_norm(network) or not _is_smooth(prior, modules.parameters(network)):
        return False
    x = next(task.ordered(BATCH)).x
    with torch.no_grad():
        trained, predicted = modules.call(network, x), modules.call(modules.shell(network).eval(), x)
    return bool(torch.equal(trained, predicted))


def _is_smooth(prior: Prior, parameters: Parameters) -> bool:
    if isinstance(prior, Flat):
        return True
    try:
        prior.gaussian(parameters)
    except ValueError:
        return False
    return True


def approach(task: Task, prior: Prior, network: nn.Module, likelihood: Likelihood, most: int) -> Mode:
    """The weights of least −Σ log p(y|f)/η − log p(w) that L-BFGS comes to from a network's, in ``most`` passes.

    It stops where `Mode` says that it has converged. The likelihood stays as it is: with its noise the loss would have
    no least value, once a network goes through all targets. All of it is a function of the data in their own order;
    the first process tells the others, so that they agree to the bit.
    """
    descent = _Descent(task, prior, network, likelihood)
    tolerance = NEAR * min(len(descent.best), task.data.n)
    fell = float("inf")
    while fell >= tolerance and descent.passes < most:
        before = descent.least
        descent.iterate(most)
        fell = before - descent.least
    weights = modules.copies(descent.named(descent.best))
    processes.send_from_first(weights.values())
    return Mode(weights, fell < tolerance, fell)


class _Descent:
    """L-BFGS on a vector of float64, whatever the network's dtype, and the best vector that it has seen."""

    def __init__(self, task: Task, prior: Prior, network: nn.Module, likelihood: Likelihood) -> None:
        self.task, self.prior, self.likelihood = task, prior, likelihood
        self.evaluated = modules.shell(network).eval()  # the same tensors; the network itself stays in training mode
        self.like = modules.parameters(network)
        self.vector = nn.Parameter(modules.flatten(self.like).detach().double())
        self.optimizer = torch.optim.LBFGS(
            [self.vector],
            max_iter=ITERATIONS,
            history_size=MEMORY,
            tolerance_grad=0.0,  # it does not know nats: `approach` says when it is enough
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        self.best, self.least, self.passes = self.vector.detach().clone(), float("inf"), 0
        self._look()

    def named(self, vector: Tensor) -> Parameters:
        """A vector as the network's parameters, in their dtype."""
        return {name: w.to(self.like[name].dtype) for name, w in modules.unflatten(vector, self.like).items()}

    def iterate(self, most: int) -> None:
        """Some iterations more, up to about ``most`` passes since the beginning."""
        self.optimizer.param_groups[0]["max_eval"] = most - self.passes
        self.optimizer.step(self._look)  # type: ignore[no-untyped-call]

    def _look(self) -> float:
        """The loss at the vector, whose gradient is left where L-BFGS finds it."""
        weights = {name: w.detach().requires_grad_() for name, w in self.named(self.vector).items()}
        total, slope = 0.0, torch.zeros_like(self.vector)
        for loss in self._terms(weights):
            total += float(loss.detach())
            if loss.requires_grad:  # a flat prior has no slope
                slope += _gradient(loss, weights)
        self.vector.grad = slope
        self.passes += 1
        if total < self.least:  # not if it is NaN
            self.best, self.least = self.vector.detach().clone(), total
        return total

    def _terms(self, weights: Parameters) -> Iterator[Tensor]:
        """−log p(w), and −Σ log p(y|f)/η of one batch after the other."""
        yield -self.prior.log_prob(weights)
        for batch in self.task.ordered(BATCH):
            outputs = modules.call(self.evaluated, batch.x, weights)
            yield self.task.total_nll(outputs, batch, self.likelihood) / self.task.temperature


def _gradient(loss: Tensor, weights: Parameters) -> Tensor:
    grads = torch.autograd.grad(loss, list(weights.values()), allow_unused=True, materialize_grads=True)
    return torch.cat([grad.reshape(-1) for grad in grads]).double()
