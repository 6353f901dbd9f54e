"""``--device`` and ``device=`` with the second device: what is trained there, and read back here."""

import json
from pathlib import Path

import numpy as np
import pytest
import second_device
import torch

import bayesrule as br
from bayesrule import methods, modules
from bayesrule.cli import main
from bayesrule.estimators import BayesianClassifier, BayesianRegressor
from bayesrule.experiments import trials
from bayesrule.sweeps import search, workers
from bayesrule.training import Folder

FIT = ["fit", "moons", "--method", "ivon", "--epochs", "3", "--hidden", "8"]


@pytest.fixture
def run(monkeypatch, tmp_path, capsys, unpainted):
    """Run a command line in an empty directory: what it printed as JSON."""
    monkeypatch.chdir(tmp_path)

    def command(*line):
        code = main([*line, "--json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    return command


@pytest.fixture
def devices(monkeypatch):
    """Where networks were built, in order."""
    found = []

    def build(*given, network=br.models.build, **settings):
        found.append(network(*given, **settings))
        return found[-1]

    for module in ("runs", "sweep"):
        monkeypatch.setattr(f"bayesrule.cli.{module}.build", build)
    return lambda: {p.device.type for model in found for p in model.parameters()}


def nll(scores):
    return scores["methods"]["ivon"]["scores"]["nll"]


def test_fit_evaluate_and_predict(run, devices, second):
    expected = run(*FIT, "--out", "here")
    found = run(*FIT, "--out", "there", "--device", "second")
    assert devices() == {"cpu", "second"}
    assert nll(found) == pytest.approx(nll(expected), rel=1e-4)
    assert json.loads(Path("there/run.json").read_text())["settings"]["device"] == "second"
    for device in ([], ["--device", "cpu"]):
        assert nll(run("evaluate", "there", "moons", *device)) == pytest.approx(nll(expected), rel=1e-4)
    there, here = (run("predict", "there", "moons", "--device", device) for device in ("second", "cpu"))
    assert [row["entropy"] for row in there] == pytest.approx([row["entropy"] for row in here], rel=1e-3)


def interrupt_in_the_second_epoch(lines, at):
    if at.epoch == 1:
        raise KeyboardInterrupt


def test_a_run_goes_on_on_another_device(run, monkeypatch, second):
    expected = run(*FIT, "--out", "whole")
    with monkeypatch.context() as patched:
        patched.setattr("bayesrule.training.progress._Lines.__call__", interrupt_in_the_second_epoch)
        assert main([*FIT, "--out", "run", "--device", "second"]) == 130
    assert Folder("run").checkpoint.exists()
    found = run("fit", "--resume", "--out", "run", "--device", "cpu")
    assert nll(found) == pytest.approx(nll(expected), rel=1e-4)


@pytest.mark.parametrize("verb", ["compare", "sweep"])
def test_verbs_that_train(verb, run, devices, second):
    more = {"compare": ["--methods", "map,laplace"], "sweep": ["--method", "map", "--trials", "2"]}
    run(verb, "moons", "--epochs", "2", "--hidden", "8", "--device", "second", *more[verb])
    assert devices() == {"second"}


def test_a_sweep_goes_on_on_another_device(run, devices, second):
    line = ["sweep", "moons", "--method", "map", "--epochs", "2", "--hidden", "8", "--out", "sweep"]
    run(*line, "--trials", "1", "--device", "second")
    assert len(run(*line, "--trials", "2")["trials"]) == 2


def test_workers_of_a_sweep_get_the_model_on_the_cpu(monkeypatch, tmp_path, second):
    sent = []
    monkeypatch.setattr(workers.jobs, "finished", lambda ask, calls, *rest, **more: sent.extend(calls) or [])
    model = br.models.mlp(2, 2, hidden=(8,)).to(second)
    data = br.data.moons(n=60, seed=0)
    search.sweep(model, data, "map", trials=2, epochs=1, storage=tmp_path / "sweep.db", jobs=2)
    assert len(sent) == 2
    for job, device, *_ in sent:
        assert modules.device_of(job.model).type == "cpu"
        assert device == modules.device_of(model) == second


def test_trainings_of_experiments(second):
    job = trials.Training("map", "digits", methods.MAP(), epochs=1, seed=0, hidden=(8,))
    there, here = (trials.run([job], trials.Setting(device=name))[0] for name in (second_device.NAME, "cpu"))
    assert there.nll == pytest.approx(here.nll, rel=1e-3)


@pytest.mark.parametrize("kind", [BayesianClassifier, BayesianRegressor])
@pytest.mark.parametrize("model", [None, torch.nn.Linear(2, 2), lambda inputs, outputs: torch.nn.Linear(inputs, 2)])
def test_estimators(kind, model, second):
    x = np.random.default_rng(0).normal(size=(40, 2))
    y = (x[:, 0] > 0).astype(int)
    if kind is BayesianRegressor:
        y = np.stack([x[:, 0], x[:, 1]], 1)
    settings = {"method": "map", "hidden": (8,), "model": model, "epochs": 2, "random_state": 0}
    fitted = [kind(**settings, device=name).fit(x, y) for name in (second_device.NAME, None)]
    assert [next(fit.posterior_.model.parameters()).device.type for fit in fitted] == ["second", "cpu"]
    np.testing.assert_allclose(fitted[0].predict(x), fitted[1].predict(x), rtol=1e-4)
    if isinstance(model, torch.nn.Module):
        assert model.weight.device.type == "cpu"


def test_the_same_seed_gives_the_same_weights_on_each_device(second):
    spec = {"name": "mlp", "inputs": 2, "outputs": 1, "hidden": [3]}
    there, here = br.models.build(spec, 7, "second"), br.models.build(spec, 7)
    assert all(torch.equal(p.cpu(), q) for p, q in zip(there.parameters(), here.parameters(), strict=True))
