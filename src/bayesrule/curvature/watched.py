"""Gradients of every example for any gradient of a model's outputs, several times through one recorded pass.

Only gradients of the layers' outputs are asked of autograd, so that no gradient of a weight is formed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_unflatten

from bayesrule import modules
from bayesrule.curvature.forms import ROOM, Explicit, GradientForm
from bayesrule.curvature.general import Ways
from bayesrule.curvature.limits import check_outputs, check_weights
from bayesrule.curvature.recorder import Recorder
from bayesrule.curvature.records import Use
from bayesrule.curvature.rules import Call
from bayesrule.data import Inputs, inputs

Forms = dict[str, list[GradientForm]]
"""The gradients of each parameter, one form for each use of it; a parameter without any has none."""
_RESHAPES = ("View", "UnsafeView", "Squeeze", "Unsqueeze", "ReshapeAlias", "Alias", "Transpose", "Permute", "Clone")


@dataclass(eq=False)
class Watch:
    """What was recorded of one use: where its outputs are in autograd's graph, and what follows from its input."""

    edges: dict[int, GradientEdge]
    numbers: int
    kept: dict[str, Tensor] = field(default_factory=dict)


@dataclass(eq=False)
class Columns:
    """The gradients for some columns of one pass, ``first`` being whether they are the first of the pass."""

    examples: int
    forms: list[Forms]
    first: bool


