"""YellowFin: momentum SGD that tunes its own learning rate and momentum (Zhang and Mitliagkas 2019).

On a quadratic of curvature h, gradient descent with momentum μ contracts at the rate √μ for every learning rate in
the robust region (1 − √μ)²/h ≤ α ≤ (1 + √μ)²/h. With curvatures between h_min and h_max one α is in the region of all
of them if

    √μ ≥ (√(h_max/h_min) − 1)/(√(h_max/h_min) + 1),

and among these pairs YellowFin takes the one that brings a noisy quadratic closest to its optimum in one step,

    min  μ D² + α² C   with   α = (1 − √μ)²/h_min,

D the distance to the optimum and C the variance of the gradient. All four are measured from gradients alone, on the
belief that the loss is a mean of negative log-probabilities, of which E‖g‖² is a curvature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, overload

import torch
from torch import Tensor

LEAST = 1e-6  # the least squared norm and the least variance that count: both are divided by
PROTECT = 100.0  # times h_max: the most that the squared norm of one gradient counts in the averages
SLOW_START = 10  # windows until the learning rate is in full force
TUNER = "tuner"


def best_root(distance: float, variance: float, curvature: float) -> float:
    """x = √μ that minimises x²D² + (1 − x)⁴C/h².

    With y = x − 1 and p = D²h²/(2C) the minimum is the real root of y³ + py + p = 0, in (−1, 0). It is written with
    sinh, which loses no digits where Cardano's formula subtracts one large number from another.

    >>> round(best_root(distance=1.0, variance=1.0, curvature=1.0), 4)
    0.4102
    >>> best_root(1.0, 1e-6, 1.0) < 1e-5 < 0.99 < best_root(1.0, 1e6, 1.0)  # noise asks for momentum
    True
    """
    p = (distance * curvature) ** 2 / (2 * variance)
    y = -2 * math.sqrt(p / 3) * math.sinh(math.asinh(1.5 * math.sqrt(3 / p)) / 3)
    return min(max(1 + y, 0.0), math.nextafter(1.0, 0.0))


def least_root(low: float, high: float) -> float:
    """(√(h_max/h_min) − 1)/(√(h_max/h_min) + 1): below this √μ no learning rate suits all curvatures.

    >>> least_root(low=1.0, high=9.0)
    0.5
    """
    root = math.sqrt(high / low)
    return (root - 1) / (root + 1)


@dataclass(frozen=True)
class Tuner:
    """What was measured up to step t, and the learning rate and momentum that follow.

    Fields are averages as they run, a ← βa + (1 − β)·new from zero; properties divide by 1 − βᵗ, the weight of all that
    was seen. ``steps``: t. ``width``: gradients in the window of extreme curvatures. ``drift``: ‖EMA(g)‖².
    ``momentum`` alone starts from a given value and is used as it stands.

    >>> tuner = Tuner(beta=0.999, width=20, momentum=0.0).after(square=4.0, drift=4e-6)  # g of norm 2
    >>> round(tuner.low, 6), round(tuner.high, 6), round(tuner.distance, 6)
    (4.0, 4.0, 0.5)
    """

    beta: float
    width: int
    momentum: float
    steps: int = 0
    window: tuple[float, ...] = ()
    log_low: float = 0.0
    log_high: float = 0.0
    norm: float = 0.0
    square: float = 0.0
    ratio: float = 0.0
    drift: float = 0.0
    rate: float = 0.0

    @property
    def low(self) -> float:
        """h_min = exp(EMA(log min over the window of ‖g‖²))."""
        return math.exp(self.log_low / self._weight())

    @property
    def high(self) -> float:
        """h_max = exp(EMA(log max over the window of ‖g‖²))."""
        return math.exp(self.log_high / self._weight())

    @property
    def variance(self) -> float:
        """C = EMA(‖g‖²) − ‖EMA(g)‖²."""
        weight = self._weight()
        return max(self.square / weight - self.drift / weight**2, LEAST)

    @property
    def distance(self) -> float:
        """D = EMA(EMA(‖g‖)/EMA(‖g‖²)): of the order of ‖g‖/h."""
        return self.ratio / self._weight()

    @property
    def learning_rate(self) -> float:
        """EMA(α), rising linearly over the first windows."""
        return self.rate / self._weight() * min(1.0, self.steps / (SLOW_START * self.width))

    def target(self) -> tuple[float, float]:
        """(α_t, μ_t): what the measurements ask for, not yet averaged."""
        root = max(best_root(self.distance, self.variance, self.low), least_root(self.low, self.high))
        return (1 - root) ** 2 / self.low, root**2

    def after(self, square: float, drift: float) -> Tuner:
        """The next tuner, from ‖g‖² of one more gradient and ‖EMA(g)‖² with it."""
        window = (*self.window, square)[-self.width :]
        norm, mean_square = self._mix(self.norm, math.sqrt(square)), self._mix(self.square, square)
        measured = replace(
            self,
            steps=self.steps + 1,
            window=window,
            log_low=self._mix(self.log_low, math.log(min(window))),
            log_high=self._mix(self.log_high, math.log(max(window))),
            norm=norm,
            square=mean_square,
            ratio=self._mix(self.ratio, norm / mean_square),
            drift=drift,
        )
        rate, momentum = measured.target()
        return replace(measured, rate=self._mix(self.rate, rate), momentum=self._mix(self.momentum, momentum))

    def _mix(self, average: float, new: float) -> float:
        return self.beta * average + (1 - self.beta) * new

    def _weight(self) -> float:
        if self.steps == 0:
            raise ValueError("nothing is measured before the first step: call optimizer.step() first")
        return 1 - self.beta**self.steps


class YellowFin(torch.optim.Optimizer):
    """v ← μ_t v − lr·α_t·g, w ← w + v with (α_t, μ_t) tuned from the gradients of all parameters together.

    α_t and μ_t are running averages of what `Tuner.target` asks for. From the second step on a gradient of
    ‖g‖² ≥ h_max is clipped to the norm √h_max; the averages see it up to ‖g‖² = 100 h_max.

    ``lr``: a factor on α_t, 1 if the tuning is to be trusted; read at each step, so schedules work. ``momentum``: where
    the average of μ starts. ``beta``: decay of all averages. ``window``: gradients over which extreme curvatures are
    sought. A parameter without gradient stays where it is, and counts as one of gradient zero.

    >>> w = torch.tensor([3.0, -2.0], requires_grad=True)
    >>> optimizer = YellowFin([w])
    >>> for _ in range(500):
    ...     optimizer.zero_grad()
    ...     (w**2 / 2).sum().backward()
    ...     optimizer.step()
    >>> bool(w.norm() < 0.01)
    True
    """

    def __init__(
        self, params: Any, lr: float = 1.0, momentum: float = 0.0, beta: float = 0.999, window: int = 20
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and less than 1, not {momentum}: 0 is the usual start")
        if not 0 <= beta < 1:
            raise ValueError(f"beta must be at least 0 and less than 1, not {beta}: 0.999 is the usual decay")
        if isinstance(window, bool) or not isinstance(window, Integral) or window < 1:
            raise ValueError(f"window must be a whole number of steps, at least 1, not {window!r}: 20 is usual")
        super().__init__(params, {"lr": lr})
        self._keep(Tuner(float(beta), int(window), float(momentum)))

    @property
    def tuner(self) -> Tuner:
        """What is measured so far. It is a part of the state, as plain numbers."""
        return Tuner(**self.state[TUNER])  # type: ignore[index]

    def _keep(self, tuner: Tuner) -> None:
        # a new dict each time: torch hands out and takes in state by reference
        self.state[TUNER] = dict(vars(tuner))  # type: ignore[index]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; ``lr`` may differ from group to group, the measurements are of all groups together."""
        super().add_param_group(param_group)
        try:
            _check(self.param_groups[-1], len(self.param_groups) - 1)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back to a state; training goes on from it to the bit."""
        if TUNER not in state_dict["state"]:
            raise ValueError("the state is not one of YellowFin: it has no tuner; load it into the optimiser it is of")
        super().load_state_dict(state_dict)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Measure, tune, move. ``closure`` evaluates the loss and its gradients anew."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if found:
            tuner, clip = self._measure(found)
            for group in self.param_groups:
                moving = [p for p in group["params"] if p.grad is not None]
                self._move(moving, tuner.momentum, group["lr"] * tuner.learning_rate * clip)
        return loss

    def _measure(self, parameters: list[Tensor]) -> tuple[Tuner, float]:
        """Take one gradient into the averages: the tuner with it, and the factor by which the gradient is clipped."""
        tuner, square = self.tuner, self._square(parameters)
        clip = protect = 1.0
        if tuner.steps > 0 and square > 0:
            clip, protect = (min(1.0, math.sqrt(times * tuner.high / square)) for times in (1.0, PROTECT))
        drift = self._average(parameters, tuner.beta, protect)
        tuner = tuner.after(max(square * protect**2, LEAST), drift)
        self._keep(tuner)
        return tuner, clip

    def _average(self, parameters: list[Tensor], beta: float, factor: float) -> float:
        """EMA(factor·g) of every parameter that ever had a gradient; the squared norm of it all."""
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {"average": torch.zeros_like(p), "velocity": torch.zeros_like(p)}
        seen = [p for group in self.param_groups for p in group["params"] if p in self.state]
        averages = [self.state[p]["average"] for p in seen]
        torch._foreach_mul_(averages, beta)
        torch._foreach_add_(
            [self.state[p]["average"] for p in parameters], _gradients(parameters), alpha=factor * (1 - beta)
        )
        return _square(averages)

    def _move(self, parameters: list[Tensor], momentum: float, rate: float) -> None:
        """v ← μv − αg, w ← w + v."""
        if parameters:
            velocities = [self.state[p]["velocity"] for p in parameters]
            torch._foreach_mul_(velocities, momentum)
            torch._foreach_add_(velocities, _gradients(parameters), alpha=-float(rate))
            torch._foreach_add_(parameters, velocities)

    def _square(self, parameters: list[Tensor]) -> float:
        """‖g‖² over all parameters, if it is a number."""
        gradients = _gradients(parameters)
        if any(g.is_sparse for g in gradients):
            where = self._culprit(lambda g: g.is_sparse)
            raise TypeError(f"{where} must be dense, not sparse: build the embedding with sparse=False")
        square = _square(gradients)
        if not math.isfinite(square):
            where = self._culprit(lambda g: not math.isfinite(_square([g])))
            raise FloatingPointError(
                f"{where} must be finite, not of squared norm {square}: check the inputs and the loss, or lower lr"
            )
        return square

    def _culprit(self, wrong: Callable[[Tensor], bool]) -> str:
        """The first gradient that is wrong, by name."""
        for number, group in enumerate(self.param_groups):
            for name, parameter in _named(group, number):
                if parameter.grad is not None and wrong(parameter.grad):
                    return f"the gradient of {name}"
        return "the gradient of all parameters together"


def _check(group: dict[str, Any], number: int) -> None:
    """Refuse a group that cannot be learnt."""
    lr = group["lr"]
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"lr must be positive and finite, not {lr}: it is a factor, and 1 trusts the tuning")
    for name, parameter in _named(group, number):
        if not parameter.is_floating_point():
            raise TypeError(f"{name} must be of a real floating dtype, not {parameter.dtype}: leave it out")


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def _square(tensors: list[Tensor]) -> float:
    """Σ ‖t‖² in double precision.

    The program waits for the device here, as the tuned rates are plain numbers: once for each device and dtype, not for
    each tensor.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for norm in torch._foreach_norm(tensors):
        kinds.setdefault((norm.device, norm.dtype), []).append(norm)
    return sum(float(torch.stack(norms).cpu().double().square().sum()) for norms in kinds.values())


def _named(group: dict[str, Any], number: int) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a group with names for messages."""
    names = group.get("param_names", range(len(group["params"])))
    for name, parameter in zip(names, group["params"], strict=True):
        yield f"parameter {name!r} of group {number}", parameter
