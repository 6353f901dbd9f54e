"""Processes that are killed for good, within a task and between tasks: the next call ends with the same numbers."""

import json
import subprocess
import sys
import time

import pytest

SCRIPT = """
import sys
from bayesrule import lifelong
from bayesrule.lifelong import fits
from short_strategies import small

fits.INTERVAL = 0.0
name, out = sys.argv[1:]
strategy = small(name)
if strategy.heads == "many":
    stream = lifelong.streams.digits("task-il", 3).fewer(60)
else:
    stream = lifelong.streams.toy(3, examples=40)
lifelong.run(stream, strategy, epochs=60, batch_size=8, hidden=(8,), samples=4, out=out)
"""


def call(name, out):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, name, str(out)], env=environment())


def environment():
    import os
    from pathlib import Path

    import short_strategies

    import bayesrule

    places = [Path(bayesrule.__file__).parent.parent, Path(short_strategies.__file__).parent]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places)), "OMP_NUM_THREADS": "1"}


def numbers(out):
    found = json.loads((out / "result.json").read_text())
    assert found["finished"]
    del found["seconds"], found["summary"]["seconds"]
    return found


def kill_when(path, process):
    """End the process as soon as the file is there."""
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert path.exists()


NAMES = ("finetune", "ewc", "replay", "fromp", "vcl", "vcl-coreset", "vogn", "generative", "frcl", "si")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_process_that_was_killed_twice_goes_on_to_the_bit(name, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert call(name, whole).wait() == 0
    kill_when(cut / "task-01" / "fit-1" / "checkpoint.safetensors", call(name, cut))  # within the first task
    if name != "generative":  # which fits nothing after the first task
        kill_when(cut / "task-02" / "fit-1" / "checkpoint.safetensors", call(name, cut))
    kill_when(cut / "result.json", call(name, cut))  # between tasks, or soon after
    assert call(name, cut).wait() == 0
    assert numbers(cut) == numbers(whole)
