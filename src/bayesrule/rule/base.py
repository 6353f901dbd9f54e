"""The Bayesian learning rule as a step, its schedule and its constraints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bayesrule.families import Estimator, Family, How, LossLike, Natural, added
from bayesrule.rule.trace import State, Trace, shapes
from bayesrule.seeds import mixed

Scheduled = float | Callable[[int], float]
"""A number, or a function of the number of steps done."""


@dataclass(frozen=True, eq=False)
class Rule:
    """λ ← (1 − ρ)λ + ρ(λ_conj − ∇_μ E_q[ℓ]), which is λ ← λ − ρ∇_μ(E_q[ℓ] − ⟨λ_conj, μ⟩ − H(q)).

    ``loss``: ℓ, a function of points [n, ...] or a `Loss`; None where all is conjugate. ``conjugate``: natural
    parameters of terms that are conjugate to the family (a prior, a conjugate likelihood), added exactly, so that with
    ρ = 1 and no other loss one step is Bayes' rule. ``how``: the way to ∇_μ E_q[ℓ], see `Estimator`. ``rate``: ρ.
    ``momentum``: γ of γ(λ_t − λ_{t−1}), added to the step. ``temperature``: the weight of H(q); 0 is optimisation of
    E_q[ℓ] alone. ``constraint``: applied to λ after each step. ``positive``: steps of Gaussian families with the
    correction of Lin, Schmidt & Khan (2020), which keeps precisions positive at any rate. ``seed``: of all draws; those
    of a step depend on (seed, step) only, so a rule that goes on from a saved state repeats exactly.

    In general, with a base measure h and a temperature τ, the step is λ + ρ(λ_conj − ∇_μ E_q[ℓ] + τ∇_μ H(q)).

    >>> from bayesrule.families import Beta
    >>> prior, heads, tails = Beta.of(torch.tensor(1.0), torch.tensor(1.0)), torch.tensor(7.0), torch.tensor(3.0)
    >>> rule = Rule(Beta(), conjugate=(prior[0] + heads, prior[1] + tails), rate=1.0)
    >>> Beta.shapes(rule.step(rule.start(prior)).natural)
    (tensor(8.), tensor(4.))
    """

    family: Family
    loss: LossLike | None = None
    conjugate: Natural | None = None
    how: How = "exact"
    rate: Scheduled = 0.1
    momentum: Scheduled = 0.0
    temperature: float = 1.0
    constraint: Callable[[Natural], Natural] | None = None
    positive: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not callable(self.rate):
            _check("rate", self.rate, self.rate > 0, "positive", "1 is the whole way to the target")
        if not callable(self.momentum):
            _check("momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)", "at 1 nothing comes to rest")
        _check("temperature", self.temperature, self.temperature >= 0, "at least 0", "it is the weight of the entropy")
        if self.conjugate is not None and not self.family.has_conjugates:
            raise ValueError(
                f"conjugate is not for a {self.family.title}, which has no such terms: put it into the loss"
            )
        if self.positive and not hasattr(self.family, "retract"):
            raise ValueError(
                f"positive=True is for Gaussians with free precision, not {self.family.title}: leave it out"
            )

    def start(self, natural: Natural) -> State:
        """The state before the first step."""
        self.family.check(natural)
        if self.conjugate is not None:
            want, have = shapes(natural), shapes(self.conjugate)
            if have != want:
                raise ValueError(f"conjugate must have the shapes of the natural parameters, {want}, not {have}")
        own = tuple(part.detach().clone() for part in natural)
        return State(own, tuple(map(torch.zeros_like, own)))

    def target(self, natural: Natural, loss: LossLike | None = None, step: int = 0) -> Natural:
        """(λ + τ∇_μ H(q)) + λ_conj − ∇_μ E_q[ℓ], where a step of ρ = 1 leads; λ less this is the natural gradient."""
        found = self._rest(natural, step)
        if loss is None:
            loss = self.loss
        if loss is not None:
            slopes = self.family.gradient(loss, natural, self.how, self._generator(step, 0))
            found = added(found, slopes, -1.0)
        if self.conjugate is not None:
            found = added(found, self.conjugate)
        return found

    def _rest(self, natural: Natural, step: int) -> Natural:
        """λ + τ∇_μ H(q): zero to the last bit for a constant base and τ = 1."""
        if self.temperature == 0:
            return natural
        how = self.how
        if Estimator.of(how).name == "closed-form":  # that of the loss, which says nothing of the entropy
            how = "exact"
        with torch.no_grad():
            pulls = self.family.entropy_gradient(natural, how, self._generator(step, 1))
        return added(natural, pulls, self.temperature)

    def step(self, state: State, loss: LossLike | None = None) -> State:
        """The next state; ``loss`` in the place of the rule's own, where it differs from step to step."""
        rate, momentum = _at(self.rate, state.step), _at(self.momentum, state.step)
        target = self.target(state.natural, loss, state.step)
        natural = tuple(torch.lerp(old, new, rate) for old, new in zip(state.natural, target, strict=True))
        if momentum:
            natural = added(natural, state.velocity, momentum)
        # In the order of memory that a file gives back: products of transposed matrices may differ in their last bits.
        natural = tuple(part.contiguous() for part in self._corrected(state.natural, natural))
        self._check_step(natural, state.step + 1, rate)
        # The velocity is what λ really moved by, after the correction and the constraint.
        return State(natural, added(natural, state.natural, -1.0), state.step + 1)

    def run(
        self,
        state: State,
        steps: int,
        losses: Callable[[int], LossLike] | None = None,
        watch: Callable[[Natural], Mapping[str, float]] | None = None,
    ) -> Trace:
        """``steps`` steps from a state. ``losses``: the loss of each step by its number. ``watch``: what to record.

        >>> from bayesrule.families import GaussianMean
        >>> rule = Rule(GaussianMean(), lambda w: (w - 1).square().sum(-1), rate=0.25)
        >>> state = rule.start((torch.zeros(1, dtype=torch.float64),))
        >>> print(rule.run(state, 3, watch=lambda natural: {"m": float(natural[0])}))
        step  change      m
           0       0      0
           1     0.5    0.5
           2    0.25   0.75
           3   0.125  0.875
        """
        if steps < 0:
            raise ValueError(f"steps must be at least 0, not {steps}: it is the number of steps to take")
        states = [state]
        for _ in range(steps):
            loss = None if losses is None else losses(states[-1].step)
            states.append(self.step(states[-1], loss))
        records = [_record(state, watch) for state in states]
        return Trace(tuple(states), tuple(records))

    def _corrected(self, old: Natural, new: Natural) -> Natural:
        """The new λ, kept positive and constrained as the rule says."""
        if self.positive:
            family: Any = self.family
            new = family.retract(old, added(new, old, -1.0))
        if self.constraint is None:
            return new
        return self.constraint(new)

    def _check_step(self, natural: Natural, step: int, rate: float) -> None:
        try:
            self.family.check(natural)
        except ValueError as error:
            fix = "take a smaller rate, positive=True for a Gaussian, or a constraint"
            if self.positive:
                fix = "take a smaller rate or a constraint"
            raise FloatingPointError(f"step {step} of rate {rate:g} left the domain. {error}: {fix}") from error

    def _generator(self, step: int, what: int) -> torch.Generator:
        return torch.Generator().manual_seed(mixed(self.seed, step, what))


def _at(scheduled: Scheduled, step: int) -> float:
    return scheduled(step) if callable(scheduled) else scheduled


def _check(name: str, value: float, holds: bool, rule: str, why: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, not {value}: {why}")


def _record(state: State, watch: Callable[[Natural], Mapping[str, float]] | None) -> dict[str, float]:
    record = {"change": 0.0}
    for part in state.velocity:
        if part.numel():  # a part may be empty, as the weights of a mixture of one
            record["change"] = max(record["change"], float(part.abs().max()))
    if watch is not None:
        record |= watch(state.natural)
    return record
