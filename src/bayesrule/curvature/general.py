"""Per-example gradients of any module, by calling it again.

A call f(w, x) with output gradients u is repeated with the same weights, inputs and random numbers, and

    g_i = (∂f_i/∂w)ᵀ u_i

is taken in the first of three ways that repeats the output of the pass:

1. for all examples at once, by vectorisation of one example's vector–Jacobian product;
2. in a loop over the examples (operations that cannot be vectorised);
3. in a loop over the examples, each time backward through the whole batch with the gradients of the other examples'
   outputs at zero. This needs the square of the batch size, and holds where examples are not apart: with statistics of
   the batch, with random numbers for the batch. g_i is then what flows through the rows of example i of the output.

The gradients of all examples are held at once, B times the size of the module's own parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import RLock
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from bayesrule import modules, seeds
from bayesrule.curvature.forms import wide
from bayesrule.curvature.records import Replay, Use, tensors

Gradients = dict[str, Tensor]
"""[B, *P] by the parameters' names in the layer."""
Found = tuple[Gradients, list[Tensor]]
"""Gradients, and the outputs that came with them."""


def dimension(layer: nn.Module, position: int, tensor: Tensor, examples: int, output: bool = False) -> int | None:
    """Which dimension of a layer's input or output, by its position among them, is that of the examples; None: none is.

    >>> dimension(nn.LSTM(2, 3), 0, torch.zeros(5, 4, 2), examples=4)
    1
    >>> dimension(nn.Bilinear(2, 2, 3), 0, torch.zeros(4, 2), examples=4)
    0
    """
    if isinstance(layer, nn.RNNBase):
        # batch_first holds for the sequence alone: states are [layers, examples, features] in any case
        first = position == 0 and layer.batch_first
    elif isinstance(layer, nn.MultiheadAttention) and output and position == 1:
        first = True  # the attention weights, whatever batch_first says
    else:
        first = getattr(layer, "batch_first", True) or tensor.ndim < 3
    where = 0 if first else 1
    if tensor.ndim > where and tensor.shape[where] == examples:
        return where
    return None


@dataclass(eq=False)
class Again:
    """A recorded call, ready to be repeated.

    ``leaves``: what its arguments hold, and ``structure`` how. ``inputs``: the dimension of the examples, by the index
    of a leaf; ``outputs``: by the index of a tensor among the outputs, of those that have gradients.
    """

    use: Use
    replay: Replay
    leaves: list[Any]
    structure: TreeSpec
    inputs: dict[int, int]
    outputs: dict[int, int]

    @classmethod
    def of(cls, use: Use) -> Again:
        """The call of a use that was recorded to be repeated."""
        assert use.replay is not None
        leaves, structure = tree_flatten((_with_states(use), use.kwargs))
        leaves = [_wide(leaf) for leaf in leaves]
        inputs: dict[int, int] = {}
        position = 0  # among the tensors, where an index is among all leaves
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                continue
            where = dimension(use.layer, position, leaf, use.examples)
            if where is not None:
                inputs[index] = where
            position += 1
        return cls(use, use.replay, leaves, structure, inputs, _where_outputs(use, use.replay))

    @property
    def weights(self) -> dict[str, Tensor]:
        """The values that the parameters had, as tensors of their own."""
        return {name: wide(self.replay.state[name]).clone() for name in self.use.owned}

    def gradients(self) -> list[Tensor]:
        """Those of the outputs that have them."""
        return [wide(self.use.gradients[index]) for index in self.outputs]

    def run(self, weights: dict[str, Tensor], leaves: list[Any]) -> list[Tensor]:
        """The outputs that have gradients, under these weights and inputs."""
        args, kwargs = tree_unflatten(leaves, self.structure)
        # copies, since a layer may write to its buffers (running statistics), and it is run several times
        state = {name: _wide(value).clone() for name, value in self.replay.state.items()}
        found = tensors(modules.run(self.use.layer, state | weights, args, kwargs))
        return [found[index] for index in self.outputs]

    def agrees(self, outputs: list[Tensor]) -> bool:
        """Whether these are the outputs of the pass, up to rounding in their dtype."""
        for output, index in zip(outputs, self.outputs, strict=True):
            known = self.replay.outputs[index]
            if output.shape != known.shape:
                return False
            error = torch.linalg.vector_norm(output.detach() - known)
            # half of the digits: kernels add in another order, but another function is off by more than that
            if not error <= torch.finfo(known.dtype).eps ** 0.5 * known.norm().float():
                return False
        return True


