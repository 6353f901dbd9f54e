"""The Metropolis-adjusted Langevin algorithm."""

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
class MALA(Sampler):
    """w' = w + ½ε²s²∇log p(w|D) + ε s ξ, accepted with the probability that makes it exact (Roberts and Tweedie 1996).

    Fields of all samplers: see `Sampler`. ``acceptance``: the mean that steps are tuned to. ``step``: ε; None tunes it.
    ``diagonal``: whether s of each weight is learnt in the warm-up, or the same for all.
    """

    name: ClassVar[str] = "mala"
    summary: ClassVar[str] = "chains by Langevin steps with a Metropolis test: exact, and slower than hmc"
    thin: int = 20
    acceptance: float = 0.574
    step: float | None = None
    diagonal: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_acceptance(self.acceptance)
        check_positive("step", self.step)

    def kernel(self) -> Hamiltonian:
        """One leap and the test."""
        return Hamiltonian(leaps=1)

    def tuner(self, position: Tensor, task: Task) -> Tuner:
        """By acceptance."""
        return by_acceptance(position, self.acceptance, self.step, self.diagonal)

    def rate(self) -> tuple[str, float | None]:
        """ε."""
        return "step", self.step

    def told(self, tally: Tally, size: int) -> dict[str, Any]:
        """Acceptance, divergences, energy."""
        return tests_told(tally)
