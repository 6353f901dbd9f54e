"""How the scales of a kernel are found while chains warm up, each chain by itself."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesrule.files import Tree
from bayesrule.samplers.base import Move, Scales, State

# Shares of the warm-up at which the deviations are set anew from the draws since the last time. The first draws, on the
# way to where the density is, count for none, and after the last time steps are tuned to what was found.
WINDOWS = (0.1, 0.2, 0.4, 0.75)


class Tuner(ABC):
    """The scales of a kernel: tuned while `observe` is called, and fixed from then on.

    ``deviation``: of each coordinate, ``[C, P]``, as in `Scales`; one in the beginning, unless the caller knows better.
    """

    deviation: Tensor

    @abstractmethod
    def scales(self, done: float | None) -> Scales:
        """The scales of the next transition. ``done``: the share of the draws that are made; None while warming up."""

    def observe(self, state: State, move: Move, done: float) -> None:
        """Learn from a transition of the warm-up; ``done`` is the share of it that is over."""
        return

    @abstractmethod
    def state_dict(self) -> Tree:
        """All that changes."""

    @abstractmethod
    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""


@dataclass
class Spread:
    """The variances of positions along each coordinate, chain by chain (Welford 1962)."""

    mean: Tensor
    squares: Tensor
    count: int = 0

    @classmethod
    def none(cls, like: Tensor) -> Spread:
        """Of no positions yet."""
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    def add(self, position: Tensor) -> None:
        """One more position of every chain."""
        self.count += 1
        before = position - self.mean
        self.mean = self.mean + before / self.count
        self.squares = torch.addcmul(self.squares, before, position - self.mean)

    def variance(self, before: Tensor) -> Tensor:
        """v = Σ(w − w̄)²/(n − 1), drawn to the one before where positions are few: v^n/(n+5) · before^5/(n+5).

        A mean of logarithms, so that coordinates of any size are learnt alike: columns of inputs may be on scales that
        are orders of magnitude apart.
        """
        found = self.squares / max(self.count - 1, 1)
        least = torch.finfo(before.dtype).eps ** 2 * before
        stood = (found <= least).all(1, keepdim=True)  # a chain that accepted nothing tells nothing
        found = torch.where(stood, before, found.maximum(least))
        share = self.count / (self.count + 5)
        return found.pow(share) * before.pow(1 - share)

    def tree(self) -> Tree:
        """Plain data."""
        return {"mean": self.mean, "squares": self.squares, "count": self.count}

    def restore(self, tree: Tree) -> None:
        """Undo `tree`."""
        self.mean = tree["mean"].to(self.mean.device)
        self.squares = tree["squares"].to(self.squares.device)
        self.count = tree["count"]


@dataclass
class DualAveraging:
    """log ε_t = μ − √t/(γ(t + t₀)) Σ_i (a − a_i): steps whose mean acceptance is a (Hoffman and Gelman 2014).

    ``target``: a. ``centre``: μ, of every chain. The step to stay with is an average over t with weights t^−κ.
    """

    target: float
    centre: Tensor
    error: Tensor = field(init=False)
    averaged: Tensor = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.error = torch.zeros_like(self.centre)
        self.averaged = self.centre.clone()

    def add(self, acceptance: Tensor) -> None:
        """The acceptance that the present step had."""
        self.count += 1
        self.error = self.error + (self.target - acceptance.to(self.error))
        share = self.count**-0.75
        self.averaged = share * self.log_step() + (1 - share) * self.averaged

    def log_step(self) -> Tensor:
        """Log ε_t."""
        if not self.count:
            return self.centre
        return self.centre - self.error * (math.sqrt(self.count) / (0.05 * (self.count + 10)))

    def again(self) -> None:
        """Begin anew about the step that was found."""
        self.centre = self.averaged
        self.error, self.count = torch.zeros_like(self.centre), 0

    def tree(self) -> Tree:
        """Plain data."""
        return {"centre": self.centre, "error": self.error, "averaged": self.averaged, "count": self.count}

    def restore(self, tree: Tree) -> None:
        """Undo `tree`."""
        device = self.centre.device
        self.centre, self.error = tree["centre"].to(device), tree["error"].to(device)
        self.averaged, self.count = tree["averaged"].to(device), tree["count"]


class ByAcceptance(Tuner):
    """Steps by dual averaging of the acceptance, and deviations of coordinates from the chains' own draws.

    ``step``: the first one, and the only one if ``fixed``. ``diagonal``: whether deviations are learnt, or stay one.
    """

    def __init__(self, like: Tensor, target: float, step: Tensor, fixed: bool, diagonal: bool) -> None:
        self.fixed, self.diagonal = fixed, diagonal
        self.deviation = torch.ones_like(like)
        self.averaging = DualAveraging(target, step.log())
        self.spread = Spread.none(like)
        self.windows = 0  # that are over

    def scales(self, done: float | None) -> Scales:
        """The step of dual averaging, and its average once draws are kept."""
        averaging = self.averaging
        log_step = averaging.log_step() if done is None else averaging.averaged
        if self.fixed:
            log_step = averaging.centre
        return Scales(log_step.exp(), self.deviation, torch.ones_like(log_step))

    def observe(self, state: State, move: Move, done: float) -> None:
        """One transition."""
        if not self.fixed:
            self.averaging.add(move.acceptance)
        if not self.diagonal:
            return
        if WINDOWS[0] <= done < WINDOWS[-1]:
            self.spread.add(state.position)
        if self.windows + 1 < len(WINDOWS) and done >= WINDOWS[self.windows + 1]:
            self._learn()

    def _learn(self) -> None:
        """The end of a window."""
        self.windows += 1
        if self.spread.count < 2:
            return
        before = self.deviation
        self.deviation = self.spread.variance(before.square()).sqrt()
        self.spread = Spread.none(before)
        if not self.fixed:
            # so that a step goes as far as before in the mean, until it is tuned again
            shift = (before.log() - self.deviation.log()).mean(1).to(self.averaging.averaged)
            self.averaging.averaged = self.averaging.averaged + shift
            self.averaging.again()

    def state_dict(self) -> Tree:
        """All that changes."""
        averaging, spread = self.averaging.tree(), self.spread.tree()
        return {"deviation": self.deviation, "averaging": averaging, "spread": spread, "windows": self.windows}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        self.deviation = state["deviation"].to(self.deviation.device)
        self.averaging.restore(state["averaging"])
        self.spread.restore(state["spread"])
        self.windows = state["windows"]


class ByEnergy(Tuner):
    """Steps under which the squared error of the energy is P·v in the mean, and the length L of the chain's spread.

    The error of a step ε grows like ε³, so that a transition of squared error Δ² says that ε (P·v/Δ²)^(1/6) were
    right; a forgetful mean over transitions of Δ²/(P·v·ε⁶), in which wild errors count little, gives the step (Robnik
    2023). v falls from ``first`` to ``last`` over the warm-up, in the last quarter of which it stays; the step to keep
    is the geometric mean of those there. L = (Σ_j var z_j)^½ over the window before.

    ``diagonal``: whether deviations of coordinates are learnt from the draws, or stay one.
    """

    MEMORY = 150.0  # transitions that the mean goes back
    TRUST = 1.5  # of log ε: how far off an error may be and still count
    CHANGING = ("step", "most", "ratios", "weights", "length", "deviation", "logs")

    def __init__(self, like: Tensor, step: Tensor, fixed: bool, variances: tuple[float, float], diagonal: bool) -> None:
        self.fixed, self.variances, self.diagonal = fixed, variances, diagonal
        self.size = like.shape[1]
        self.step = step
        self.most = torch.full_like(step, math.inf)
        self.ratios, self.weights = torch.zeros_like(step), torch.zeros_like(step)
        self.length = torch.full_like(step, math.sqrt(self.size))
        self.deviation = torch.ones_like(like)
        self.spread = Spread.none(like)
        self.windows = 0
        self.logs, self.count = torch.zeros_like(step), 0  # the sum of log ε over the last quarter

    def scales(self, done: float | None) -> Scales:
        """The step and the length as they stand; once draws are kept, the mean of the last steps."""
        step = self.step
        if done is not None and self.count:
            step = (self.logs / self.count).exp()
        return Scales(step, self.deviation, self.length)

    def observe(self, state: State, move: Move, done: float) -> None:
        """One transition."""
        if not self.fixed:
            self._tune(move.error, done)
        if WINDOWS[0] <= done < WINDOWS[-1]:
            self.spread.add(state.position)
        if self.windows + 1 < len(WINDOWS) and done >= WINDOWS[self.windows + 1]:
            self._learn()

    def _tune(self, error: Tensor, done: float) -> None:
        first, last = self.variances
        wanted = first + (last - first) * min(done / WINDOWS[-1], 1.0)
        wild = error.abs() > 1e10
        ratio = error.clamp(-1e10, 1e10).square() / (self.size * wanted) + 1e-8
        weight = torch.exp(-0.5 * (ratio.log() / (6 * self.TRUST)).square())
        forget = (self.MEMORY - 1) / (self.MEMORY + 1)
        self.ratios = forget * self.ratios + weight * ratio / self.step.pow(6)
        self.weights = forget * self.weights + weight
        found = (self.ratios / self.weights).pow(-1 / 6)
        self.most = torch.where(wild, 0.8 * self.step, self.most)
        # not more than a third at once: the mean is of few transitions in the beginning
        found = found.nan_to_num(nan=0.0).clamp(self.step / 1.3, self.step * 1.3)
        self.step = torch.where(wild, 0.8 * self.step, found).minimum(self.most)
        if done >= WINDOWS[-1]:
            self.logs, self.count = self.logs + self.step.log(), self.count + 1

    def _learn(self) -> None:
        """The end of a window."""
        self.windows += 1
        if self.spread.count < 2:
            return
        variance = self.spread.variance(self.deviation.square())
        if self.diagonal:
            before, self.deviation = self.deviation, variance.sqrt()
            shift = (before.log() - self.deviation.log()).mean(1).exp()
            if not self.fixed:
                self.step = self.step * shift
                self.ratios = self.ratios / shift.pow(6)
                self.most = torch.full_like(self.most, math.inf)
        self.length = (variance / self.deviation.square()).sum(1).sqrt()
        self.spread = Spread.none(variance)

    def state_dict(self) -> Tree:
        """All that changes."""
        kept = {name: getattr(self, name) for name in self.CHANGING}
        # no number that is not finite: a checkpoint refuses them
        kept["most"] = self.most.nan_to_num(posinf=torch.finfo(self.most.dtype).max)
        return kept | {"spread": self.spread.tree(), "windows": self.windows, "count": self.count}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        self.count = state["count"]
        for name in self.CHANGING:
            setattr(self, name, state[name].to(self.step.device))
        self.spread.restore(state["spread"])
        self.windows = state["windows"]


class ByRate(Tuner):
    """Steps of a rate, constant or in cycles, and deviations from the size of gradients in the warm-up.

    In each of ``cycles`` cycles of the draws the rate falls by half a cosine, ½(1 + cos πt) for t from 0 to 1 (Zhang
    et al. 2020); without, it is constant. ``precondition``: s_j² = 1/(r_j + 0.1), r_j the root mean square of the
    gradient along j in the warm-up over its mean over j (RMSprop's, as in Li et al. 2016). It is fixed before the
    first draw, so that no correction is needed for its changes. ``power``: of the rate in the step, 1 or ½.
    """

    LEAST = 0.01  # of the rate, at the end of a cycle

    def __init__(self, like: Tensor, step: Tensor, power: float, cycles: int, precondition: bool) -> None:
        self.step, self.power, self.cycles, self.precondition = step, power, cycles, precondition
        self.squares = torch.zeros_like(like)
        self.count = 0
        self.deviation = torch.ones_like(like)

    def scales(self, done: float | None) -> Scales:
        """The present rate."""
        factor = 1.0
        if self.cycles and done is not None:
            share = done * self.cycles % 1.0
            factor = max(0.5 * (1 + math.cos(math.pi * share)), self.LEAST)
        return Scales(self.step * factor**self.power, self.deviation, torch.ones_like(self.step))

    def observe(self, state: State, move: Move, done: float) -> None:
        """The gradient at one transition."""
        if not self.precondition:
            return
        self.count += 1
        self.squares = self.squares + (state.slope.square() - self.squares) / self.count
        sizes = self.squares.sqrt()
        relative = sizes / sizes.mean(1, keepdim=True).clamp_min(torch.finfo(sizes.dtype).tiny)
        self.deviation = (relative + 0.1).rsqrt()

    def state_dict(self) -> Tree:
        """All that changes."""
        return {"squares": self.squares, "deviation": self.deviation, "count": self.count}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        device = self.step.device
        self.squares, self.deviation = state["squares"].to(device), state["deviation"].to(device)
        self.count = state["count"]
