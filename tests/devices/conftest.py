"""The second device, loaded before any test runs: torch starts its backward threads at the first backward pass."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import second_device
import torch

NO_COMPILER = "no C++ compiler for the second device: install g++ or set CXX"
PROBLEM = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    if second_device.compiler() is None:
        return
    cache = getattr(config, "cache", None)  # absent under -p no:cacheprovider
    folder = cache.mkdir("second_device") if cache else Path(tempfile.mkdtemp())
    try:
        second_device.load(folder)
    except (RuntimeError, OSError) as error:  # its own tests fail, and no others
        config.stash[PROBLEM] = str(error)


@pytest.fixture
def second(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The device that holds the CPU's numbers and refuses to mix with it; available within the test only."""
    if second_device.compiler() is None:
        pytest.skip(NO_COMPILER)
    if PROBLEM in request.config.stash:
        pytest.fail(request.config.stash[PROBLEM], pytrace=False)
    second_device.set_available(True)
    yield torch.device(second_device.NAME, 0)
    second_device.set_available(False)
