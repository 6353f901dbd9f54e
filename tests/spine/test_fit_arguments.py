"""What a fit takes, in which forms, and what it refuses."""

import numpy as np
import pytest
import torch
from networks import classes, mlp
from torch import nn

import bayesrule as br
from bayesrule.methods import MAP, SWAG, Ensemble
from bayesrule.training import Diverged

X, Y = classes()


def test_raw_targets_draw_advice():
    with pytest.warns(UserWarning, match=r"targets are off the model's outputs by .*standardize"):
        br.Task.create(mlp(1), (X, 10_000 + X[:, 0]))


def test_a_share_of_a_loader_cannot_be_held_out():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8)
    with pytest.raises(ValueError, match=r"val=0.2 cannot be cut from data behind a loader"):
        br.fit(mlp(), loader, MAP(), epochs=1, val=0.2)


def test_validation_data_are_checked_before_training():
    seen = []
    with pytest.raises(ValueError, match="3"):
        br.fit(mlp(), (X, Y), MAP(), epochs=1, val=(X, Y + 5), callbacks=[seen.append])
    assert seen == []


def test_numpy_numbers_are_numbers(tmp_path):
    method = Ensemble(np.int64(2), MAP(lr=np.float32(0.01)))
    settings = {"seed": np.int64(3), "epochs": np.int64(1), "temperature": np.float32(1.0)}
    br.fit(mlp(), (X, Y), method, prior=br.priors.Gaussian(np.float64(2.0)), **settings).save(tmp_path / "p")
    assert br.load(tmp_path / "p", mlp()).info["seed"] == 3


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: br.fit(mlp(), (X, Y), seed=None), "seed must be a whole number"),
        (lambda: Ensemble(2.5), "members must be a whole number"),
        (lambda: SWAG(swa_lr_ratio=-1.0), "swa_lr_ratio must lie in"),
        (lambda: br.fit(mlp(), (X, Y), prior="structured"), "unknown prior 'structured'"),
    ],
)
def test_wrong_values_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_prior_is_no_method():
    with pytest.raises(TypeError, match="method must be a name or a method object, not Gaussian"):
        br.fit(mlp(), (X, Y), br.priors.Gaussian())


def test_overflow_at_the_end_of_an_epoch_is_divergence():
    with pytest.raises(Diverged, match="no longer finite after step"):
        br.fit(mlp(1), (X, X[:, 0]), MAP(lr=1e38), epochs=1, batch_size=48, val=0.2)


def test_missing_parts_of_the_inputs_are_named():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, a, b):
            return self.net(a) + b.sum()

    with pytest.raises(ValueError, match=r"cannot take the inputs \(X\['a'\].*unexpected keyword argument 'c'"):
        br.Task.create(Two(), ({"a": X, "c": X}, Y))


def test_a_number_is_the_scale_of_a_gaussian_prior():
    numbers = [br.fit(mlp(), (X, Y), MAP(), prior=prior, epochs=2) for prior in (0.5, br.priors.Gaussian(0.5))]
    assert torch.equal(*(posterior.predict(X).probs for posterior in numbers))
    assert numbers[0].info["prior"]["fields"]["scale"] == 0.5
    assert not torch.equal(numbers[0].predict(X).probs, br.fit(mlp(), (X, Y), MAP(), epochs=2).predict(X).probs)


@pytest.mark.parametrize("prior", [True, -0.5, 0.0])
def test_not_every_number_is_a_scale(prior):
    with pytest.raises((TypeError, ValueError), match=r"prior|scale"):
        br.fit(mlp(), (X, Y), MAP(), prior=prior, epochs=1)


