"""Squared gradients of every example, from an ordinary forward and backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Literal

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.curvature.forms import Explicit, GradientForm, total
from bayesrule.curvature.general import Gradients, Ways
from bayesrule.curvature.recorder import Recorder
from bayesrule.curvature.records import Use
from bayesrule.curvature.rules import Call

REDUCTIONS = ("mean", "sum")


class SquaredGradients:
    """(1/M) Σ_i (∂ℓ_i/∂w)² over M examples, collected while a model runs forward and backward.

    For a loss (1/M) Σ_i ℓ_i, whose gradient has the contribution g_i of example i, this is M Σ_i g_i². There is no loop
    over examples for Linear, convolutions, Embedding and norms; other modules are called again under ``torch.func``.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
    >>> _ = nn.init.ones_(model.weight)
    >>> squares = SquaredGradients(model)                      # once
    >>> with squares:                                          # at every step
    ...     nn.functional.mse_loss(model(x), y).backward()     # the gradients of the two examples are (2, 0), (0, 8)
    >>> squares.mean([model.weight])
    [tensor([[ 2., 32.]])]

    - M is the first dimension of the first tensor that the model is called with, and the loss is the mean over them
      (``reduction="mean"``) or their sum (``"sum"``). A mean over positions too (pixels, tokens) is part of ℓ_i.
    - A parameter that is used several times, or tied, has an example's gradients added over its uses, then squared.
    - Several passes before `mean`, in one block or more, are taken together as gradients are: their losses add up to
      the mean over all of their examples (of K equal passes each loss is divided by K). Where they add up to c times
      that, because of a gradient scaler or since nothing was divided, state ``loss_scale=c``. Passes under ``no_grad``,
      without a backward, or for ``torch.autograd.grad`` do not count.
    - In a frozen or unused parameter the squares are zeros. Under autocast they are in float32.
    - Where examples act on each other (BatchNorm in training mode), the gradient of example i is what flows through its
      own rows of the layer's output. Terms of the loss that are no function of the model's outputs are not seen.
    - Call the model itself, not its parts; and make a new collector when layers are exchanged.
    - An exception inside the block drops all that was recorded since the last `mean`.
    """

    def __init__(self, model: nn.Module, reduction: Literal["mean", "sum"] = "mean") -> None:
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {REDUCTIONS}, not {reduction!r}: what the loss does")
        self.model, self.reduction = model, reduction
        self._known = {id(p) for p in model.parameters()}
        self._recorder = Recorder(model, begin=self._count)
        self._ways = Ways()
        self._inside = False
        self.clear()

    def __enter__(self) -> SquaredGradients:
        if self._inside:
            raise RuntimeError("this block of SquaredGradients is inside itself: leave the outer one first")
        self._inside = True
        self._recorder.attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False
        self._recorder.detach()
        if kind is not None:
            self.clear()

    def clear(self) -> None:
        """Forget what was recorded."""
        self._recorder.keep([])
        self._totals: dict[int, Tensor] = {}
        self._examples = 0

    def mean(
        self,
        parameters: Iterable[Tensor] | None = None,
        loss_scale: float = 1.0,
        out: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """(1/M) Σ_i (∂ℓ_i/∂p)² for each parameter p (of all that are trainable), and forget what was recorded.

        ``out``: tensors to write to, one for each p and of its shape, as an earlier call gave them. This saves the time
        that fresh memory takes.
        """
        if parameters is None:
            parameters = modules.parameters(self.model).values()
        asked = list(parameters)
        self._only_its_own(asked)
        examples = self._examples  # of the passes whose squares are taken already, and of those that wait
        for each in self._recorder.passes:
            if each.live():
                examples += each.examples
        if not examples:
            raise RuntimeError("no gradients were recorded: call the model and loss.backward() inside the block first")
        # Under a mean over M examples g_i = ∇ℓ_i/M, so that (1/M) Σ (∇ℓ_i)² = M Σ g_i². The last pass is scaled as it
        # is summed, which saves going through the squares once more.
        factor = (examples if self.reduction == "mean" else 1 / examples) / loss_scale**2
        for sums in self._totals.values():
            sums.mul_(factor)
        found = []
        try:
            self._count(factor, {} if out is None else _room(asked, out))
            for p in asked:
                known = self._totals.get(id(p))
                found.append(_zeros(p) if known is None else known)
        finally:
            self.clear()
        if out is None:
            return found
        return list(map(_put, found, out))

    def _only_its_own(self, asked: list[Tensor]) -> None:
        for index, p in enumerate(asked):
            if id(p) not in self._known:
                raise ValueError(f"parameter {index} of those asked for, {list(p.shape)}, is not one of the model's")

    @torch.no_grad()
    def _count(self, factor: float = 1.0, room: Mapping[int, Tensor] | None = None) -> None:
        """Turn the passes that have had their backward into squares, in ``room`` if it is free, and let go of them."""
        kept = []
        for each in self._recorder.passes:
            uses = each.live()
            if not uses:
                kept.append(each)
                continue
            self._examples += each.examples
            with self._recorder.rests(), torch.autocast(_device(uses[0]), enabled=False):
                self._add(each.examples, uses, factor, room or {})
            for use in each.uses:
                use.free()
        self._recorder.keep(kept)

    def _add(self, examples: int, uses: list[Use], factor: float, room: Mapping[int, Tensor]) -> None:
        wanted: dict[int, list[tuple[Use, str, nn.Parameter]]] = {}
        for use in uses:
            use.check()
            for name, p in use.owned.items():
                wanted.setdefault(id(p), []).append((use, name, p))
        repeated = {use: self._ways.gradients(use) for use in uses if use.rule is None and use.owned}
        for key, where in wanted.items():
            forms = [_form(use, name, repeated.get(use)) for use, name, _ in where]
            known, shape = self._totals.get(key), where[0][2].shape
            if known is None:
                self._totals[key] = total(forms, examples, shape, factor, room.get(key))
            else:
                known.add_(total(forms, examples, shape, factor, None))


def _form(use: Use, name: str, repeated: Gradients | None) -> GradientForm:
    """The gradients of one parameter by one call of a layer."""
    if use.rule is not None:
        return use.rule(use.layer, name, Call(use.inputs[0], use.gradients[0], use.training))
    assert repeated is not None
    return Explicit(repeated[name])


def _dtype(p: Tensor) -> torch.dtype:
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def _zeros(p: Tensor) -> Tensor:
    return torch.zeros_like(p, dtype=_dtype(p), requires_grad=False)


def _room(asked: list[Tensor], out: Sequence[Tensor]) -> dict[int, Tensor]:
    """The tensors of ``out`` that can be computed in, by the id of their parameter; others are copied to."""
    found = {}
    for p, given in zip(asked, out, strict=True):
        if given.is_contiguous() and given.dtype == _dtype(p):
            found[id(p)] = given
    return found


def _put(squares: Tensor, given: Tensor) -> Tensor:
    """The squares in the tensor that was given for them, if they are not there already."""
    if given is squares or given.data_ptr() == squares.data_ptr():
        return given
    return given.copy_(squares)


def _device(use: Use) -> str:
    return next(iter(use.gradients.values())).device.type