class Watched:
    """A copy of a model, in eval mode, of which the parameters ``names`` alone are trainable.

    >>> watched = Watched(nn.Linear(2, 3), ["weight"])
    >>> outputs = watched.run(torch.ones(5, 2))
    >>> (columns,) = watched.columns(outputs, [torch.ones(5, 3)])
    >>> columns.forms[0]["weight"][0].gradients(slice(0, 5)).shape
    torch.Size([5, 3, 2])
    """

    def __init__(self, model: nn.Module, names: Iterable[str] | None = None) -> None:
        check_weights(model)
        wanted = set(modules.parameters(model) if names is None else names)
        # What is frozen and not asked for is shared with the user's model: a copy would double its memory.
        shared = {name: p for name, p in modules.frozen(model).items() if name not in wanted}
        self.model = modules.twin(model, shared.values()).eval()
        for name, p in self.model.named_parameters():
            if name not in shared:  # shared ones are not ours to change
                p.requires_grad_(name in wanted)
                p.grad = None
        self.parameters = modules.parameters(self.model)
        self._names = {id(p): name for name, p in self.parameters.items()}
        self._recorder = Recorder(self.model, begin=self.forget, watch=self._watch)
        self._ways = Ways()
        self.watches: dict[Use, Watch] = {}

    @property
    def uses(self) -> list[Use]:
        """The calls of layers in the last pass."""
        if not self._recorder.passes:
            return []
        return self._recorder.passes[-1].uses

    def forget(self) -> None:
        """Let go of the last pass."""
        self._recorder.keep([])
        self.watches = {}

    def run(self, x: Inputs) -> Tensor:
        """The outputs, with the pass recorded; an error that names the layer if they are not finite."""
        x = inputs.to(x, modules.dtype_of(self.model))
        self._recorder.attach()
        try:
            with torch.enable_grad():
                outputs = modules.call(self.model, x)
        finally:
            self._recorder.detach()
        if outputs.shape[:1] != (inputs.length(x),):
            raise ValueError(
                f"the model gives outputs {list(outputs.shape)} for {inputs.length(x)} examples: it must keep the "
                "examples in the first dimension"
            )
        check_outputs(self.model, x, outputs.detach())
        return outputs

    def names(self, use: Use) -> dict[str, str]:
        """The parameters that a use answers for: their names in the model by those in the layer."""
        return {name: self._names[id(p)] for name, p in use.owned.items()}

    def _watch(self, use: Use, output: Any) -> Any:
        """Note where the output's tensors are in the graph; see `Use.watch` for why several are given as views."""
        leaves, structure = tree_flatten(output)
        several = sum(isinstance(leaf, Tensor) for leaf in leaves) > 1
        edges, count, numbers = {}, 0, 0
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                continue
            if leaf.requires_grad:
                if several:
                    leaves[index] = leaf = leaf.view_as(leaf)
                edges[count] = get_gradient_edge(leaf)
                numbers += leaf.numel()
            count += 1
        if use.rule is None:  # its gradients will be written out
            numbers += use.examples * sum(p.numel() for p in use.owned.values())
        self.watches[use] = Watch(edges, numbers)
        return tree_unflatten(leaves, structure)

    def columns(self, outputs: Tensor, gradients: Iterable[Tensor]) -> Iterator[Columns]:
        """Gradients of every example for each of ``gradients`` of the outputs, as many at a time as there is room."""
        numbers = sum(watch.numbers for watch in self.watches.values())
        most, first = max(1, ROOM // max(1, numbers)), True
        waiting: list[Forms] = []
        for gradient in gradients:
            waiting.append(self._forms(self._pull(outputs, gradient)))
            if len(waiting) == most:
                yield Columns(outputs.shape[0], waiting, first)
                waiting, first = [], False
        if waiting:
            yield Columns(outputs.shape[0], waiting, first)

    def _pull(self, outputs: Tensor, gradient: Tensor) -> dict[Use, dict[int, Tensor]]:
        """One backward pass, as far as the layers' outputs."""
        asked: list[tuple[Use, int]] = []
        edges: list[GradientEdge] = []
        for use, watch in self.watches.items():
            for index, edge in watch.edges.items():
                asked.append((use, index))
                edges.append(edge)
        if not asked or not outputs.requires_grad:
            return {}
        given = gradient.to(outputs.dtype)
        if len(asked) == 1 and edges[0] == get_gradient_edge(outputs):  # a last layer: nothing is between
            use, index = asked[0]
            return {use: {index: given}}
        # Edges, not tensors: a layer's output that is changed in place (ReLU(inplace=True)) is another node afterwards.
        # The graph is kept for the next column.
        found = torch.autograd.grad(outputs, edges, given, retain_graph=True, allow_unused=True)
        pulled: dict[Use, dict[int, Tensor]] = {}
        for (use, index), g in zip(asked, found, strict=True):
            if g is not None:
                pulled.setdefault(use, {})[index] = g
        return pulled

    @torch.no_grad()
    def _forms(self, pulled: dict[Use, dict[int, Tensor]]) -> Forms:
        """The forms of every parameter, from the gradients of the layers' outputs by their index."""
        found: Forms = {}
        for use, gradients in pulled.items():
            use.check()
            for name, form in self._of(use, gradients).items():
                found.setdefault(name, []).append(form)
        return found

    def _of(self, use: Use, gradients: dict[int, Tensor]) -> dict[str, GradientForm]:
        """The forms of a use, by the parameters' names in the model."""
        names = self.names(use)
        if use.rule is not None:
            # what follows from the input alone (patches of a convolution) is made once for all columns
            call = Call(use.inputs[0], gradients[0], use.training, self.watches[use].kept)
            return {full: use.rule(use.layer, name, call) for name, full in names.items()}
        if not names:
            return {}
        use.gradients = gradients  # where `Ways` looks for them
        with self._recorder.rests():
            repeated = self._ways.gradients(use)
        return {full: Explicit(repeated[name]) for name, full in names.items()}


def unshaped(outputs: Tensor) -> set[object]:
    """The operation that gave some outputs, and those before it as long as they only change the shape."""
    node, found = outputs.grad_fn, set[object]()
    while node is not None:
        found.add(node)
        if node.name().rstrip("0123456789").removesuffix("Backward") not in _RESHAPES:
            break
        node = node.next_functions[0][0]
    return found
