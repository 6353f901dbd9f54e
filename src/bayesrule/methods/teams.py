"""Networks of one shape that are trained side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap

from bayesrule import modules, seeds
from bayesrule.data import Inputs
from bayesrule.methods.candidates import Beliefs, Candidate
from bayesrule.methods.stacked import STILL, Layers, Nothing, stacked
from bayesrule.modules import Parameters
from bayesrule.seeds import Noise
from bayesrule.starts import reinitialise
from bayesrule.task import Task


class Stack(nn.Module):
    """M networks like a module: every parameter and buffer [M, ...]."""

    def __init__(self, states: Sequence[Parameters], trainable: Collection[str]) -> None:
        super().__init__()
        self.names = {name: name.replace(".", "/") for name in states[0]}  # torch allows no dots in a name
        for name, own in self.names.items():
            together = torch.stack([state[name] for state in states])
            if name in trainable:
                self.register_parameter(own, nn.Parameter(together))
            else:
                self.register_buffer(own, together)

    def tensors(self) -> Parameters:
        """All tensors by the names of the module."""
        return {name: getattr(self, own) for name, own in self.names.items()}


class Team:
    """K networks of each of several candidates, those of one candidate next to each other.

    ``candidates`` None: there is one, which believes what the user does. ``without``: the name of a child of the module
    whose weights are zero in all of them. It is not run in training, which takes most of the time away.
    """

    def __init__(
        self, task: Task, candidates: Sequence[Candidate] | None, folds: int, noise: Noise, without: str | None = None
    ) -> None:
        self.task, self.folds, self.without = task, folds, without
        self.module = modules.twin(task.model)
        if without is not None:
            setattr(self.module, without, Nothing())
        modules.training_mode(self.module)
        self.count = folds * (1 if candidates is None else len(candidates))
        states = [self._start(noise) for _ in range(self.count)]
        self.stack = Stack(states, modules.parameters(self.module))
        self.beliefs = None if candidates is None else Beliefs(candidates, folds, self.module)
        if self.beliefs is not None:
            self.beliefs.start(self.stack.tensors())
        self.layers = self._products()
        self.at_once = self.layers is None and self._runs_at_once()

    def _start(self, noise: Noise) -> Parameters:
        """Weights that are drawn anew, the same in all processes, and buffers."""
        fresh = modules.twin(self.module)
        with noise.drawn_alike():
            reinitialise(fresh)
        return modules.snapshot(fresh)

    def _products(self) -> Layers | None:
        """The networks as products of stacked matrices, where they are that in training too."""
        if self.task.autocast is not None or any(isinstance(layer, STILL) for layer in self.module.modules()):
            return None
        x = next(self.task.ordered(2)).x
        layers = stacked(self.module, x)
        if layers is None or not isinstance(x, Tensor) or not self._agrees(lambda states: layers(states, x)):
            return None
        return layers

    def _runs_at_once(self) -> bool:
        """Whether `torch.vmap` runs the module as a loop over networks does; statistics of a BatchNorm it does not."""
        if modules.has_batch_norm(self.module):
            return False
        module = modules.shell(self.module).eval()
        x = next(self.task.ordered(2)).x
        return self._agrees(vmap(lambda own: modules.call(module, x, own)))

    def _agrees(self, outputs: Callable[[Parameters], Tensor]) -> bool:
        """Whether a way to run all networks gives what the module does, by the first one and two examples."""
        module = modules.shell(self.module).eval()
        x = next(self.task.ordered(2)).x
        states = self.states()
        try:
            with torch.no_grad(), seeds.untouched(self.task.device):
                found = outputs(states)[0]
                wanted = modules.call(module, x, one(states, 0))
        except Exception:  # whatever it cannot do, the loop can, or says what is wrong
            return False
        return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)

    def states(self) -> Parameters:
        """All tensors of all networks, [M, ...]."""
        return {name: t.detach() for name, t in self.stack.tensors().items()}

    def whole(self, m: int) -> Parameters:
        """One network as the task's own module has it: also the weights that are zero."""
        found = modules.copies(one(self.states(), m))
        if self.without is None:
            return found
        missing = modules.snapshot(self.task.model.get_submodule(self.without))
        zeros = {f"{self.without}.{name}": torch.zeros_like(t) for name, t in missing.items()}
        return zeros | found

    def outputs(self, x: Inputs) -> Tensor:
        """Outputs of every network, [M, B, ...]."""
        weights = self.stack.tensors()
        if self.layers is not None:
            assert isinstance(x, Tensor)
            return self.layers(weights, x)
        if self.at_once:
            found: Tensor = vmap(lambda own: self._outputs(self.module, own, x), randomness="different")(weights)
            return found
        return torch.stack([self._outputs(self.module, one(weights, m), x) for m in range(self.count)])

    def log_probs(self, outputs: Tensor, y: Tensor, unknowns: Parameters) -> Tensor:
        """Log p(y|f) [M, B] of outputs [M, B, ...]; ``unknowns`` [M, ...] of the likelihood."""
        likelihood = self.task.likelihood
        if not unknowns:  # networks side by side as if they were examples
            count, size = outputs.shape[:2]
            tiled = y.repeat(count, *[1] * (y.ndim - 1))
            return likelihood.log_prob(outputs.flatten(0, 1), tiled).view(count, size)

        def under(own: Tensor, unknown: Parameters) -> Tensor:
            return likelihood.with_unknowns(unknown).log_prob(own, y)

        found: Tensor = vmap(under)(outputs, unknowns)
        return found

    def penalties(self) -> Tensor:
        """−log p(w) of every network under the user's prior."""
        trainable, tensors = modules.parameters(self.module), self.stack.tensors()
        own = [{name: tensors[name][m] for name in trainable} for m in range(self.count)]
        return -torch.stack([self.task.prior.log_prob(each) for each in own])

    def outputs_without(self, k: int, x: Inputs) -> Tensor:
        """Outputs [C, B, ...] of that network of every candidate which fold k is held out from."""
        module = modules.shell(self.module).eval()
        states = self.states()
        return torch.stack([self._outputs(module, one(states, m), x) for m in range(k, self.count, self.folds)])

    def _outputs(self, module: nn.Module, state: Parameters, x: Inputs) -> Tensor:
        if self.task.autocast is None:
            return modules.call(module, x, state)
        with torch.autocast(self.task.device.type, torch.bfloat16):
            return modules.call(module, x, state).to(modules.dtype_of(module))


def one(tensors: Parameters, m: int) -> Parameters:
    """The tensors of one network."""
    return {name: t[m] for name, t in tensors.items()}
