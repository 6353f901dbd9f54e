"""Sweeps: what is drawn, what it becomes, and that a sweep goes on as if it had never stopped."""

import json
import os
import re
import socket
import subprocess
import sys
import time

import optuna
import pytest
import torch

import bayesrule as br
from bayesrule import sweeps
from bayesrule.cli import main
from bayesrule.methods import BBB, MAP, SWAG, Ensemble, MCDropout
from bayesrule.optim import Recipe
from bayesrule.sweeps import Choice, Log, Uniform, Whole, default_space, parse_space, search, store, workers
from bayesrule.sweeps.space import Space

RANGES = {"optimizer": Choice(["adam", "sgd"]), "lr": Log(1e-3, 1), "momentum": Uniform(0, 0.98)}
RANGES |= {"temperature": Log(1e-3, 1), "initial_std": Log(1e-3, 0.1)}


def moons():
    return br.data.moons(n=100, seed=0)


def network():
    return br.models.build({"name": "mlp", "inputs": 2, "outputs": 2, "hidden": [8]}, seed=0)


def sweep(train=None, model=None, **options):
    options = {"space": RANGES, "trials": 3, "epochs": 1, "sampler": "random"} | options
    return sweeps.sweep(model or network(), moons() if train is None else train, **options)


def outcome(found):
    return [(trial.number, trial.settings, trial.nll, trial.scores, trial.failed) for trial in found.trials]