def _with_states(use: Use) -> tuple[Any, ...]:
    """A recurrent layer's arguments with the zeros from which it starts, so that each example has its own."""
    layer, (x, *more) = use.layer, use.args or (None,)
    if more or use.kwargs or not isinstance(x, Tensor):
        return use.args
    if isinstance(layer, nn.RNNCellBase):
        zeros = x.new_zeros(use.examples, layer.hidden_size)
        if isinstance(layer, nn.LSTMCell):
            return x, (zeros, zeros)
        return x, zeros
    if isinstance(layer, nn.RNNBase):
        depth = layer.num_layers * (2 if layer.bidirectional else 1)
        hidden = x.new_zeros(depth, use.examples, layer.proj_size or layer.hidden_size)
        if isinstance(layer, nn.LSTM):
            return x, (hidden, x.new_zeros(depth, use.examples, layer.hidden_size))
        return x, hidden
    return use.args


def _wide(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return wide(leaf)
    return leaf


def _where_outputs(use: Use, replay: Replay) -> dict[int, int]:
    found = {}
    for index in sorted(use.gradients):
        output = replay.outputs[index]
        where = dimension(use.layer, index, output, use.examples, output=True)
        if where is None:
            raise ValueError(
                f"{use} gives an output {list(output.shape)} for "
                f"{use.examples} examples, so that its gradient belongs to no example: keep the examples in the first "
                "dimension of what layers give, or freeze its parameters"
            )
        found[index] = where
    return found


def at_once(again: Again) -> Found:
    """The first way: one example's vector–Jacobian product, vectorised."""

    weights, where_out = again.weights, tuple(again.outputs.values())

    def one(inputs: list[Tensor], gradients: list[Tensor]) -> tuple[Gradients, tuple[Tensor, ...]]:
        # vmap takes the dimension of the examples away; the layer wants it, so it sees a batch of one
        leaves = list(again.leaves)
        for (index, where), part in zip(again.inputs.items(), inputs, strict=True):
            leaves[index] = part.unsqueeze(where)
        outputs, pull, *_ = torch.func.vjp(lambda weights: tuple(again.run(weights, leaves)), weights)
        (found,) = pull(tuple(map(torch.unsqueeze, gradients, where_out)))
        return found, tuple(map(torch.squeeze, outputs, where_out))

    parts = [again.leaves[index] for index in again.inputs]
    in_dims = list(again.inputs.values()), list(where_out)
    out_dims = cast(Any, (0, where_out))
    # random numbers of its own for every example; where the pass drew otherwise, the outputs do not agree
    call = torch.func.vmap(one, in_dims=in_dims, out_dims=out_dims, randomness="different")
    found, outputs = call(parts, again.gradients())
    return {name: g.detach() for name, g in found.items()}, list(outputs)


def one_by_one(again: Again) -> Found:
    """The second way: a loop over examples."""
    found: list[dict[str, Tensor]] = []
    outputs: list[list[Tensor]] = [[] for _ in again.outputs]
    where_out = list(again.outputs.values())
    weights = {name: value.requires_grad_() for name, value in again.weights.items()}
    for i in range(again.use.examples):
        leaves = list(again.leaves)
        for index, where in again.inputs.items():
            leaves[index] = leaves[index].narrow(where, i, 1)
        output = again.run(weights, leaves)
        gradients = [g.narrow(where, i, 1) for g, where in zip(again.gradients(), where_out, strict=True)]
        found.append(_pulled(output, weights, gradients))
        for rows, part in zip(outputs, output, strict=True):
            rows.append(part.detach())
    return _stacked(found), list(map(torch.cat, outputs, where_out))


def masked(again: Again) -> Found:
    """The third way: through the whole batch, once for each example."""
    weights = {name: value.requires_grad_() for name, value in again.weights.items()}
    outputs = again.run(weights, again.leaves)
    found = []
    for i in range(again.use.examples):
        gradients = []
        for g, where in zip(again.gradients(), again.outputs.values(), strict=True):
            alone = torch.zeros_like(g)
            alone.select(where, i).copy_(g.select(where, i))
            gradients.append(alone)
        found.append(_pulled(outputs, weights, gradients))
    return _stacked(found), outputs


def _pulled(outputs: list[Tensor], weights: dict[str, Tensor], gradients: list[Tensor]) -> dict[str, Tensor]:
    """The gradients of the weights, from those of the outputs that depend on them."""
    over, given = [], []
    for output, gradient in zip(outputs, gradients, strict=True):
        if output.requires_grad:
            over.append(output)
            given.append(gradient)
    found = torch.autograd.grad(over, list(weights.values()), given, retain_graph=True, materialize_grads=True)
    return dict(zip(weights, found, strict=True))


def _stacked(found: list[dict[str, Tensor]]) -> Gradients:
    stacked = {}
    for name in found[0]:
        stacked[name] = torch.stack([each[name] for each in found])
    return stacked


ONE_AT_A_TIME = RLock()
"""Held while something is changed that belongs to all threads: kernels, filters of warnings, levels of derivatives."""
WAYS: tuple[Callable[[Again], Found], ...] = (at_once, one_by_one, masked)
COST = ("", "a loop over the examples", "the square of the batch size: a pass over the batch for each example")


class Ways:
    """Which way works for which layer: found at its first call, remembered, said once where it is slow."""

    def __init__(self) -> None:
        self._known: dict[nn.Module, int] = {}

    def gradients(self, use: Use) -> Gradients:
        """Per-example gradients of a recorded call of any module."""
        again, reason = Again.of(use), "it gives another output when it is called again"
        for way in range(self._known.get(use.layer, 0), len(WAYS)):
            if WAYS[way] is one_by_one and again.replay.drew:
                # example by example they would come in another order than those of the pass
                reason = "it draws random numbers for the batch as a whole"
                continue
            try:
                with ONE_AT_A_TIME, _as_before(again):
                    found, outputs = WAYS[way](again)
            except Exception as error:  # whatever a module may raise when it is called in an unusual way
                reason = str(error).strip().partition("\n")[0]
                continue
            if again.agrees(outputs):
                self._remember(use, way, reason)
                return found
        raise RuntimeError(
            f"no per-example gradients for {use}: {reason}; freeze its parameters, or write it with layers of torch"
        )

    def _remember(self, use: Use, way: int, reason: str) -> None:
        if way > 0 and use.layer not in self._known:
            warnings.warn(
                f"{use} cannot be vectorised over examples ({reason}): its per-example gradients take {COST[way]}",
                stacklevel=2,
            )
        self._known[use.layer] = way


@contextmanager
def _as_before(again: Again) -> Iterator[None]:
    """The random state and the modes of the pass; all is put back."""
    device = again.gradients()[0].device
    now = {m: m.training for m in again.replay.modes}
    recurrent = [m for m in now if isinstance(m, nn.RNNBase)]
    drew = again.replay.drew  # if not, torch's generator, which other threads may draw from, is let be
    with seeds.untouched(device) if drew else nullcontext(), torch.enable_grad():
        if drew:
            seeds.default_generator(device).set_state(again.replay.random)
        kernels = _plain_kernels() if recurrent else nullcontext()
        try:
            _set_modes(again.replay.modes)
            with kernels, warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # part of it is not vectorised
                yield
        finally:
            _set_modes(now)
            for m in recurrent:
                m._init_flat_weights()  # it holds on to the weights of its last call


def _set_modes(modes: dict[nn.Module, bool]) -> None:
    for m, mode in modes.items():
        m.training = mode


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Without the libraries whose recurrent layers know no vectorisation."""
    with warnings.catch_warnings(), torch.backends.cudnn.flags(enabled=False):
        warnings.simplefilter("ignore")  # the switch of oneDNN warns of what it would do on other devices
        with torch.backends.mkldnn.flags(enabled=False):
            yield
