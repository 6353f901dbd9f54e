"""Random numbers that a module draws by itself at prediction, from a seed: for every thread its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bayesrule.seeds import default_generator

_LENT = RLock()


class Seeded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this block what torch draws comes from a seed, and its own generators stay where they are.

    What has a generator of its own already is left alone. Torch's default generator belongs to all threads, so that
    seeding it for a while would give the numbers of one to another; this mode is the thread's own.

    >>> before = torch.get_rng_state()
    >>> with Seeded(3) as seeded:
    ...     first = torch.randn(2)
    >>> torch.equal(first, torch.randn(2, generator=torch.Generator().manual_seed(3))), seeded.drew
    (True, True)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed, self.drew = seed, False
        self._generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, for a second or more

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Give draws our generator, and leave everything else as it is."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        device = _device(args, kwargs)
        with_generator = _with_generator(func)
        if with_generator is not None:
            self.drew = True
            return with_generator(*args, **{**kwargs, "generator": self._generator(device)})
        return self._lent(func, args, kwargs, device)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]

    def _lent(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Any:
        """Some kernels, of dropout and attention on accelerators, take no generator: torch's own goes on from ours."""
        own, theirs = self._generator(device), default_generator(device)
        with _LENT:
            before, start = theirs.get_state(), own.get_state()
            theirs.set_state(start)
            try:
                return func(*args, **kwargs)
            finally:
                own.set_state(theirs.get_state())
                theirs.set_state(before)
                self.drew = self.drew or not torch.equal(own.get_state(), start)


@cache
def _with_generator(func: Any) -> Any | None:
    """The overload of an operation that takes a generator and is otherwise the same, if there is one."""
    given = {argument.name for argument in func._schema.arguments}
    if "generator" in given:
        return func
    wanted = given | {"generator"}
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        if {argument.name for argument in overload._schema.arguments} == wanted:
            return overload
    return None


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Where an operation draws."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device
    return torch.device("cpu")


class Repeatable:
    """Runs passes of a module that may draw by itself, so that they repeat; the first one tells whether it does."""

    draws: bool | None = None  # None: nobody has looked

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """A pass, drawing from a seed if the module draws."""
        if self.draws is False:  # the mode would cost some microseconds for every operation
            yield
            return
        with Seeded(seed) as mode:
            yield
        self.draws = bool(self.draws) or mode.drew
