"""Sweeps: each trial is done once, scored on what it has not seen, and the same whether they stopped or not."""

import functools
import json
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import Future

import optuna
import pytest
import torch

import bayesrule as br
from bayesrule import jobs, sweeps
from bayesrule.cli import main
from bayesrule.methods import BBB
from bayesrule.sweeps import Choice, Log, Uniform, search, store, workers
from bayesrule.sweeps.job import SweepJob

RANGES = {"optimizer": Choice(["adam", "sgd"]), "lr": Log(1e-3, 1), "momentum": Uniform(0, 0.98)}
RANGES |= {"temperature": Log(1e-3, 1), "initial_std": Log(1e-3, 0.1)}


def moons():
    return br.data.moons(n=100, seed=0)


def network():
    return br.models.build({"name": "mlp", "inputs": 2, "outputs": 2, "hidden": [8]}, seed=0)


def sweep(train=None, model=None, **options):
    options = {"method": "bbb", "space": RANGES, "trials": 3, "epochs": 1, "sampler": "random"} | options
    return sweeps.sweep(model or network(), moons() if train is None else train, **options)


@functools.cache
def whole():
    """A sweep of the defaults that nothing has disturbed."""
    return sweep()


def outcome(found):
    return [(trial.number, trial.settings, trial.nll, trial.scores, trial.failed) for trial in found.trials]


@pytest.mark.parametrize(("sampler", "index"), [("random", 2), ("tpe", 11)])  # TPE is random until ten are done
def test_a_sweep_that_is_interrupted_goes_on_as_if_it_had_not(sampler, index, tmp_path, monkeypatch):
    options = {"sampler": sampler, "trials": index + 2, "seed": 3}
    longer = sweep(**options | {"trials": index + 3})
    path, told = tmp_path / "sweep.db", []
    with monkeypatch.context() as patched:
        patched.setattr(SweepJob, "train", interrupted_at(store.training_seed(3, index)))
        with pytest.raises(KeyboardInterrupt):
            sweep(**options, storage=path)
    found = sweep(**options, storage=path, callbacks=[told.append])
    assert outcome(found) == outcome(longer)[:-1]
    assert [at.trial.number for at in told] == [index, index + 1]
    assert [at.done for at in told] == [index + 1, index + 2]
    assert told[-1].best.number == found.best.number
    assert outcome(sweep(**options | {"trials": index + 3}, storage=path)) == outcome(longer)


def interrupted_at(broken, train=SweepJob.train):
    def trained(self, candidate, seed):
        if seed == broken:
            raise KeyboardInterrupt
        return train(self, candidate, seed)

    return trained


@pytest.fixture
def impatient(monkeypatch):
    """A worker counts as dead soon."""
    monkeypatch.setattr(store, "BEAT", 1)
    monkeypatch.setattr(store, "GRACE", 2)


