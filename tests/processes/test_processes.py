"""Two processes under torchrun against one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bayesrule.cli import main

sys.path.insert(0, str(Path(__file__).parent.parent / "spine"))
from test_methods import METHODS

SCRIPT = Path(__file__).parent / "learn.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "localhost:0"]


def run(*command, cwd=None):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """What one process, and each of two, have learnt in 20 steps."""
    out = tmp_path_factory.mktemp("learnt")
    run(sys.executable, str(SCRIPT), str(out))
    run(*TORCHRUN, str(SCRIPT), str(out))
    return {path.stem: torch.load(path) for path in out.glob("*.pt")}


def same(a, b, tolerance=0.0):
    if isinstance(a, torch.Tensor):
        return bool(((a - b).abs() <= tolerance * (1 + b.abs())).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k], tolerance) for k in a)
    return all(same(x, y, tolerance) for x, y in zip(a, b, strict=True)) if isinstance(a, list | tuple) else a == b


@pytest.mark.parametrize("method", ["map", "ogn"])
def test_without_noise_two_processes_are_one(learnt, method):
    """The same total batch, 20 steps: the same posterior to 1e-5."""
    assert same(learnt["2-0"][method], learnt["1-0"][method], 1e-5)


@pytest.mark.parametrize("method", ["map", "ogn", "vogn", "ivon", "bbb", "two dtypes"])
def test_all_processes_hold_the_same_posterior(learnt, method):
    assert same(learnt["2-0"][method], learnt["2-1"][method])


def test_so_do_all_rows_of_the_conformance_table(learnt):
    rows = [name for name in learnt["2-0"] if name.startswith(("table", "reals", "batch norm"))]
    assert {f"table: {name}" for name in METHODS} <= set(rows)
    assert [name for name in rows if not same(learnt["2-0"][name], learnt["2-1"][name])] == []


@pytest.mark.parametrize("method", ["vogn", "ivon", "bbb"])
def test_with_noise_two_processes_see_other_draws_than_one(learnt, method):
    assert not same(learnt["2-0"][method], learnt["1-0"][method], 1e-5)


def test_each_process_has_its_own_noise(learnt):
    assert torch.equal(learnt["2-0"]["noise"], learnt["1-0"]["noise"])
    assert not torch.equal(learnt["2-0"]["noise"], learnt["2-1"]["noise"])


def test_a_script_fits_several_times_and_goes_on_after_an_error_in_one_process(tmp_path):
    run(*TORCHRUN, str(SCRIPT.parent / "several.py"), str(tmp_path))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert len(first["states"]) == 4
    assert same(first["states"], second["states"])
    assert (first["error"], second["error"]) == ("RuntimeError", "KeyError")  # no wait for the one that failed


def test_the_command_line_under_torchrun(tmp_path, monkeypatch, capsys):
    done = run(
        *TORCHRUN, "-m", "bayesrule", "fit", "moons", "--method", "ivon", "--epochs", "3", "--out", "r", cwd=tmp_path
    )
    assert (tmp_path / "r" / "posterior.safetensors").is_file()
    assert (tmp_path / "r" / "report.html").is_file()
    assert done.stdout.count("accuracy") == 1  # one of the two has spoken
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "r", "moons"]) == 0
    assert "accuracy" in capsys.readouterr().out
