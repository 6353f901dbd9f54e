"""The loop: seeds, checkpoints, kills, guards."""

import functools
import math
import multiprocessing
import os
import random
import signal
import time

import killed
import pytest
import torch
from covering import covering
from networks import classes, mlp
from torch import nn

import bayesrule as br
from bayesrule import files
from bayesrule.files import FileError
from bayesrule.methods import BBB, IVON, MAP, SWAG, VOGN, Auto, Ensemble, Laplace, MCDropout
from bayesrule.training import Diverged, EarlyStopping, Folder

KILLS = {
    "map": MAP(),
    "mc-dropout": MCDropout(),
    "swag": SWAG(rank=3, snapshots=20),
    "ensemble": Ensemble(2),
    "bbb": BBB(optimizer="yellowfin", schedule=br.optim.Plateau("nll"), gradient="path"),
}
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["bayesrule"])  # imported once for all that are killed


def interrupted(out, method, sent, at):
    """Start a fit in another process and send it a signal once it has passed a step; its exit code."""
    steps, told = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=killed.fit, args=(method, out, told))
    process.start()
    told.close()
    with steps:
        while steps.recv() < at:
            pass
        time.sleep(random.Random(at).random() * 0.01)  # anywhere within the next steps, a write included
        os.kill(process.pid, sent)
        process.join(timeout=60)
    return process.exitcode


@functools.cache
def whole(name):
    """The fit that nothing has interrupted."""
    return br.fit(mlp(), classes(), KILLS[name], epochs=20, batch_size=16)


@pytest.mark.parametrize(("name", "sent"), covering(KILLS, SIGNALS, of=2))
def test_a_killed_run_resumes_to_the_bit(tmp_path, name, sent):
    sent = SIGNALS[sent]
    at = random.Random(f"{name}{sent}").randint(1, 50)
    code = interrupted(tmp_path / "run", KILLS[name], sent, at)
    assert code == (-signal.SIGKILL if sent == signal.SIGKILL else 143)
    assert not (tmp_path / "run" / "posterior.safetensors").exists()
    x = classes(seed=5)[0]
    resumed = br.resume(tmp_path / "run", mlp(seed=9), classes())
    assert torch.equal(resumed.predict(x).probs, whole(name).predict(x).probs)
    assert resumed.info["history"] == whole(name).info["history"]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) in (
        ["posterior.safetensors"],
        ["checkpoint.safetensors.partial", "posterior.safetensors"],
    )
    again = br.resume(tmp_path / "run", mlp(), classes())  # a finished run has nothing left to do
    assert torch.equal(again.predict(x).probs, whole(name).predict(x).probs)


def test_a_run_that_ends_leaves_its_posterior(tmp_path):
    posterior = br.fit(mlp(), classes(), MAP(), epochs=2, out=tmp_path / "run")
    loaded = br.load(tmp_path / "run" / "posterior.safetensors", mlp(seed=3))
    x = classes(seed=5)[0]
    assert torch.equal(loaded.predict(x).probs, posterior.predict(x).probs)
    assert loaded.info == posterior.info
    assert loaded.info["method"]["name"] == "map"
    assert loaded.info["n"] == 48


