"""The output directory of a fit: a checkpoint while it runs, a posterior when it is done."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from torch import nn

from bayesrule import files, locks
from bayesrule.files import Tree
from bayesrule.posteriors import Posterior, load


class Folder:
    """A directory that belongs to one run, and while that is trained to one writer.

    ``interval``: seconds between checkpoints. ``claimed``: whether somebody has made sure that it holds no other run.
    """

    def __init__(self, path: str | Path, interval: float = 30.0, claimed: bool = False) -> None:
        self.path, self.interval, self.claimed = Path(path), interval, claimed
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.posterior = self.path / "posterior.safetensors"
        self._last = time.monotonic()
        self._holder: int | None = None  # the thread that has the lock

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within this block nobody else trains into the directory; if somebody does just now, a `FileExistsError`.

        For a thread that holds it already, nothing more.
        """
        if self._holder == threading.get_ident():
            yield
            return
        with locks.held(self.path):
            self._holder = threading.get_ident()
            try:
                for path in (self.checkpoint, self.posterior):
                    files.remove_partial(path)
                yield
            finally:
                self._holder = None

    def claim(self) -> None:
        """Refuse a directory that holds another run."""
        if self.claimed:
            return
        for path in (self.posterior, self.checkpoint):
            if path.exists():
                raise FileExistsError(
                    f"{self.path} holds another run ({path.name}): resume it, delete it, or choose another directory"
                )
        self.claimed = True

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self._last >= self.interval

    def save(self, tree: Tree) -> None:
        """Replace the checkpoint."""
        files.save(self.checkpoint, files.sealed(tree), "checkpoint")
        self._last = time.monotonic()

    def saved(self) -> Tree:
        """The last checkpoint."""
        return files.unsealed(self.checkpoint, files.load(self.checkpoint, "checkpoint"))

    def finish(self, posterior: Posterior) -> None:
        """Write the posterior; the checkpoint has served."""
        posterior.save(self.posterior)
        self.checkpoint.unlink(missing_ok=True)

    def finished(self, model: nn.Module) -> Posterior | None:
        """The posterior, if the run got that far."""
        if not self.posterior.exists():
            return None
        return load(self.posterior, model)


class Termination:
    """Whether the process was asked to end."""

    requested = False


@contextmanager
def on_sigterm() -> Iterator[Termination]:
    """Within this block SIGTERM is noted instead of obeyed, so that the step at hand can be finished and saved."""
    termination = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return

    def note(number: int, frame: FrameType | None) -> None:
        termination.requested = True

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, before)
    if termination.requested:  # too late to cut anything short: all is saved, now obey
        signal.raise_signal(signal.SIGTERM)
