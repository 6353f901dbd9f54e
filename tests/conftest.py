"""Settings for all tests: property tests repeat exactly, and two workers share two cores."""

import os

# Before torch and numpy are loaded: workers and processes that tests start take it over, and none of them spins.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from matplotlib.figure import Figure

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=100)
settings.load_profile(os.environ.get("BAYESRULE_TEST_PROFILE", "quick"))
torch.set_num_threads(1)


@pytest.fixture
def unpainted(monkeypatch):
    """Figures are put together but not painted: that takes longer than a small fit with all its scores."""

    def save(figure, target, *, format="png", **rest):
        if format == "svg":
            target.write("<svg></svg>")
        elif isinstance(target, str | Path):
            Path(target).write_bytes(b"\x89PNG")
        else:
            target.write(b"\x89PNG")

    monkeypatch.setattr(Figure, "savefig", save)