def test_a_killed_sweep_goes_on(tmp_path, unpainted):
    line = ["sweep", "moons", "--method", "map", "--trials", "4", "--epochs", "15", "--sampler", "random", "--json"]
    out = ["--out", str(tmp_path / "killed")]
    process = subprocess.Popen(
        [sys.executable, "-m", "bayesrule", *line, *out], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert any(said.startswith("2/4") for said in process.stderr)
    time.sleep(0.1)  # into the third
    process.kill()
    process.communicate(timeout=60)
    results = []
    for folder in ("killed", "whole"):
        assert main([*line, "--out", str(tmp_path / folder)]) == 0
        results.append(json.loads((tmp_path / folder / "result.json").read_text())["trials"])
    for trial in (*results[0], *results[1]):
        del trial["seconds"]
    assert results[0] == results[1]
    url = store.url_of(tmp_path / "killed" / "sweep.db")
    with store.opened(url, "moons-map", "random", 0, RANGES) as kept:
        assert kept.running() == []
        assert [trial.state.name for trial in kept.study.trials].count("FAIL") <= 1


def test_two_jobs_do_each_trial_once(tmp_path):
    whole = sweep(trials=5)
    found = sweep(trials=5, jobs=2, storage=tmp_path / "sweep.db")
    assert outcome(found) == outcome(whole)
    assert found.running == 0
    again = sweep(trials=5, storage=tmp_path / "sweep.db", callbacks=[pytest.fail])
    assert outcome(again) == outcome(whole)


def test_workers_go_to_an_executor_and_need_a_storage_that_they_reach(tmp_path):
    handed_in = []

    class Here:
        def submit(self, fn, /, *args):
            handed_in.append(fn)
            found = Future()
            found.set_result(fn(*args))
            return found

    with jobs.on(Here()):
        with pytest.raises(ValueError, match="jobs=1 need a storage that processes share"):
            sweep()
        found = sweep(jobs=2, storage=tmp_path / "sweep.db")
    assert outcome(found) == outcome(whole())
    assert len(handed_in) == 2


def begin_elsewhere(path, index, heartbeat=True, **signed):
    """A trial of another worker, which does not go on with it."""
    with store.opened(store.url_of(path), "sweep", "random", 0, RANGES) as kept:
        kept.study.enqueue_trial({}, {store.INDEX: index} | signed)
        warnings.simplefilter("ignore", UserWarning)  # a heartbeat without optimize
        trial = kept.study.ask()
        if heartbeat:
            kept.storage.record_heartbeat(trial._trial_id)


@pytest.mark.parametrize("heartbeat", [True, False])
def test_a_trial_whose_worker_died_elsewhere_is_taken_again(heartbeat, tmp_path, impatient):
    path = tmp_path / "sweep.db"
    sweep(trials=1, storage=path)
    begin_elsewhere(path, 1, heartbeat)
    assert outcome(sweep(storage=path)) == outcome(whole())


@pytest.mark.parametrize("heartbeat", [True, False])
@pytest.mark.parametrize("signed", [store.QUEUED_BY, store.TAKEN_BY])
def test_a_trial_whose_worker_died_on_this_machine_is_taken_at_once(signed, heartbeat, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    path = tmp_path / "sweep.db"
    sweep(trials=1, storage=path)
    begin_elsewhere(path, 1, heartbeat, **{signed: [store.worker()[0], process.pid]})
    wanted, began = outcome(whole()), time.monotonic()
    assert outcome(sweep(storage=path)) == wanted
    assert time.monotonic() - began < store.GRACE / 2


def test_a_trial_whose_worker_works_is_not_taken():
    lives = [[store.worker()[0], os.getpid()], ["elsewhere", 1], store.worker()]
    with store.opened(None, "sweep", "random", 0, RANGES) as kept:
        for index, worker in enumerate(lives):
            kept.study.enqueue_trial({}, {store.INDEX: index, store.TAKEN_BY: worker})
            kept.study.ask()
        assert not kept.step(3, pytest.fail)
        assert len(kept.running()) == 3


def test_a_trial_that_is_alive_elsewhere_is_waited_for_and_left_alone(tmp_path, monkeypatch, impatient):
    path = tmp_path / "sweep.db"
    sweep(trials=1, storage=path)
    monkeypatch.setattr(store, "GRACE", 600)
    monkeypatch.setattr(search, "work", lambda *given, patience: workers.work(*given, patience=0.5))
    begin_elsewhere(path, 1)
    found = sweep(storage=path)
    assert [trial.number for trial in found.trials] == [0, 2]
    assert found.running == 1


def test_of_two_trials_for_one_index_the_later_is_dropped():
    trained = []

    def train(trial, index):
        trained.append((trial.number, index))
        return {"scores": {"nll": 0.0}}

    with store.opened(None, "sweep", "random", 0, RANGES) as kept:
        for index in (0, 0, 1, 2):
            kept.study.enqueue_trial({}, {store.INDEX: index})
        assert [kept.step(2, train) for _ in range(5)] == [True, True, True, True, False]
        assert trained == [(0, 0), (2, 1)]
        assert set(kept.done(2)) == {0, 1}


def test_an_index_that_others_took_in_the_meantime_is_given_up():
    with store.opened(None, "sweep", "random", 0, RANGES) as kept:

        def train(trial, index):
            kept.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            return {"scores": {"nll": 0.0}}

        assert kept.step(1, train)
        assert kept.done(1) == {}


def test_diverging_trials_are_recorded_and_do_not_stop_the_sweep():
    ranges = {"optimizer": Choice(["sgd"]), "lr": Log(1e-3, 1e30)}
    found = sweep(space=ranges, trials=8, sampler="tpe")
    failed = [trial for trial in found.trials if trial.failed]
    assert 0 < len(failed) < len(found.trials) == 8
    assert all(trial.nll == torch.inf and not trial.scores for trial in failed)
    assert all(" " in trial.failed for trial in failed)  # a sentence
    assert found.best.failed is None
    assert [row["failed"] is None for row in found.table()] == [True] * (8 - len(failed)) + [False] * len(failed)


def test_when_nothing_works_the_reason_is_told():
    found = sweep(space={"optimizer": Choice(["sgd"]), "lr": Log(1e29, 1e30)}, trials=2)
    with pytest.raises(ValueError, match=r"no trial of 2 gave a posterior: .+; narrow the space"):
        _ = found.best


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": 2}, "was begun with epochs 1, not 2"),
        ({"seed": 1}, "was begun with held-out data"),
        ({"sampler": "tpe"}, "was begun with sampler random, not tpe"),
        ({"space": {"lr": Log(1e-3, 1)}}, "was begun with space"),
        ({"method": BBB(samples=2)}, "was begun with method"),
        ({"train": br.data.moons(n=100, seed=1)}, "was begun with data"),
        ({"prior": "kaiming"}, "was begun with prior null, not"),
        ({"model": br.models.mlp(2, 2, hidden=(9,))}, "was begun with model"),
    ],
)
def test_another_sweep_is_not_continued(change, said, begun):
    with pytest.raises(ValueError, match=said):
        sweep(**{"trials": 1, "storage": begun} | change)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    path = tmp_path_factory.mktemp("begun") / "sweep.db"
    sweep(trials=1, storage=path)
    return path


