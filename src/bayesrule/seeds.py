"""Seeds and generators: what is random here is a function of whole numbers, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


def mixed(*key: int) -> int:
    """One well mixed seed from several numbers, by the finaliser of SplitMix64 (Steele 2014).

    >>> mixed(0, 1) != mixed(1, 0)
    True
    """
    state = 0
    for part in key:
        state = (state + part + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state >> 1  # 63 bits: torch's generators take a signed number


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that torch itself draws from on a device, for dropout, say.

    >>> default_generator(torch.device("cpu")) is torch.default_generator
    True
    """
    if device.type == "cpu":
        return torch.default_generator
    backend = torch.get_device_module(device)
    if device.type == "mps":  # the one backend without `default_generators`
        generator: torch.Generator = backend._get_default_mps_generator()
        return generator
    index = backend.current_device() if device.index is None else device.index
    generator = backend.default_generators[index]
    return generator


@dataclass(frozen=True, eq=False)
class Noise:
    """The two streams of random numbers that a learner draws from.

    ``shared`` gives the same numbers in all processes: for starts, for momenta of a sampler, for anything that all must
    hold alike. ``own`` gives each process numbers of its own, for its share of a batch. It is torch's default generator
    of the device, so what modules draw by themselves, such as dropout's masks, comes from it.
    """

    shared: torch.Generator
    own: torch.Generator

    @classmethod
    def on(cls, device: torch.device, seed: int = 0) -> Noise:
        """Streams on a device; ``seed`` is that of ``shared``, ``own`` goes on from where it stands."""
        return cls(torch.Generator(device).manual_seed(seed), default_generator(device))

    def seed(self, shared: int, own: int) -> None:
        """Start both streams anew. Modules on another device may draw on the CPU too."""
        self.shared.manual_seed(shared)
        self.own.manual_seed(own)
        if self.own is not torch.default_generator:
            torch.default_generator.manual_seed(own)

    def integer(self) -> int:
        """A large whole number that all processes draw alike, to seed something else with."""
        return int(torch.randint(2**62, (), generator=self.shared, device=self.shared.device))

    @contextmanager
    def drawn_alike(self) -> Iterator[None]:
        """Within this block torch's own draws come from ``shared``: for code that takes no generator.

        >>> noise = Noise.on(torch.device("cpu"), seed=3)
        >>> with noise.drawn_alike():
        ...     first = torch.randn(2)
        >>> torch.equal(first, torch.randn(2, generator=torch.Generator().manual_seed(3)))
        True
        """
        before = self.own.get_state()
        self.own.set_state(self.shared.get_state())
        try:
            yield
        finally:
            self.shared.set_state(self.own.get_state())
            self.own.set_state(before)


@contextmanager
def untouched(device: torch.device) -> Iterator[None]:
    """After this block torch's default generators, of the CPU and of the device, are as they were before it.

    >>> before = torch.get_rng_state()
    >>> with untouched(torch.device("cpu")):
    ...     draw = torch.randn(3)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    # a set: on a CPU the two are one
    generators = {torch.default_generator, default_generator(device)}
    before = {generator: generator.get_state() for generator in generators}
    try:
        yield
    finally:
        for generator, state in before.items():
            generator.set_state(state)
