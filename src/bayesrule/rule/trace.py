"""Where the rule is, and where it has been."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.families import Natural


@dataclass(frozen=True, eq=False)
class State:
    """All that the next step depends on: λ, the last change of λ, and the number of steps done.

    >>> state = State((torch.ones(2),), (torch.zeros(2),), 3)
    >>> State.of(state.state_dict()).step
    3
    """

    natural: Natural
    velocity: Natural
    step: int = 0

    def state_dict(self) -> dict[str, Any]:
        """As a plain tree of tensors and numbers."""
        return {"natural": self.natural, "velocity": self.velocity, "step": self.step}

    @staticmethod
    def of(tree: Mapping[str, Any]) -> State:
        """Undo `state_dict`."""
        missing = {"natural", "velocity", "step"} - set(tree)
        if missing:
            raise ValueError(
                f"state must have natural, velocity and step; {sorted(missing)} is missing: not a State's?"
            )
        natural, velocity = tuple(tree["natural"]), tuple(tree["velocity"])
        want, have = shapes(natural), shapes(velocity)
        if have != want:
            raise ValueError(f"state: velocity must have the shapes of natural, {want}, not {have}")
        return State(natural, velocity, int(tree["step"]))


@dataclass(frozen=True, eq=False)
class Trace:
    """States in their order, the first included, and numbers about each: printed as a table."""

    states: tuple[State, ...]
    records: tuple[dict[str, float], ...]

    @property
    def last(self) -> State:
        """The state after the last step."""
        return self.states[-1]

    def natural(self, part: int = 0) -> Tensor:
        """One part of λ over the steps, [steps, ...]."""
        return torch.stack([state.natural[part] for state in self.states])

    def column(self, name: str) -> list[float]:
        """One of the numbers over the steps."""
        if name not in self.records[0]:
            raise ValueError(f"no column {name!r} in this trace: it has {', '.join(self.records[0])}")
        return [record[name] for record in self.records]

    def __str__(self) -> str:
        """At most eleven rows, evenly spaced, the last one among them."""
        count = len(self.records)
        rows = sorted({round(i * (count - 1) / 10) for i in range(11)})
        names = list(self.records[0])
        cells = [["step", *names]]
        for row in rows:
            numbers = [f"{self.records[row][name]:.6g}" for name in names]
            cells.append([str(self.states[row].step), *numbers])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for line in cells:
            padded = map(str.rjust, line, widths)
            lines.append("  ".join(padded))
        return "\n".join(lines)


def shapes(natural: Natural) -> list[list[int]]:
    """Those of each part."""
    return [list(part.shape) for part in natural]