def test_two_sweeps_in_a_storage(begun):
    assert len(sweep(trials=1, storage=begun, name="other", epochs=2).trials) == 1


def test_a_study_of_something_else_is_refused(tmp_path):
    with store.quiet():
        storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'x.db'}")
        optuna.create_study(storage=storage, study_name="sweep").ask()
        storage.remove_session()
        storage.engine.dispose()
    with pytest.raises(ValueError, match="the study 'sweep' is not one of a sweep: give another name"):
        sweep(storage=tmp_path / "x.db")


def test_the_best_trial_repeats():
    data, model = br.data.moons(n=100, seed=0), network()
    found = sweep(data, model, trials=4)
    best = found.best
    rest, held = search._cut(br.data.as_data(data), 0.2, 0)
    posterior = br.fit(model, rest, best.method, temperature=best.temperature, epochs=1, seed=best.seed)
    scores = br.evaluate(posterior, tuple(held), bootstrap=0)
    assert dict(scores) == best.scores
    assert scores["nll"] == best.nll == min(trial.nll for trial in found.trials)
    assert br.methods.from_spec(best.to_json()["method"]) == best.method
    assert found.table()[0]["number"] == best.number
    shares = sweep(data, model, trials=12).importance()
    assert set(shares) == set(RANGES)
    assert found.importance() == {}
    assert sum(shares.values()) == pytest.approx(1)


def test_what_is_held_out_is_not_trained_on():
    x, y = torch.arange(50.0)[:, None], torch.arange(50) % 2
    rest, held = search._cut(br.data.as_data((x, y)), 0.2, 0)
    assert rest.n == 40
    assert sorted([*rest.x[:, 0].tolist(), *held.x[:, 0].tolist()]) == x[:, 0].tolist()
    data = br.data.standardize((x, x[:, 0] * 3))
    rest, held = search._cut(data, 0.2, 0)
    torch.testing.assert_close(held.y, held.x[:, 0] * 3)  # in the user's units
    given, held = search._cut(data, (x[:3], y[:3]), 0)
    assert given is data
    assert torch.equal(held.x, x[:3])


def test_held_out_data_of_ones_own_and_reals():
    data = br.data.standardize(br.data.sine(seed=0))
    found = sweeps.sweep(br.models.mlp(1, 1, hidden=(8,)), data, "map", trials=2, epochs=2, val=br.data.sine(seed=1))
    assert {"rmse", "nll", "crps"} <= set(found.best.scores)


