"""Unadjusted Langevin Monte Carlo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from bayesrule.methods.hmc import by_acceptance, check_acceptance, tests_told
from bayesrule.methods.sampling import Sampler, check_positive
from bayesrule.methods.tally import Tally
from bayesrule.samplers import Hamiltonian, Tuner
from bayesrule.task import Task


@dataclass(frozen=True)
class LMC(Sampler):
    """w' = w + h s²∇log p(w|D) + √(2h) s ξ, h = ½ε², without a test.

    It is biased by its step: along a direction in which the posterior is normal with precision λ/s², variances come out
    as 1/(1 − hλ/2) times what they are. Steps are tuned so that a Metropolis test, which is not made, would accept the
    share ``acceptance`` of them.

    Fields of all samplers: see `Sampler`. ``step``: ε; None tunes it. ``diagonal``: whether s of each weight is learnt
    in the warm-up, or the same for all.
    """

    name: ClassVar[str] = "lmc"
    summary: ClassVar[str] = "chains by plain Langevin steps: biased by the length of a step"
    thin: int = 20
    acceptance: float = 0.9
    step: float | None = None
    diagonal: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_acceptance(self.acceptance)
        check_positive("step", self.step)

    def kernel(self) -> Hamiltonian:
        """One leap, always taken."""
        return Hamiltonian(leaps=1, adjusted=False)

    def tuner(self, position: Tensor, task: Task) -> Tuner:
        """By the acceptance that a test would have."""
        return by_acceptance(position, self.acceptance, self.step, self.diagonal)

    def rate(self) -> tuple[str, float | None]:
        """ε."""
        return "step", self.step

    def told(self, tally: Tally, size: int) -> dict[str, Any]:
        """What a test would accept, divergences, energy."""
        return tests_told(tally)
