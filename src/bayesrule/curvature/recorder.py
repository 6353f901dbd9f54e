"""Hooks that record the calls of a model's layers, and the gradients of what they gave."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from bayesrule.curvature.general import dimension
from bayesrule.curvature.graph import entries
from bayesrule.curvature.records import Pass, Replay, Use, label, random_state, tensors
from bayesrule.curvature.rules import Rule, batched, rule_of


@dataclass(eq=False)
class Owner:
    """A layer that answers for parameters, by their names in it; with a closed form or by being called again."""

    name: str
    layer: nn.Module
    parameters: dict[str, nn.Parameter]
    rule: Rule | None
    replay: Replay | None = None

    def __str__(self) -> str:
        return label(self.name, self.layer)

    def owned(self, without: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """The parameters that want a gradient now."""
        lost = set(map(id, without.values()))
        return {name: p for name, p in self.parameters.items() if p.requires_grad and id(p) not in lost}

    def swapped(self) -> bool:
        """Whether the layer holds other tensors now in the place of its parameters."""
        for name, p in self.parameters.items():
            # the names of a layer with a rule have no dots, and this is asked at every call of every layer
            held = self.layer.get_parameter(name) if self.rule is None else self.layer._parameters.get(name)
            if held is not p:
                return True
        return False


def parameter_owners(model: nn.Module) -> list[Owner]:
    """Each layer that holds parameters; those which a layer uses behind its parts' back are its own.

    >>> [(owner.name, list(owner.parameters)) for owner in parameter_owners(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))]
    [('0', ['weight', 'bias'])]
    """
    found: list[Owner] = []
    inside: set[nn.Module] = set()
    for name, layer in model.named_modules():  # a layer comes before its parts
        own = {} if layer in inside else dict(layer.named_parameters(recurse=False))
        for part in _taken_over(layer):
            taken = layer.get_submodule(part)
            inside |= set(taken.modules())
            own |= dict(taken.named_parameters(prefix=part))
        if own:
            found.append(Owner(name, layer, own, rule_of(layer)))
    return found


def _taken_over(layer: nn.Module) -> list[str]:
    """Parts whose parameters a layer uses without calling them for its examples."""
    parts = [name for name, part in layer.named_children() if isinstance(part, nn.ParameterList | nn.ParameterDict)]
    if isinstance(layer, nn.MultiheadAttention):
        parts.append("out_proj")  # a module of its own, whose weight attention reads without calling it
    if parametrize.is_parametrized(layer):
        parts.append("parametrizations")
    return parts


class Recorder:
    """Records passes through a model between `attach` and `detach`; ``begin`` is called before each.

    ``watch`` takes each use and its output, and gives the output to go on with.

    A parameter of a layer whose calls cannot be told apart by example, or that is used outside of its layer, is
    answered for by the model as a whole, which is called again for it. This is looked for at the first pass, and when
    other parameters are trainable.

    The hooks see the calls of layers, but not what a forward method does with a parameter by itself. Hence the count of
    uses in autograd's graph (`_look_for_strays`): one more than the calls explain, and the parameter has escaped.
    """

    def __init__(
        self, model: nn.Module, begin: Callable[[], None], watch: Callable[[Use, Any], Any] = Use.watch
    ) -> None:
        self.model, self.begin, self.watch = model, begin, watch
        self.passes: list[Pass] = []
        self._waiting: dict[int, list[Use]] = {}  # by the id of a parameter: tensors have no equality to hash by
        self._resting = False
        self._owners = parameter_owners(model)
        self._parameters = list(model.parameters())
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._escaped: dict[str, nn.Parameter] = {}
        self._whole: Replay | None = None
        self._random = torch.get_rng_state()  # of the beginning of a pass
        self._checked: list[bool] = []  # which parameters were trainable when strays were last looked for
        self._new = True
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Put the hooks on the model."""
        add = self._handles.append
        # Forward hooks are put before the user's own, so that what is recorded is what the layer itself gave.
        add(self.model.register_forward_pre_hook(self._starts, with_kwargs=True))
        add(self.model.register_forward_hook(self._ends, prepend=True, with_kwargs=True))
        for owner in self._owners:
            hook = self._hook(owner)
            add(owner.layer.register_forward_hook(hook, prepend=True, with_kwargs=True))
            if owner.rule is None:
                add(owner.layer.register_forward_pre_hook(self._pre_hook(owner), with_kwargs=True))

        for p in self._parameters:
            if p.requires_grad:
                add(p.register_post_accumulate_grad_hook(self._arrives))  # type: ignore[no-untyped-call]

    def detach(self) -> None:
        """Take them off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @contextmanager
    def rests(self) -> Iterator[None]:
        """While layers are called again, nothing is recorded."""
        self._resting = True
        try:
            yield
        finally:
            self._resting = False

    def _idle(self) -> bool:
        return self._resting or not torch.is_grad_enabled()

    def _starts(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._idle():
            return
        inputs = tensors((args, kwargs))
        if not inputs or inputs[0].ndim == 0:
            raise ValueError("the model is called without a tensor whose first dimension is that of the examples")
        second = getattr(model, "batch_first", True) is False and inputs[0].ndim > 2  # a bare nn.LSTM, nn.Transformer
        self.begin()
        self.passes.append(Pass(inputs[0].shape[1 if second else 0]))
        trainable = [p.requires_grad for p in self._parameters]
        self._new, self._checked = trainable != self._checked, trainable
        self._random = random_state(inputs)
        self._whole = Replay.before(model, inputs) if self._escaped else None

    def _ends(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if self._idle():
            return output
        outputs, now = tensors(output), self.passes[-1]
        if self._new:
            self._look_for_strays(outputs, now)
            self._new = False
        owned = {name: p for name, p in self._escaped.items() if p.requires_grad}
        if owned:
            if self._whole is None:
                # A parameter has escaped in this pass, which began without a record to call the model again by. Its
                # state can still be taken now; the random state was kept from the beginning.
                self._whole = Replay.before(model, outputs)
                self._whole.random = self._random
            use = Use("", model, owned, args, kwargs, now.examples, None, replay=self._whole.after(outputs))
            self._add(use)
            output = self.watch(use, output)
        self._whole = None
        return output

    def _arrives(self, p: Tensor) -> None:
        """A parameter has its gradient: what its layers have just recorded belongs to it."""
        for use in self._waiting.get(id(p), ()):
            use.settle()

    def _add(self, use: Use) -> None:
        self.passes[-1].uses.append(use)
        self._await(use)

    def _await(self, use: Use) -> None:
        for p in use.owned.values():
            self._waiting.setdefault(id(p), []).append(use)

    def keep(self, passes: list[Pass]) -> None:
        """Forget all passes but these."""
        self.passes, self._waiting = passes, {}
        for each in passes:
            for use in each.uses:
                self._await(use)

    def _pre_hook(self, owner: Owner) -> Callable[..., None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._idle() and owner.owned(self._escaped):
                owner.replay = Replay.before(layer, tensors((args, kwargs)))

        return hook

    def _hook(self, owner: Owner) -> Callable[..., Any]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if self._idle():
                return output
            owned = owner.owned(self._escaped)
            if not owned:
                return output
            return self._record(owner, owned, args, kwargs, output)

        return hook

    def _record(
        self,
        owner: Owner,
        owned: dict[str, nn.Parameter],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        """Record a call; the output to go on with."""
        if not self.passes:
            raise RuntimeError(f"{owner} is called by itself: call the model, so that the number of examples is known")
        if owner.swapped():
            raise RuntimeError(f"{owner} runs under other tensors than its parameters: call the model itself")
        now, outputs = self.passes[-1], tensors(output)
        use = Use(owner.name, owner.layer, owned, args, kwargs, now.examples, owner.rule)
        if not outputs:
            self._escape(owner, owned, f"gives a {type(output).__name__}, in which no tensors are found")
        elif not self._by_example(owner, use):
            shapes = ", ".join(str(list(t.shape)) for t in use.inputs) or "without tensors"
            self._escape(owner, owned, f"has inputs {shapes} for {now.examples} examples")
        elif any(t.requires_grad for t in outputs):
            if owner.replay is not None:
                use.replay, owner.replay = owner.replay.after(outputs), None
            self._add(use)
            return self.watch(use, output)
        return output

    def _by_example(self, owner: Owner, use: Use) -> bool:
        """Whether the inputs of a call can be told apart by example."""
        inputs = use.inputs
        if owner.rule is not None:
            return bool(inputs) and inputs[0].shape[0] == use.examples and batched(owner.layer, inputs[0])
        for position, tensor in enumerate(inputs):
            if dimension(owner.layer, position, tensor, use.examples) is not None:
                return True
        return False

    def _escape(self, owner: Owner, lost: dict[str, nn.Parameter], why: str) -> None:
        """From here on the model as a whole answers for these parameters."""
        if owner.layer is self.model:
            raise ValueError(f"{owner} {why}: it must take and give tensors with the examples in the first dimension")
        warnings.warn(
            f"{owner} {why}; its per-example gradients come from calling the whole model again, which is slow: keep "
            "the examples in the first dimension of what layers take, and use parameters by calling their layer",
            stacklevel=2,
        )
        gone = set(map(id, lost.values()))
        self._escaped |= {self._names[id(p)]: p for p in lost.values()}
        for use in self.passes[-1].uses:  # calls of this pass before it was known
            use.owned = {name: p for name, p in use.owned.items() if id(p) not in gone}

    def _look_for_strays(self, outputs: list[Tensor], now: Pass) -> None:
        """Parameters that enter the outputs more often than by the calls of their layers."""
        count = entries(outputs)
        known: dict[int, float] = {}
        for use in now.uses:
            # A layer that is called again may use its parameters as often as it likes; one with a closed form enters
            # each into one operation.
            entered = 1 if use.replay is None else float("inf")
            for p in use.owned.values():
                known[id(p)] = known.get(id(p), 0) + entered
        for owner in self._owners:
            owned = owner.owned(self._escaped)
            strays = {name: p for name, p in owned.items() if count[id(p)] > known.get(id(p), 0)}
            if strays and owner.layer is not self.model:
                self._escape(owner, strays, f"has its {' and '.join(strays)} used outside of its own call")
