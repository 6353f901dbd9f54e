"""Networks that a posterior draws, and their outputs, one after the other or many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from bayesrule import modules, tracing
from bayesrule.data import Inputs, inputs
from bayesrule.modules import Parameters
from bayesrule.posteriors.repeatable import Repeatable, Seeded

Network: TypeAlias = Callable[[Inputs], Tensor]
"""One function for all inputs: outputs [B, ...] of B examples, whatever else is in the batch, every time the same."""
Function: TypeAlias = Callable[[nn.Module, Any, Inputs], Tensor]
"""Outputs of a module under what was drawn, such as weights."""

MEMORY = 4 * 2**30
"""Bytes that one prediction's outputs may take."""
FEW = 16
"""Examples up to which many networks may be run at once."""
CACHED = 2**20
"""Bytes of inputs that go through a network at a time: what convolutions make of more than that leaves the caches.

Kirsch's network takes pictures of MNIST 256 at a time about 1.7 times as fast as 1024 at a time.
"""
LIGHT = 2**24
"""Floating-point operations of a pass up to which many networks are run at once.

A light pass is mostly the overhead of its calls, and `torch.vmap` over stacked weights takes 0.1 to 0.9 of the loop's
time. In a heavy one the products count: one network does them as fast, and convolutions faster by far.
"""


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave `torch.inference_mode` for this block; whether gradients are recorded stays as it is.

    In that mode dropout is one operation, whose masks no `Masks` can see; and tensors that are made in it can never
    take part in a derivative, so that nothing made in it may be kept.
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():  # leaving it alone would record gradients
        yield


def ordinary(x: Inputs) -> Inputs:
    """Inputs that were made in inference mode as tensors like others."""
    return inputs.each(lambda t: t.clone() if t.is_inference() else t, x)


