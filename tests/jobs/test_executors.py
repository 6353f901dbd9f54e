"""Jobs elsewhere: whoever takes `submit` does them, each answer is there once, and what is lost is done again."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import bayesrule
from bayesrule import jobs
from bayesrule.cli import main


@dataclass(frozen=True)
class Number:
    value: int
    seconds: float = 0.0


def squared(question, folder=None):
    if folder is not None:
        with open(os.path.join(folder, str(question.value)), "a") as file:
            file.write(f"{os.getpid()}\n")
    time.sleep(question.seconds)
    return {"square": question.value**2, "threads": torch.get_num_threads(), "process": os.getpid()}


class Handle:
    """What is like a future and is none, as a job of submitit."""

    def __init__(self, call, cancelled):
        self.call, self.cancelled, self.looks = call, cancelled, 0

    def done(self):
        self.looks += 1
        return self.looks > 1

    def result(self):
        return self.call()

    def cancel(self, check=True):
        self.cancelled.append(self)


class Elsewhere:
    """An executor that is none of Python's."""

    def __init__(self):
        self.handed_in, self.cancelled = 0, []

    def submit(self, fn, /, *args):
        self.handed_in += 1
        return Handle(lambda: fn(*args), self.cancelled)


def test_whatever_has_submit_does_the_jobs_and_none_that_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "POLL", 0.01)
    here = Elsewhere()
    with jobs.on(here):
        found = jobs.run(squared, [Number(1), Number(2)], cache=tmp_path)
        again = jobs.run(squared, [Number(1), Number(2), Number(3)], cache=tmp_path)
    assert [answer["square"] for answer in again] == [1, 4, 9]
    assert again[:2] == found
    assert here.handed_in == 3
    jobs.run(squared, [Number(5)])  # after the block jobs are done here again
    assert here.handed_in == 3


def test_what_is_not_wanted_any_more_is_cancelled(monkeypatch):
    monkeypatch.setattr(jobs, "POLL", 0.01)
    here = Elsewhere()
    with jobs.on(here), pytest.raises(ZeroDivisionError):
        list(jobs.finished(divmod, [(1, 0), (4, 2), (6, 2)]))
    assert len(here.cancelled) == 2


