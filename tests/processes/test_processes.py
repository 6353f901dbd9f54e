"""Two processes under torchrun against one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bayesrule as br
from bayesrule.cli import main

sys.path.insert(0, str(Path(__file__).parent))
import learn
from learn import examples, model
from test_methods import METHODS

SCRIPT = Path(__file__).parent / "learn.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "localhost:0"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Where one process, this one, and each of two have written what they learnt, and what they said of each other."""
    out = tmp_path_factory.mktemp("learnt")
    with torch.random.fork_rng(devices=[]):
        learn.main(out)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, str(SCRIPT), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (out / "said").write_text(done.stdout)
    return out


@pytest.fixture(scope="module")
def learnt(out):
    """What one process, and each of two, have learnt in 20 steps."""
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


@pytest.mark.parametrize("method", ["map", "ogn", "vogn", "ivon", "bbb", "two dtypes", "settled"])
def test_all_processes_hold_the_same_posterior(learnt, method):
    assert same(learnt["2-0"][method], learnt["2-1"][method])


@pytest.mark.parametrize("method", learn.SAMPLERS)
def test_two_processes_draw_as_one(learnt, method):
    """Every example counts once and momenta are alike: the same chains in double precision, up to the order of sums."""
    rows = [name for name in learnt["1-0"] if name in (f"sampled: {method}", f"sampled, odd: {method}")]
    assert rows
    for row in rows:
        assert same(learnt["2-0"][row], learnt["2-1"][row])
        assert same(learnt["2-0"][row], learnt["1-0"][row], 1e-6)


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


def test_all_start_from_the_weights_of_the_first(learnt):
    """Whatever those of the others were, and so do the noise of a likelihood, drawn starts and buffers."""
    first, second = (learnt[name]["differ"]["starts"] for name in ("2-0", "2-1"))
    assert same(first["own"], second["own"])
    assert same(first["own"], first["alike"])


DIFFERENT = {
    "train, other inputs": "train must be the same .* give each process the whole of the data",
    "train, other labels": "train must be the same .* give each process the whole of the data",
    "train, a shard each": "train must be the same .* give each process the whole of the data",
    "first batch": "the first batch must be the same .* no DistributedSampler",
    "seed": "seed must be the same in all processes, not 0 in process 0 and 1 in process 1",
    "epochs": "epochs must be the same in all processes, not 1 in process 0 and 2 in process 1",
    "method": "method must be the same .*'map'.* in process 0 and .*'bbb'.* in process 1",
    "method, a field": "method must be the same .*'lr': 0.1.* in process 0 and .*'lr': 1.1.* in process 1",
    "prior": "prior must be the same .*'scale': 1.0.* in process 0 and .*'scale': 2.0",
    "val": "val must be the same in all processes",
    "model": "model must be the same .* its weights may differ",
    "start": r"the start must be the same .* noise\.shared",
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_refused_by_all(learnt, name):
    for each in ("2-0", "2-1"):
        assert re.match(f"Disagreement: {DIFFERENT[name]}", learnt[each]["differ"]["words"][name])


FAILED = {
    "train, broken in one": (1, "ValueError: X and y must have the same number of examples, got 40 in X and 7 in y"),
    "val, broken in one": (1, "ValueError: X and y must have the same number of examples, got 40 in X and 7 in y"),
    "out, in use by the first": (0, "FileExistsError: .* holds another run"),
}


@pytest.mark.parametrize("name", FAILED)
def test_an_error_before_the_first_step_of_one_is_told_to_all(learnt, name):
    process, text = FAILED[name]
    assert re.match(text, learnt[f"2-{process}"]["differ"]["words"][name])
    told = f"Disagreement: process {process} has failed before the first step: see its own error"
    assert learnt[f"2-{1 - process}"]["differ"]["words"][name] == told


def test_a_fit_of_two_is_resumed_by_two(learnt):
    first, second = (learnt[name]["differ"] for name in ("2-0", "2-1"))
    for found in (first["resumed"], first["again"], second["resumed"], second["again"]):
        assert same(found, first["whole"])
    assert first["lost"] == 2 * ["Disagreement: process 1 has failed before the first step: see its own error"]
    assert all(re.match("FileError: .*nowhere.* no such file", text) for text in second["lost"])


def test_a_fit_of_two_is_not_resumed_by_one(out):
    with pytest.raises(ValueError, match=r"one of 2 processes, .* not of 1: resume it in as many, with torchrun"):
        br.resume(out / "left", model(), examples())


def test_a_script_fits_several_times_and_goes_on_after_an_error_in_one_process(learnt):
    first, second = (learnt[f"several-{rank}"] for rank in range(2))
    assert len(first["states"]) == 4
    assert same(first["states"], second["states"])
    assert first["waited"]
    assert second["waited"]  # for the one that came to the end later
    assert (first["error"], second["error"]) == ("RuntimeError", "KeyError")  # no wait for the one that failed


def test_the_command_line_under_torchrun(out, monkeypatch, capsys):
    assert (out / "r" / "posterior.safetensors").is_file()
    assert (out / "r" / "report.html").is_file()
    assert (out / "said").read_text().count("accuracy") == 1  # one of the two has spoken
    monkeypatch.chdir(out)
    assert main(["evaluate", "r", "moons"]) == 0
    assert "accuracy" in capsys.readouterr().out