# ranges and spaces


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-4:1:log", Log(1e-4, 1)),
        ("0:0.99", Uniform(0, 0.99)),
        ("2:40:int", Whole(2, 40)),
        ("adam,sgd", Choice(["adam", "sgd"])),
        ("1,2,4", Choice([1, 2, 4])),
        ("none,kaiming", Choice([None, "kaiming"])),
    ],
)
def test_a_range_in_words(text, expected):
    assert parse_space([f"x={text}"]) == {"x": expected}
    assert parse_space([f"x={expected}"]) == {"x": expected}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["lr"], "--space must be FIELD=RANGE, such as lr=1e-4:1:log, got 'lr'"),
        (["lr="], "must be FIELD=RANGE"),
        (["lr=1:0.1"], "--space lr: low must be at most high, and both finite, not 1.0 and 0.1"),
        (["lr=0:1:log"], "low of a Log range must be positive, not 0.0"),
        (["lr=0:1:lin"], "a range must be LOW:HIGH, LOW:HIGH:log, LOW:HIGH:int, or A,B,…, not '0:1:lin'"),
        (["lr=0:inf"], "both finite"),
        (["lr=a:b"], "a range must be"),
        (["rank=2:4.5:int"], "high of a Whole range must be a whole number, not 4.5"),
        (["lr=1,1"], "options must be different values"),
        (["lr=0:1", "lr=0:2"], "--space must name each field once, got lr twice"),
    ],
)
def test_words_that_are_no_space(words, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        parse_space(words)


@pytest.mark.parametrize(
    ("ranges", "method", "error"),
    [
        ({}, BBB(), "space must name at least one setting of bbb"),
        ({"lrr": Log(1e-3, 1)}, MAP(), "unknown setting of map 'lrr': did you mean 'lr'?"),
        ({"momentun": Log(1e-3, 1)}, BBB(), "did you mean 'momentum'?"),
        ({"base.rank": Whole(2, 4)}, Ensemble(), "unknown setting of map 'rank'"),
        ({"base": Choice(["map", "swag"])}, Ensemble(), "it is a method: search its fields, base.lr"),
        ({"momentum": Uniform(0, 0.9)}, BBB(), "space['momentum'] is never drawn: the optimizer is adam"),
        ({"sgd.momentum": Uniform(0, 0.9)}, BBB(), "is never drawn"),
        ({"adam.momentum": Uniform(0, 0.9)}, BBB(), "unknown setting of bbb 'momentum'"),
        ({"momentum": Uniform(0, 0.9), "optimizer.momentum": Uniform(0, 1)}, BBB(optimizer="sgd"), "are the same"),
        ({"sigma_lr": Log(1e-5, 1), "sigma_lr_ratio": Log(1e-3, 1)}, BBB(), "are the same"),
        ({"momentum": Uniform(-2, 0.9)}, BBB(optimizer="sgd"), "space must hold only what bbb can be"),
        ({"optimizer": Choice(["adam", "adan"])}, BBB(), "unknown optimizer 'adan'"),
        ({"temperature": Uniform(0, 1)}, BBB(), "temperature must be a positive number, not 0.0"),
        ({"wander": Uniform(0.1, 2)}, SWAG(), "wander must lie in (0, 1], not 2.0"),
        ({"rank": Uniform(2, 4)}, SWAG(), "space['rank'] must be whole numbers, not 2.0:4.0: Whole(2, 40)"),
        ({"estimator": Uniform(0, 1)}, BBB(), "space['estimator'] must be a choice"),
    ],
)
def test_spaces_that_cannot_be(ranges, method, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        Space(ranges, method)


def test_a_range_must_be_one():
    with pytest.raises(TypeError, match="must be a range such as Log"):
        Space({"lr": (0, 1)}, MAP())
    with pytest.raises(TypeError, match="options must be a list, not the text 'adam'"):
        Choice("adam")
    with pytest.raises(TypeError, match="options must be numbers, texts, booleans or None"):
        Choice([(0.9, 0.99)])


def test_settings_become_a_method():
    ranges = {
        "optimizer": Choice(["adam", "sgd", "yellowfin"]),
        "lr": Log(1e-3, 1),
        "yellowfin.lr": Log(0.1, 10),
        "sgd.momentum": Uniform(0, 0.9),
        "beta1": Uniform(0.5, 0.95),
        "sigma_lr": Log(1e-5, 1e-1),
        "temperature": Log(1e-3, 1),
    }
    space = Space(ranges, BBB(initial_std=0.05))
    drawn = [
        set(space.draw(lambda key, of, i=i: of.options[i] if isinstance(of, Choice) else of.low)) for i in range(3)
    ]
    common = {"optimizer", "sigma_lr", "temperature"}
    assert drawn == [common | {"lr", "beta1"}, common | {"lr", "sgd.momentum"}, common | {"yellowfin.lr"}]

    adam = space.candidate({"optimizer": "adam", "lr": 0.1, "beta1": 0.8, "sigma_lr": 0.01, "temperature": 0.5})
    assert adam.temperature == 0.5
    assert adam.method == BBB(
        lr=0.1, sigma_lr_ratio=0.1, initial_std=0.05, optimizer=Recipe("adam", {"betas": (0.8, 0.999)})
    )
    sgd = space.candidate({"optimizer": "sgd", "lr": 0.2, "sgd.momentum": 0.7, "sigma_lr": 0.02})
    assert sgd.temperature is None
    assert sgd.method.optimizer == Recipe("sgd", {"momentum": 0.7})
    assert sgd.assignments == {"optimizer": "sgd", "lr": 0.2, "optimizer.momentum": 0.7, "sigma_lr_ratio": 0.1}
    assert space.candidate({"optimizer": "yellowfin", "yellowfin.lr": 2.0}).method.lr == 2.0


def test_usual_spaces():
    assert set(default_space(BBB())) == {
        "optimizer",
        "yellowfin.lr",
        "sgd.momentum",
        "lr",
        "sigma_lr_ratio",
        "temperature",
        "initial_std",
    }
    assert set(default_space(SWAG())) == {"lr", "rank", "wander"}
    assert set(default_space(MCDropout())) == {"lr", "rate"}
    assert set(default_space(Ensemble(base=BBB()))) >= {"base.lr", "base.sgd.momentum", "temperature"}
    for name in br.methods.available():
        method = br.methods.choose(name)
        Space(default_space(method), method)


def test_a_usual_space_without_what_is_set():
    assert "sgd.momentum" not in default_space(BBB(), {"optimizer.momentum"})
    assert not {"lr", "yellowfin.lr"} & set(default_space(BBB(), {"lr"}))
    sgd, yellowfin = (default_space(BBB(optimizer=name), {"optimizer"}) for name in ("sgd", "yellowfin"))
    assert {"sgd.momentum", "lr"} <= set(sgd)
    assert "yellowfin.lr" not in sgd
    assert "yellowfin.lr" in yellowfin
    assert not {"sgd.momentum", "lr", "optimizer"} & set(yellowfin)
    Space(sgd, BBB(optimizer="sgd"))
    Space(yellowfin, BBB(optimizer="yellowfin"))
    with pytest.raises(ValueError, match="space must be given for map: no field of it but lr has a usual range"):
        default_space(MAP(), {"lr"})


def test_without_the_package_its_optimisers_are_left_out(monkeypatch):
    monkeypatch.setattr("bayesrule.sweeps.space.find_spec", lambda name: None)
    assert not {"adabound", "amsbound"} & set(default_space(BBB())["optimizer"].options)


# sweeps


@pytest.mark.parametrize(("sampler", "place"), [("random", 2), ("tpe", 11)])  # TPE is random until ten are done
def test_a_sweep_that_is_interrupted_goes_on_as_if_it_had_not(sampler, place, tmp_path, monkeypatch):
    options = {"sampler": sampler, "trials": place + 2, "seed": 3}
    longer = sweep(**options | {"trials": place + 3})
    path, told = tmp_path / "sweep.db", []
    with monkeypatch.context() as patched:
        patched.setattr(workers._Pulse, "__call__", lambda self, at: raise_at(self.trial, place))
        with pytest.raises(KeyboardInterrupt):
            sweep(**options, storage=path)
    found = sweep(**options, storage=path, callbacks=[told.append])
    assert outcome(found) == outcome(longer)[:-1]
    assert [at.trial.number for at in told] == [place, place + 1]
    assert [at.done for at in told] == [place + 1, place + 2]
    assert told[-1].best.number == found.best.number
    assert outcome(sweep(**options | {"trials": place + 3}, storage=path)) == outcome(longer)


def raise_at(trial, place):
    if trial.user_attrs["place"] == place:
        raise KeyboardInterrupt


def test_a_killed_sweep_goes_on(tmp_path):
    line = ["sweep", "moons", "--trials", "4", "--epochs", "20", "--sampler", "random", "--hidden", "8", "--json"]
    out = ["--out", str(tmp_path / "killed")]
    process = subprocess.Popen(
        [sys.executable, "-m", "bayesrule", *line, *out], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert any(said.startswith("2/4") for said in process.stderr)
    time.sleep(0.15)  # into the third
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
    with store.opened(url, "moons-bbb", "random", 0, RANGES) as kept:
        assert kept.running() == []
        assert [trial.state.name for trial in kept.study.trials].count("FAIL") == 1


def test_two_jobs_do_each_trial_once(tmp_path):
    whole = sweep(trials=5)
    found = sweep(trials=5, jobs=2, storage=tmp_path / "sweep.db")
    assert outcome(found) == outcome(whole)
    assert found.running == 0
    again = sweep(trials=5, storage=tmp_path / "sweep.db", callbacks=[pytest.fail])
    assert outcome(again) == outcome(whole)


def test_a_trial_whose_worker_died_is_taken_again(tmp_path):
    here = socket.gethostname()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    now = time.time()
    died = [(here, dead.pid, now), ("elsewhere", 1, now - 2 * store.GRACE), (here, os.getpid(), now - 2 * store.GRACE)]
    lives = [(here, os.getpid(), now), ("elsewhere", 1, now)]
    with store.opened(None, "sweep", "random", 0, RANGES) as kept:
        for place, worker in enumerate([*died, *lives]):
            trial, claimed = kept.claim(9)
            assert claimed == place
            trial.set_user_attr(store.WORKER, worker)
        kept.retire()
        assert [trial.number for trial in kept.running()] == [3, 4]
        assert [kept.claim(6)[1] for _ in range(4)] == [0, 1, 2, 5]
        assert kept.claim(6) is None


def test_a_lower_ticket_chooses_first(monkeypatch):
    monkeypatch.setattr(store, "PATIENCE", 0.2)
    with store.opened(None, "sweep", "random", 0, RANGES) as kept:
        kept.study.ask()  # somebody who has not chosen yet, and never will
        began = time.monotonic()
        assert kept.claim(2)[1] == 0
        assert time.monotonic() - began >= 0.15
        assert kept.claim(2)[1] == 1


def test_a_place_that_others_took_in_the_meantime_is_given_up():
    with store.opened(None, "sweep", "random", 0, RANGES) as kept:
        trial, _ = kept.claim(1)
        kept.drop(trial)
        kept.live(trial)
        kept.finish(trial, {"scores": {"nll": 0.0}}, 0.0)
        assert kept.done(1) == {}


def test_diverging_trials_are_recorded_and_do_not_stop_the_sweep():
    ranges = {"optimizer": Choice(["sgd"]), "lr": Log(1e-3, 1e30)}
    found = sweep(space=ranges, trials=8, sampler="tpe")
    failed = [trial for trial in found.trials if trial.failed]
    assert 0 < len(failed) < len(found.trials) == 8
    assert all(trial.nll == torch.inf and not trial.scores for trial in failed)
    assert any("the loss is nan" in trial.failed for trial in failed)
    assert found.best.failed is None
    assert [row["failed"] is None for row in found.table()] == [True] * (8 - len(failed)) + [False] * len(failed)


def test_when_nothing_works_the_reason_is_told():
    found = sweep(space={"optimizer": Choice(["sgd"]), "lr": Log(1e29, 1e30)}, trials=2)
    with pytest.raises(ValueError, match="no trial of 2 gave a posterior: the loss is nan at step"):
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
