"""Settings for all tests: property tests repeat exactly, two workers share two cores, and their time has a budget."""

import os

# Before torch and numpy are loaded: workers and processes that tests start take it over, and none of them spins.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from matplotlib.figure import Figure

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=100)
settings.load_profile(os.environ.get("BAYESRULE_TEST_PROFILE", "quick"))
torch.set_num_threads(1)

BUDGET = 720  # seconds of one quiet core for all that `make test` runs; two workers share them


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the time went, by folder, and a word if `make test` has outgrown its budget."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds["/".join(report.nodeid.split("::")[0].split("/")[:2])] += report.duration
    if seconds.total() < 60:  # a few tests are nobody's concern
        return
    terminalreporter.section("seconds by folder")
    for folder, spent in seconds.most_common():
        if spent >= 1:
            terminalreporter.write_line(f"{spent:6.0f} {folder}")
    terminalreporter.write_line(f"{seconds.total():6.0f} in all")
    if terminalreporter.config.option.markexpr == "not slow" and seconds.total() > BUDGET:
        terminalreporter.write_line(
            f"more than the {BUDGET} s that `make test` may take on quiet cores: make trainings shorter, share what is "
            "fitted, or mark further cases slow; --durations=30 shows the longest",
            yellow=True,
        )


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