class Runner:
    """Runs a function of weights and inputs, under one set of weights or many; safe to use from several threads.

    A module under other weights holds these while it runs, so that every thread needs layers of its own: a shell with
    the tensors of the module. Shells are lent, and kept for the next call.
    """

    def __init__(self, model: nn.Module, function: Function) -> None:
        self.model, self.function = model, function
        self.noise = Repeatable()
        self.vectorises: bool | None = None  # whether the function can be run by vmap; None: nobody has tried
        self._shells: list[nn.Module] = []
        self._work: dict[tuple[torch.Size, ...], int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the shells, which are made again."""
        return {**self.__dict__, "_shells": []}

    @contextmanager
    def _shell(self) -> Iterator[nn.Module]:
        try:
            shell = self._shells.pop()  # one step: a look at its length first would race with other threads
        except IndexError:
            shell = modules.shell(self.model)
        try:
            yield shell
        finally:
            self._shells.append(shell)

    def one(self, drawn: Any, x: Inputs, seed: int = 0) -> Tensor:
        """Outputs [B, ...] under one draw; ``seed``: of what the module itself draws."""
        with self._shell() as shell, outside_inference_mode(), self.noise.seeded(seed):
            return self.function(shell, drawn, ordinary(x))

    def many(self, weights: Parameters, x: Inputs, seeds: Sequence[int]) -> Tensor:
        """Outputs [K, B, ...] under weights [K, ...]: by vmap where it can run the module, else by the loop."""
        if self.vectorises is False or not self._light(x):
            return self._loop(weights, x, seeds)
        try:
            found = self._checked(weights, x) if self.vectorises is None else self._at_once(weights, x)
        except Exception:  # whatever vmap cannot do, the loop can, or says what is wrong
            found = None
        if found is None:
            # What vmap ran for other inputs it may not run for these. Inputs that do not fit decide nothing: the loop
            # raises for them.
            found = self._loop(weights, x, seeds)
            self.vectorises = False
        return found

    def _light(self, x: Inputs) -> bool:
        """Whether a pass over these examples is light, by the work of the first one."""
        shapes = tuple(part.shape[1:] for _, part in inputs.named(x))
        if shapes not in self._work:
            with self._shell() as shell, torch.no_grad(), Seeded(0), Work() as work:  # type: ignore[no-untyped-call]
                modules.try_call(shell, inputs.each(lambda t: t[:1], x))
            self._work[shapes] = work.operations
        return inputs.length(x) * self._work[shapes] <= LIGHT

    def _checked(self, weights: Parameters, x: Inputs) -> Tensor | None:
        """Outputs by vmap for the first time, if its first network is the loop's; None where the loop is better."""
        with Rules() as rules:
            one = self.one({name: w[0] for name, w in weights.items()}, x)
        if rules.missing or self.noise.draws:
            return None
        found = self._at_once(weights, x)
        # a module that keeps something from call to call can run under vmap and be wrong
        if not _alike(found[0], one):
            return None
        self.vectorises = True
        return found

    def _at_once(self, weights: Parameters, x: Inputs) -> Tensor:
        with self._shell() as shell, outside_inference_mode():
            x = ordinary(x)
            outputs: Tensor = vmap(lambda own: self.function(shell, own, x))(weights)
        return outputs

    def _loop(self, weights: Parameters, x: Inputs, seeds: Sequence[int]) -> Tensor:
        outputs = []
        for k, seed in enumerate(seeds):
            own = {name: w[k] for name, w in weights.items()}
            outputs.append(self.one(own, x, seed))
        return torch.stack(outputs)


class Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this block the floating-point operations of products and convolutions are counted.

    >>> with Work() as work:
    ...     _ = nn.Linear(3, 2)(torch.ones(5, 3))
    >>> work.operations
    60
    """

    operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, for a second or more

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and count what it takes."""
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.operations += count(*args, **(kwargs or {}), out_val=result)
        return result


class Rules(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this block the operations for which vmap has no rule are noted: it would run a loop, slower than ours.

    vmap says so in a warning alone. Filters that turn warnings into errors hold for the process, and would disturb
    other threads; this mode is the thread's own.

    >>> with Rules() as rules:
    ...     _ = torch.ones(3).exp().histc(bins=2)
    >>> rules.missing
    {'aten::histc'}
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.missing: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, for a second or more

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and note it if there is no rule."""
        if not _has_rule(func):
            self.missing.add(func.name())
        return func(*args, **(kwargs or {}))


@cache
def _has_rule(func: Any) -> bool:
    """Whether vmap can run an operation, or has nothing to do for it."""
    takes_tensors = any("Tensor" in str(argument.type) for argument in func._schema.arguments)
    if not takes_tensors or func.namespace == "prims":  # what derivatives are taken apart into under no vmap
        return True
    if func is torch.ops.aten.lift_fresh.default:  # what was not made by torch, such as a copy for a module that writes
        return True
    keys = ("FuncTorchBatched", "FuncTorchBatchedDecomposition")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in keys)


def _alike(found: Tensor, wanted: Tensor) -> bool:
    """Whether two outputs are the same up to rounding."""
    near = 1e-4 * float(wanted.abs().max())
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-3, atol=near, equal_nan=True)


@dataclass(frozen=True, eq=False)
class Drawn:
    """K networks: ``weights`` [K, P], one network a row, in the names and shapes of ``like``.

    ``seed``, and those after it: of what each network draws by itself.
    """

    runner: Runner
    weights: Tensor
    like: Parameters
    seed: int = 0

    def __iter__(self) -> Iterator[Member]:
        return (Member(self, index) for index in range(len(self.weights)))

    def outputs(self, first: int, last: int, x: Inputs) -> Tensor:
        """Those of the networks from ``first`` up to ``last``, [last − first, B, ...]."""
        seeds = range(self.seed + first, self.seed + last)
        return self.runner.many(modules.unflatten(self.weights[first:last], self.like), x, seeds)


@dataclass(frozen=True, eq=False)
class Member:
    """One of the networks that were drawn together."""

    drawn: Drawn
    index: int

    def __call__(self, x: Inputs) -> Tensor:
        """The module's outputs under this network's weights."""
        drawn = self.drawn
        weights = modules.unflatten(drawn.weights[self.index], drawn.like)
        return drawn.runner.one(weights, x, drawn.seed + self.index)


def stack(networks: Iterable[Network], x: Inputs, count: int) -> Tensor:
    """Outputs [S, B, ...] of ``count`` networks at x, into memory taken once.

    A pass holds `inputs.block` rows at most, of one network or, for up to `FEW` examples, of many.
    """
    if tracing.active():
        with tracing.outside():
            drawn = list(networks)
        return torch.stack([network(x) for network in drawn])
    n, size = inputs.length(x), inputs.block(x, size=CACHED)
    outputs: Tensor | None = None  # its shape is known with the first piece
    done = 0
    most = size // n if n <= FEW else 1
    for group in _groups(networks, most):
        for start in range(0, n, size):
            rows = slice(start, start + size)
            piece = _outputs(group, inputs.each(lambda t, rows=rows: t[rows], x))
            if outputs is None:
                check_memory(count, n, piece[0])
                outputs = piece.new_empty(count, n, *piece.shape[2:])
            outputs[done : done + len(group), rows] = piece
        done += len(group)
    assert outputs is not None, "a posterior draws at least one network"
    return outputs


def finite(outputs: Tensor) -> Tensor:
    """Outputs [S, B, ...] as they are; an error that names the first row where a network gives no number.

    >>> finite(torch.tensor([[0.0, 1.0], [0.0, torch.nan]]))
    Traceback (most recent call last):
    ValueError: the network's outputs at row 1 are NaN or infinite under some sampled weights
    """
    if not tracing.holds(outputs.isfinite()):
        row = int((~outputs.isfinite()).transpose(0, 1).flatten(1).any(1).nonzero()[0])
        raise ValueError(f"the network's outputs at row {row} are NaN or infinite under some sampled weights")
    return outputs


def _groups(networks: Iterable[Network], most: int) -> Iterator[list[Network]]:
    """Networks that can be run at once, at most so many, in their order."""
    group: list[Network] = []
    for network in networks:
        if group and not (len(group) < most and _together(group[-1], network)):
            yield group
            group = []
        group.append(network)
    if group:
        yield group


def _together(one: Network, other: Network) -> bool:
    return isinstance(one, Member) and isinstance(other, Member) and one.drawn is other.drawn


def _outputs(group: list[Network], x: Inputs) -> Tensor:
    """Outputs [K, B, ...] of networks that can be run at once."""
    first = group[0]
    if len(group) == 1 or not isinstance(first, Member):
        return first(x)[None]
    return first.drawn.outputs(first.index, first.index + len(group), x)


def check_memory(samples: int, n: int, piece: Tensor) -> None:
    """Refuse outputs [S, B, ...] that take more than `MEMORY`, and say what would fit."""
    if tracing.active():  # how many examples there will be, nobody knows
        return
    need = samples * n * piece[0].numel() * piece.element_size()
    if need > MEMORY:
        fit = max(1, n * MEMORY // need)
        raise MemoryError(
            f"the outputs of {samples} networks on {n} examples need {need / 2**30:.1f} GiB, over the limit of "
            f"{MEMORY / 2**30:.0f} GiB: predict at most {fit} examples at a time, or with fewer samples"
        )
