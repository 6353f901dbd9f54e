import json
import os
import signal
import subprocess
import sys
import time

import pytest
from covering import first

from bayesrule.cli import main
from bayesrule.training import Folder

# seconds of training, so that a signal that comes late still meets it
LINE = ("fit", "moons", "--method", "swag", "--epochs", "15", "--batch-size", "4")


def heed():
    """A shell's job in the background ignores SIGINT, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(folder):
    line = [sys.executable, "-m", "bayesrule", *LINE, "--out", str(folder)]
    return subprocess.Popen(line, stderr=subprocess.PIPE, text=True, preexec_fn=heed)


def begun(process, folder):
    until = time.monotonic() + 60
    while not Folder(folder).checkpoint.exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.1)


@pytest.mark.parametrize("number", first([signal.SIGINT, signal.SIGTERM]))
def test_a_stopped_run_continues_to_the_same_scores(bayesrule, tmp_path, number, whole):
    folder = tmp_path / "run"
    process = start(folder)
    begun(process, folder)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    assert f"continue with: bayesrule fit --resume --out {folder}" in err
    assert "Traceback" not in err
    assert not (folder / "posterior.safetensors").exists()
    code, _, err = bayesrule("fit", "--resume", "--out", folder)
    assert code == 0, err
    assert scores(folder) == scores(whole)


def test_a_finished_run_gives_its_result_again(bayesrule, whole):
    before = scores(whole)
    assert bayesrule(*LINE, "--resume", "--out", whole)[0] == 0
    assert scores(whole) == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main([*LINE, "--out", str(folder)]) == 0
    return folder


def scores(folder):
    return json.loads((folder / "scores.json").read_text())["methods"]["swag"]["scores"]
