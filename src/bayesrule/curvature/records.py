"""What a forward and a backward pass leave behind: the calls of layers, with the gradients of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from bayesrule import modules, seeds
from bayesrule.curvature.rules import Rule


def tensors(tree: Any) -> list[Tensor]:
    """The tensors in tuples, lists and dicts.

    >>> [t.item() for t in tensors((torch.tensor(1), {"a": torch.tensor(2), "b": "three"}))]
    [1, 2]
    """
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def label(name: str, layer: nn.Module) -> str:
    """A layer in words.

    >>> label("head", nn.Linear(2, 1)), label("", nn.Linear(2, 1))
    ("layer 'head' (Linear)", 'the model (Linear)')
    """
    kind = type(layer).__name__
    if not name:
        return f"the model ({kind})"
    return f"layer {name!r} ({kind})"


def backward_pass() -> int:
    """A number for the backward pass that is under way."""
    return torch._C._current_graph_task_id()


def _add(sums: dict[int, Tensor], index: int, value: Tensor) -> None:
    # not in place: autograd may hand on the same tensor to others
    if index in sums:
        value = sums[index] + value
    sums[index] = value


def _detached(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach()
    return leaf


@dataclass(eq=False)
class Use:
    """One call of one layer inside a pass.

    ``owned``: the parameters whose gradients are asked of this call, by their names in the layer. ``rule``: their
    closed form, if there is one; otherwise ``replay`` says how to call the layer again. ``gradients``: those of the
    output's tensors, by their index among them. They count once they have gone on to a parameter's ``grad``, so that
    what `torch.autograd.grad` asks does not.
    """

    name: str
    layer: nn.Module
    owned: dict[str, nn.Parameter]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    examples: int
    rule: Rule | None
    training: bool = field(init=False)
    inputs: list[Tensor] = field(init=False)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    counted: bool = False
    replay: Replay | None = None

    def __post_init__(self) -> None:
        self.training = self.layer.training
        if len(self.args) == 1 and not self.kwargs and isinstance(self.args[0], Tensor):  # nearly every layer
            self.inputs = [self.args[0].detach()]
            self.args = (self.inputs[0],)
        else:
            self.args, self.kwargs = tree_map(_detached, (self.args, self.kwargs))
            self.inputs = tensors((self.args, self.kwargs))
        self._versions = self._now()
        self._task, self._fresh = -1, dict[int, Tensor]()

    def __str__(self) -> str:
        return label(self.name, self.layer)

    def _now(self) -> list[int]:
        """Torch's counters of changes in place; inference tensors have none."""
        return [0 if t.is_inference() else t._version for t in self.inputs]

    def watch(self, output: Any) -> Any:
        """The output, with the gradients recorded as they come; those of several backward passes are added.

        Where there are several tensors, one may come from another inside the layer (an LSTM's output from its state).
        They are given out as views, so that only what comes from outside is recorded.
        """
        if isinstance(output, Tensor):
            output.register_hook(self._watcher(0))  # type: ignore[no-untyped-call]
            return output
        leaves, structure = tree_flatten(output)
        count = 0  # of the tensors among the leaves
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                continue
            if leaf.requires_grad:
                leaves[index] = leaf.view_as(leaf)
                leaves[index].register_hook(self._watcher(count))
            count += 1
        return tree_unflatten(leaves, structure)

    def _watcher(self, index: int) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            if self.counted:
                raise RuntimeError(
                    f"a gradient reaches {self} after its squares were counted: run backward before the "
                    "next call of the model and before mean()"
                )
            if torch.is_grad_enabled():
                raise RuntimeError(
                    f"the gradient of {self} is to be differentiated again (create_graph=True), but squares are of "
                    "first derivatives: take it outside of the block"
                )
            # A hook runs for torch.autograd.grad too, and cannot tell. So what a backward pass brings waits here until
            # it reaches a parameter (`settle`), and is dropped when another pass begins before that.
            task = backward_pass()
            if task != self._task:
                self._task, self._fresh = task, {}
            _add(self._fresh, index, gradient.detach())

        return hook

    def settle(self) -> None:
        """The present backward pass has reached a parameter: what it brought here counts."""
        if self._fresh and self._task == backward_pass():
            for index, gradient in self._fresh.items():
                _add(self.gradients, index, gradient)
            self._fresh = {}

    def free(self) -> None:
        """Let go of all tensors; a gradient that comes later is an error."""
        self.args, self.kwargs, self.inputs, self.gradients = (), {}, [], {}
        self.replay, self.counted, self._fresh = None, True, {}

    def check(self) -> None:
        """The inputs must be as the layer saw them."""
        if self._versions != self._now():
            raise RuntimeError(
                f"an input of {self} was changed in place after the call, "
                "so that its per-example gradients are lost: use the operation that is not in place"
            )


@dataclass(eq=False)
class Replay:
    """What is needed to call a layer again and have the same output."""

    state: dict[str, Tensor]
    modes: dict[nn.Module, bool]
    random: Tensor
    outputs: list[Tensor] = field(default_factory=list)
    drew: bool = False

    @classmethod
    def before(cls, layer: nn.Module, inputs: list[Tensor]) -> Replay:
        """Right before the call: parameters and buffers, modes, torch's random state."""
        state = modules.copies(dict(layer.named_parameters()) | dict(layer.named_buffers()))
        return cls(state, {m: m.training for m in layer.modules()}, random_state(inputs))

    def after(self, outputs: list[Tensor]) -> Replay:
        """Right after it: the outputs, and whether random numbers were drawn."""
        self.outputs = [output.detach().clone() for output in outputs]
        self.drew = not torch.equal(self.random, random_state(outputs))
        return self


def random_state(like: list[Tensor]) -> Tensor:
    """The state of the generator from which layers on these tensors' device draw."""
    device = like[0].device if like else torch.device("cpu")
    return seeds.default_generator(device).get_state()


@dataclass(eq=False)
class Pass:
    """One call of the model: its number of examples and the calls of its layers."""

    examples: int
    uses: list[Use] = field(default_factory=list)

    def live(self) -> list[Use]:
        """The calls that took part in a backward pass."""
        return [use for use in self.uses if use.gradients]