def test_nothing_of_the_users_changes():
    model, (x, y) = network(), moons()
    before = [p.clone() for p in model.parameters()], torch.get_rng_state(), optuna.logging.get_verbosity()
    sweep((x, y), model, trials=2)
    assert all(map(torch.equal, before[0], model.parameters()))
    assert torch.equal(before[1], torch.get_rng_state())
    assert optuna.logging.get_verbosity() == before[2]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"trials": 0}, "trials must be a whole number of at least 1, not 0"),
        ({"jobs": 1.5}, "jobs must be a whole number of at least 1, not 1.5"),
        ({"jobs": 2}, "jobs=2 need a storage that processes share"),
        ({"sampler": "grid"}, "unknown sampler 'grid'"),
        ({"epochs": 0}, "epochs must be at least 1 for bbb: 0 is for laplace, map"),
        ({"batch_size": -1}, "batch_size must be"),
        ({"method": "mc-dropout", "space": None, "model": torch.nn.Linear(2, 2)}, "drop"),
        ({"val": 0}, "val must be held-out data"),
        ({"val": None}, "not None: trials are scored on it"),
        ({"train": torch.utils.data.DataLoader([(torch.zeros(2), 0)])}, "cannot be cut from data behind a loader"),
        ({"model": br.models.mlp(3, 2, hidden=(8,))}, "mat1 and mat2|shape"),
    ],
)
def test_errors_come_before_any_training(options, error):
    with pytest.raises((ValueError, RuntimeError), match=error):
        sweep(**options)


def test_a_storage_that_cannot_be_opened(tmp_path):
    (tmp_path / "text.db").write_text("not a database, but long enough to be read as the header of one" * 9)
    for storage in (tmp_path / "text.db", "nonsense://user:secret@host/base"):
        with pytest.raises(OSError, match="storage must be a file, or a URL") as caught:
            sweep(storage=storage)
        assert "secret" not in str(caught.value)


def test_without_optuna(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "bayesrule.sweeps.store")
    monkeypatch.delattr(sweeps, "store")
    with pytest.raises(ImportError, match=r'pip install "bayesrule\[sweep\]"'):
        sweep()


@pytest.mark.parametrize("name", ["what?.db", "100%.db", "a%20b.db", "a?x=1&%41#{b}.db", "ü b.db"])
def test_a_storage_may_have_any_name(tmp_path, name):
    for _ in range(2):  # begun, and found again
        with store.opened(store.url_of(tmp_path / name), "sweep?%", "random", 0, RANGES) as kept:
            kept.study.set_user_attr("seen", kept.study.user_attrs.get("seen", 0) + 1)
            seen = kept.study.user_attrs["seen"]
    assert seen == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_model_of_every_width_and_a_method_of_every_name():
    space = {"method": Choice(["map", "bbb"]), "width": sweeps.Whole(3, 6), "prior": Log(0.1, 1), "lr": Log(1e-3, 0.1)}
    made = []

    def model(width):
        made.append(width)
        return br.models.mlp(2, 2, hidden=(width,))

    found = sweeps.sweep(model, moons(), None, space, trials=4, epochs=1, sampler="random")
    assert made[0] == 3  # to check the rest before the first trial
    assert made[1:] == [trial.settings["width"] for trial in found.trials]
    assert [trial.method.name for trial in found.trials] == [trial.settings["method"] for trial in found.trials]
    assert all(trial.method.lr == trial.settings["lr"] for trial in found.trials)
    with pytest.raises(ValueError, match="space has a width, but model is a module, which has one already"):
        sweeps.sweep(network(), moons(), "map", space, trials=1, epochs=1)
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module where the space has no width, not function"):
        sweeps.sweep(model, moons(), "map", {"lr": Log(1e-3, 0.1)}, trials=1, epochs=1)


def test_prior_and_epochs_reach_the_fit():
    found = sweeps.sweep(network(), moons(), "map", {"epochs": Choice([1, 40])}, trials=4, sampler="random")
    by = {trial.settings["epochs"]: trial.nll for trial in found.trials}
    assert by[40] < by[1]
    tight = sweeps.sweep(network(), moons(), "map", {"prior": Choice([1e-4])}, trials=1, epochs=30)
    assert abs(tight.best.nll - 0.693) < 0.01  # no weight may leave zero
