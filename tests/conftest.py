"""Settings for all tests: property tests repeat exactly, two workers share two cores, and their time has a budget."""

import os

# Before torch and numpy are loaded: workers and processes that tests start take it over, and none of them spins.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections import Counter
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from matplotlib.figure import Figure

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=100)
settings.load_profile(os.environ.get("BAYESRULE_TEST_PROFILE", "quick"))
torch.set_num_threads(1)

BUDGET = 720  # seconds of processor time for all that `make test` runs; two workers share them


def processor_time() -> float:
    """Seconds that this process and those that it has started and waited for have used."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Clock:
    """Processor time since it was last asked: other runs on the machine do not count, as they do by the wall."""

    def __init__(self) -> None:
        self.last = processor_time()

    def lap(self) -> float:
        before, self.last = self.last, processor_time()
        return self.last - before


CLOCK = pytest.StashKey[Clock]()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.stash[CLOCK] = Clock()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports know their processor time; workers send it on with them."""
    report = yield
    report.processor_time = item.session.stash[CLOCK].lap()
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the time went, by folder, and a word if `make test` has outgrown its budget."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = "/".join(report.nodeid.split("::")[0].split("/")[:2])
                seconds[folder] += getattr(report, "processor_time", 0.0)  # that of a worker that crashed has none
    if seconds.total() < 60:  # a few tests are nobody's concern
        return
    terminalreporter.section("seconds of processor time by folder")
    for folder, spent in seconds.most_common():
        if spent >= 1:
            terminalreporter.write_line(f"{spent:6.0f} {folder}")
    terminalreporter.write_line(f"{seconds.total():6.0f} in all")
    if terminalreporter.config.option.markexpr == "not slow" and seconds.total() > BUDGET:
        terminalreporter.write_line(
            f"more than the {BUDGET} s that `make test` may take: make trainings shorter, share what is "
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


@pytest.fixture
def few_trees(monkeypatch):
    """Boosting, a baseline of every report, with 5 trees of 100: these take longer than a small fit with all else."""
    import sklearn.ensemble  # which takes a second

    for name in ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"):
        monkeypatch.setattr(sklearn.ensemble, name, partial(getattr(sklearn.ensemble, name), max_iter=5))