def test_what_cannot_be_handed_anything_is_refused():
    with pytest.raises(TypeError, match=r"client\.get_executor\(\) of Dask"), jobs.on(3):
        pass


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler and two workers, each a process of its own, as on machines of their own; the scheduler's address."""
    pytest.importorskip("distributed")
    folder = tmp_path_factory.mktemp("cluster")
    known = folder / "scheduler.json"
    places = Path(__file__).parents[2], Path(bayesrule.__file__).parents[1]  # of this module and of the library
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "False",
    }
    dask = [sys.executable, "-m", "dask"]
    commands = [[*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show"]]
    commands += [[*dask, "worker", "--no-nanny", "--no-dashboard", "--nthreads", "1", "--memory-limit", "0"]] * 2
    with (folder / "log").open("wb") as log:
        processes = [
            subprocess.Popen(
                [*command, "--scheduler-file", str(known)], env=environment, cwd=folder, stdout=log, stderr=log
            )
            for command in commands
        ]
        try:
            deadline = time.monotonic() + 60
            while not known.is_file() and time.monotonic() < deadline:
                time.sleep(0.05)
            yield json.loads(known.read_text(encoding="utf-8"))["address"]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def test_members_of_an_ensemble_are_learnt_by_a_cluster(cluster):
    """To the bit what one fit learns."""
    from distributed import Client

    model, train = bayesrule.models.mlp(2, 2, hidden=(4,)), bayesrule.data.moons(60, seed=0)
    with jobs.threads(1):
        ensemble = bayesrule.methods.Ensemble(members=2)
        here = bayesrule.fit(model, train, ensemble, prior=1.0, epochs=1)
        with Client(cluster) as client, jobs.on(client.get_executor()):
            there = bayesrule.training.fit_members(model, train, ensemble, prior=1.0, epochs=1)
    assert torch.equal(there.predict(train[0]).probs, here.predict(train[0]).probs)


@pytest.mark.slow
def test_trials_of_a_sweep_are_done_by_a_cluster(cluster, tmp_path, capsys, unpainted, monkeypatch):
    pytest.importorskip("optuna")
    command = "sweep moons --method map --space lr=1e-3:1:log --trials 3 --epochs 1 --sampler random --prior 1 --json"
    assert main([*command.split(), "--out", str(tmp_path / "one")]) == 0
    here = _trials(capsys.readouterr().out)
    monkeypatch.setattr("bayesrule.sweeps.search.work", lambda *_, **__: iter(()))  # what is left here: nothing
    assert main([*command.split(), "--out", str(tmp_path / "two"), "--cluster", cluster]) == 0
    assert _trials(capsys.readouterr().out) == here


def _trials(page):
    """Settings and scores."""
    return [(trial["settings"], trial["scores"]) for trial in json.loads(page)["trials"]]


@pytest.mark.slow  # a process that loads torch for each job; what submitit's jobs have is tested with `Handle`
def test_submitit_does_jobs(tmp_path, monkeypatch):
    """By its executor for processes of this machine; that for Slurm has the same methods."""
    submitit = pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", str(Path(bayesrule.__file__).parents[1]))
    executor = submitit.LocalExecutor(folder=tmp_path)
    executor.update_parameters(timeout_min=5)
    with jobs.on(executor):
        assert dict(jobs.finished(pow, [(2, 10), (3, 4)])) == {0: 1024, 1: 81}


def test_a_worker_that_is_killed_loses_nothing_and_nothing_is_there_twice(cluster, tmp_path):
    """The one that has begun the first job is killed while it is at it."""
    from distributed import Client

    asked = [Number(value, 0.2) for value in range(10)]
    done = []
    begun = tmp_path / "begun"
    begun.mkdir()

    def kill():
        while not (processes := [pid for file in begun.iterdir() for pid in file.read_text().split()]):
            time.sleep(0.01)
        os.kill(int(processes[0]), signal.SIGKILL)

    with Client(cluster) as client, jobs.on(client.get_executor()):
        client.wait_for_workers(2, timeout=60)
        threading.Thread(target=kill, daemon=True).start()
        found = jobs.run(squared, asked, (str(begun),), cache=tmp_path / "cells", tell=done.append)
    assert [answer["square"] for answer in found] == [value**2 for value in range(10)]
    assert {answer["threads"] for answer in found} == {1}
    assert len(done) == len(list((tmp_path / "cells").iterdir())) == 10
    assert os.getpid() not in {answer["process"] for answer in found}
    assert sum(len(file.read_text().split()) for file in begun.iterdir()) > 10  # what the killed worker was at


def test_the_command_line_takes_a_cluster(cluster, tmp_path, capsys, unpainted):
    command = f"lifelong toy --tasks 2 --epochs 1 --methods finetune --out {tmp_path}/one --json"
    assert main(command.split()) == 0
    here = capsys.readouterr().out
    command = f"lifelong toy --tasks 2 --epochs 1 --methods finetune --out {tmp_path}/two --json"
    assert main([*command.split(), "--cluster", cluster]) == 0
    there = capsys.readouterr().out
    assert _scores(here) == _scores(there)


def _scores(page):
    """What a run of strategies found, without how long it took and by which command."""
    return [cell["accuracy"] for cell in json.loads(page)["cells"]]


def test_a_cluster_that_is_not_there_is_an_error(capsys, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("bayesrule.cli.options.CONNECT", 0.2)
    assert main(["lifelong", "toy", "--cluster", "tcp://127.0.0.1:9"]) == 2
    assert "--cluster tcp://127.0.0.1:9: no scheduler answers there" in capsys.readouterr().err
    assert main(["lifelong", "toy", "--cluster", "tcp://127.0.0.1:9", "--jobs", "2"]) == 2
    assert "exclude each other" in capsys.readouterr().err