def test_progress_is_shown_when_asked_for(capsys, tmp_path):
    silent = br.fit(mlp(), (X, Y), MAP(), epochs=2)
    assert capsys.readouterr() == ("", "")
    shown = br.fit(mlp(), (X, Y), MAP(), epochs=2, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("map: epoch 2 of 2, NLL ")
    assert torch.equal(silent.predict(X).probs, shown.predict(X).probs)


def test_progress_of_a_resumed_fit(capsys, tmp_path):
    def cut(at):
        if at.step == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        br.fit(mlp(), (X, Y), MAP(), epochs=2, callbacks=[cut], out=br.training.Folder(tmp_path, interval=0))
    br.resume(tmp_path, mlp(), (X, Y), progress=True)
    assert capsys.readouterr().err.startswith("map: epoch 2 of 2, NLL ")


def test_lines_of_progress_say_how_much_time_is_left(capsys, monkeypatch):
    clock = iter(range(0, 1000, 10))  # seconds at each look
    monkeypatch.setattr("bayesrule.training.progress.time.monotonic", lambda: next(clock))
    with br.training.progress.shown("map") as tell:
        for step in (5, 6, 7):  # resumed after four of ten steps
            tell(br.training.Progress(step, 10, 0, 1, False, {"loss": 1.0}, []))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("NLL 1")[2] for line in lines] == [", 50 s left", ", 40 s left", ", 30 s left"]


def test_progress_on_a_terminal_is_a_bar(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    br.fit(mlp(), (X, Y), MAP(), epochs=2, progress=True)
    assert "NLL" in capsys.readouterr().err


def test_float_answers_are_learnt_as_such():
    answers = (X[:, :1] > 0).float()  # as BCEWithLogitsLoss wants them
    posterior = br.fit(mlp(1), (X, answers), MAP(), epochs=100)
    assert posterior.likelihood.name == "bernoulli"
    assert (posterior.predict(X).label == answers[:, 0]).float().mean() > 0.9
    assert br.fit(mlp(1), (X, answers), MAP(), "gaussian", epochs=1).likelihood.name == "gaussian"


def test_all_targets_decide_not_the_first_ones():
    y = (torch.arange(3000) % 2).double()
    y[-1] = 0.5
    assert br.Task.create(nn.Linear(1, 1).double(), (y[:, None], y)).likelihood.name == "gaussian"


def test_one_hot_floats_are_asked_about():
    with pytest.raises(ValueError, match=r"looks one-hot: pass y.argmax"):
        br.fit(mlp(), (X, nn.functional.one_hot(Y).float()), MAP(), epochs=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_probabilities_in_the_place_of_logits_draw_advice(dtype):
    with pytest.warns(UserWarning, match="outputs are probabilities.* takes logits.*leave out the softmax"):
        br.Task.create(nn.Sequential(mlp(), nn.Softmax(1)).to(dtype), (X, Y))
    br.Task.create(nn.Sequential(mlp(), nn.LogSoftmax(1)).to(dtype), (X, Y))
    br.Task.create(nn.Sequential(mlp(), nn.Sigmoid()).to(dtype), (X, Y))


def trained(outputs, data):
    posterior = br.fit(mlp(outputs), data, MAP(lr=0.05), epochs=200, val=0)
    network = mlp(outputs)
    network.load_state_dict(posterior.states[0])
    return network


NOISY = X[:, 0] + 0.3 * torch.randn(len(X), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("outputs", "y"), [(3, Y), (1, (X[:, 0] > 0).float()), (1, NOISY)], ids=["c", "b", "r"])
def test_an_ensemble_says_what_becomes_of_trained_weights(outputs, y):
    network = trained(outputs, (X, y))
    with pytest.warns(
        UserWarning, match="the first member of the ensemble goes on from it, but the other 1 start from"
    ):
        posterior = br.fit(network, (X, y), Ensemble(2), epochs=100)
    assert posterior.info["diagnostics"]["starts"] == ["the module's own weights", "drawn anew"]
    for seed in range(20):  # weights drawn at random are no training, and a warning is an error here
        br.fit(mlp(outputs, seed=seed), (X, y), Ensemble(1), epochs=1)
