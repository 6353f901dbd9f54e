"""The units the network works in, and the way back to the user's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule import tracing
from bayesrule.data import inputs
from bayesrule.data.inputs import Inputs

FAR = 16
"""An offset of more units than this takes four bits and more off every number that it is added to."""


@dataclass(frozen=True, eq=False)
class Affine:
    """An invertible change of units: ``forward(t) = (t − loc) / scale``.

    Computed in double precision; the result has the dtype of ``t``, or double for whole numbers. `inverse` gives double
    where ``loc`` is `far` away: of 1e9 + t, single precision would leave nothing of t.

    >>> celsius = Affine(loc=32.0, scale=1.8)
    >>> celsius.forward(torch.tensor([212.0])), celsius.inverse(torch.tensor([100.0]))
    (tensor([100.]), tensor([212.], dtype=torch.float64))
    """

    loc: Tensor
    scale: Tensor

    @tracing.outside()
    def __init__(self, loc: Tensor | float, scale: Tensor | float) -> None:
        object.__setattr__(self, "loc", torch.as_tensor(loc, dtype=torch.float64))
        object.__setattr__(self, "scale", torch.as_tensor(scale, dtype=torch.float64))
        if not (self.scale.isfinite() & (self.scale > 0)).all() or not self.loc.isfinite().all():
            raise ValueError(f"loc must be finite and scale finite and positive, got loc={loc} and scale={scale}")

    @property
    @tracing.outside()
    def far(self) -> bool:
        """Whether some ``loc`` is more than `FAR` of its ``scale`` from zero."""
        return bool((self.loc.abs() > FAR * self.scale).any())

    def forward(self, t: Tensor) -> Tensor:
        """``t`` in the network's units."""
        loc, scale = self.loc.to(t.device), self.scale.to(t.device)
        return _like((t.double() - loc) / scale, t)

    def inverse(self, t: Tensor) -> Tensor:
        """``t`` back in the user's units."""
        loc, scale = self.loc.to(t.device), self.scale.to(t.device)
        result = t.double() * scale + loc
        return result if self.far else _like(result, t)


def _like(result: Tensor, given: Tensor) -> Tensor:
    """The result of a computation in double precision in the dtype of what was given, if that is a floating one."""
    return result.to(given.dtype) if given.is_floating_point() else result


State = dict[str, dict[str, Tensor] | None]


@dataclass(frozen=True, eq=False)
class Scaling:
    """How inputs and targets were scaled; ``None`` is not at all.

    >>> again = Scaling.from_state(Scaling(targets=Affine(1.0, 2.0)).state())
    >>> again.inputs is None, again.targets
    (True, Affine(loc=tensor(1., dtype=torch.float64), scale=tensor(2., dtype=torch.float64)))
    """

    inputs: Affine | None = None
    targets: Affine | None = None

    def forward(self, x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
        """Inputs and targets in the network's units."""
        if self.inputs is not None:
            x = inputs.each(self.inputs.forward, x)
        if self.targets is not None:
            y = self.targets.forward(y)
        return x, y

    def state(self) -> State:
        """A plain tree of tensors, for saving."""
        state: State = {"inputs": None, "targets": None}
        if self.inputs is not None:
            state["inputs"] = {"loc": self.inputs.loc, "scale": self.inputs.scale}
        if self.targets is not None:
            state["targets"] = {"loc": self.targets.loc, "scale": self.targets.scale}
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Mapping[str, Tensor] | None]) -> Scaling:
        """Undo `state`."""
        if set(state) != {"inputs", "targets"}:
            raise ValueError(f"a scaling must say how inputs and targets were scaled, not {sorted(state)}")
        for tree in state.values():
            if tree is not None and any(tree[key].dtype != torch.float64 for key in ("loc", "scale")):
                raise ValueError("loc and scale of a scaling must be in double precision")
        return cls(**{key: Affine(tree["loc"], tree["scale"]) for key, tree in state.items() if tree})