def test_a_directory_of_another_run_is_refused_and_kept(tmp_path):
    br.fit(mlp(), classes(), MAP(), epochs=1, out=tmp_path)
    before = (tmp_path / "posterior.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="holds another run"):
        br.fit(mlp(), classes(), SWAG(), epochs=5, out=tmp_path)
    assert (tmp_path / "posterior.safetensors").read_bytes() == before


class Explosive(nn.Module):
    """A network whose outputs are NaN from its seventh training step on."""

    def __init__(self):
        super().__init__()
        self.net, self.calls = mlp(), 0

    def forward(self, x):
        self.calls += self.training
        return self.net(x) * (float("nan") if self.calls > 6 else 1.0)


def test_a_nan_loss_names_the_step_and_keeps_the_checkpoint(tmp_path):
    with pytest.raises(Diverged, match=r"the loss is nan at step 6 \(epoch 2\); the last good checkpoint is .*run"):
        br.fit(Explosive(), classes(), MAP(), epochs=4, batch_size=16, out=Folder(tmp_path / "run", interval=0.0))
    saved = Folder(tmp_path / "run").saved()
    assert saved["step"] == 6
    assert all(w.isfinite().all() for w in saved["learner"]["network"].values())


def test_weights_that_overflow_are_never_saved(tmp_path):
    huge = MAP(lr=1e38)
    with pytest.raises(Diverged):
        br.fit(mlp(), classes(), huge, epochs=4, batch_size=16, out=Folder(tmp_path / "run", interval=0.0))
    assert all(w.isfinite().all() for w in Folder(tmp_path / "run").saved()["learner"]["network"].values())


def test_resume_needs_the_same_data_and_model(tmp_path):
    folder = Folder(tmp_path / "run", interval=0.0)
    with pytest.raises(Diverged):
        br.fit(Explosive(), classes(), MAP(), epochs=4, batch_size=16, out=folder)
    with pytest.raises(ValueError, match="training data are not those of the run"):
        br.resume(tmp_path / "run", Explosive(), classes(seed=1))
    with pytest.raises(ValueError, match="does not fit the model"):
        br.resume(tmp_path / "run", mlp(), classes())
    with pytest.raises(FileError, match="no such file"):
        br.resume(tmp_path / "elsewhere", mlp(), classes())


def test_progress_and_history():
    seen = []
    posterior = br.fit(mlp(), classes(), MAP(), epochs=3, batch_size=16, val=classes(seed=1), callbacks=[seen.append])
    assert [p.step for p in seen] == list(range(1, 10))
    assert [p.epoch_ended for p in seen] == [False, False, True] * 3
    history = posterior.info["history"]
    assert len(history) == 3
    assert history[0]["loss"] == pytest.approx(history[0]["nll"] + history[0]["penalty"])
    x, y = classes(seed=1)
    assert history[-1]["val_nll"] == pytest.approx(-float(posterior.predict(x).log_prob(y).mean()))


def test_early_stopping_stops():
    x, y = classes(24)
    far = (x, (y + 1) % 3)  # the better the fit, the worse on these
    posterior = br.fit(mlp(), (x, y), MAP(), epochs=50, val=far, callbacks=[EarlyStopping(patience=2)])
    assert len(posterior.info["history"]) == 3
    with pytest.raises(ValueError, match=r"watches 'val_nll'.*give fit\(val="):
        br.fit(mlp(), (x, y), MAP(), epochs=5, callbacks=[EarlyStopping()])


class Falling(EarlyStopping):
    """As if the epoch ``lowest`` were the best of all, whatever was measured."""

    lowest = 1

    def best(self, history):
        return min(self.lowest, len(history) - 1)


KINDS = [
    MAP(),
    MCDropout(),
    Ensemble(2),
    SWAG(rank=2, snapshots=20, burn_in=0.0),
    IVON(),
    BBB(),
    Laplace(),
    VOGN(),
    Auto(),
]


@pytest.mark.parametrize("method", KINDS, ids=lambda method: method.name)
def test_early_stopping_keeps_the_best_epoch(method):
    """To the bit what a fit is that somebody stops at the end of that epoch."""
    x, y = classes()
    settings = {"epochs": 12, "batch_size": 16, "val": classes(seed=1)}
    stopped = br.fit(mlp(), (x, y), method, **settings, callbacks=[lambda at: at.epoch == 1])
    kept = br.fit(mlp(), (x, y), method, **settings, callbacks=[Falling(patience=3)])
    assert kept.info["best_epoch"] == 1
    assert len(kept.info["history"]) == 5
    assert len(stopped.info["history"]) == 2
    assert files.digest(kept.state()) == files.digest(stopped.state())


def test_an_epoch_without_a_number_is_never_the_best():
    history = [{"val_nll": value} for value in (math.nan, 1.0, 0.5, 0.6)]
    assert EarlyStopping().best(history) == 2


def test_the_best_epoch_is_the_one_with_the_lowest_value():
    """Of a fit that goes to its end, too: its NLL of the held-out examples is the lowest of the history."""
    x, y = classes(24)
    held = classes(48, seed=1)
    posterior = br.fit(mlp(), (x, y), MAP(lr=0.1), epochs=40, val=held, callbacks=[EarlyStopping(patience=100)])
    seen = [epoch["val_nll"] for epoch in posterior.info["history"]]
    assert len(seen) == 40
    assert seen[-1] > min(seen) + 0.01
    assert -float(posterior.predict(held[0]).log_prob(held[1]).mean()) == pytest.approx(min(seen), abs=1e-6)
    assert seen[posterior.info["best_epoch"]] == min(seen)


@pytest.mark.parametrize("method", [MAP(), Ensemble(2), IVON()], ids=lambda method: method.name)
@pytest.mark.parametrize("cut_at", [2, 7, 14])
def test_the_best_epoch_survives_a_resume(tmp_path, method, cut_at):
    """Cut before it, after it and shortly before the stop."""

    class PowerCut(Exception):
        pass

    def cut(at):
        if at.step == cut_at:
            raise PowerCut

    x, y = classes()
    val, stop = classes(seed=1), Falling(patience=3)
    settings = {"epochs": 12, "batch_size": 16, "val": val}
    whole = br.fit(mlp(), (x, y), method, **settings, callbacks=[stop])
    with pytest.raises(PowerCut):
        br.fit(mlp(), (x, y), method, **settings, callbacks=[stop, cut], out=Folder(tmp_path / "run", interval=0))
    resumed = br.resume(tmp_path / "run", mlp(), (x, y), val=val, callbacks=[stop])
    assert resumed.info["best_epoch"] == 1
    assert files.digest(resumed.state()) == files.digest(whole.state())


def test_a_fit_without_early_stopping_ends_with_its_last_epoch():
    posterior = br.fit(mlp(), classes(), MAP(), epochs=2, val=classes(seed=1))
    assert posterior.info["best_epoch"] is None


@pytest.mark.parametrize("method", [MCDropout(), Ensemble(2), SWAG(rank=2, snapshots=3)])
def test_watching_changes_nothing(method):
    x = classes(seed=5)[0]
    settings = {"epochs": 3, "batch_size": 16}
    plain = br.fit(mlp(), classes(), method, **settings).predict(x).probs
    watched = br.fit(mlp(), classes(), method, val=classes(seed=1), **settings).predict(x).probs
    assert torch.equal(plain, watched)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"epochs": -1}, "epochs must be a whole number of at least 0, not -1"),
        ({"epochs": 0}, "epochs must be at least 1 for ensemble: 0 is for laplace, map, mc-dropout, mle on a trained"),
        ({"batch_size": -3}, "batch_size must be at least 1, got -3"),
        ({"temperature": 0.0}, "temperature must be positive and finite, not 0.0"),
        ({"temperature": float("nan")}, "temperature must be positive"),
        ({"method": "mapp"}, "did you mean 'map'"),
        ({"likelihood": "categoric"}, "did you mean 'categorical'"),
        ({"prior": "kaming"}, "unknown prior 'kaming'"),
        ({"method": MAP(lr=-1.0)}, "lr must be positive and finite, not -1.0"),
        ({"method": SWAG(), "epochs": 1, "batch_size": 48}, "swag needs at least 2 steps, but the fit has 1"),
    ],
)
def test_wrong_settings_are_refused_before_training(settings, match):
    with pytest.raises(ValueError, match=match):
        br.fit(mlp(), classes(), **settings)
