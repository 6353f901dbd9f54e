"""How sure answers are, settled on data that the weights have not seen."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

import bayesrule as br
from bayesrule.data import Batch
from bayesrule.likelihoods import Bernoulli, Categorical, Gaussian
from bayesrule.posteriors import Context, Particles, calibrate, recalibrated

SEEDS = range(20)


def drawn(n, scale, classes=3, seed=0):
    """Logits that are `scale` times those which the labels were drawn from."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    y = Categorical().sample(logits, generator)
    return scale * logits, y


def settled(logits, y, likelihood=None):
    return calibrate(likelihood or Categorical(), lambda likelihood: likelihood.log_prob(logits, y))


class Identity(nn.Module):
    """Inputs are outputs; the weight is there to have one."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return self.one * x


def posterior_of(likelihood=None, weights=(1.0,)):
    networks = [{"one": torch.tensor(w, dtype=torch.float64)} for w in weights]
    return Particles(networks, Context(Identity(), likelihood or Categorical()))


def test_it_is_the_optimum_in_closed_form():
    """All logits are ±f and a share q is right: NLL is least at T = f/logit(q), the prior moves that by O(1/n)."""
    n, f, q = 100_000, 5.0, 0.9
    y = (torch.arange(n) % 10 < 10 * q).double()
    found, told = settled(torch.full((n,), f, dtype=torch.float64), y, Bernoulli())
    assert told["chosen"] == "temperature"
    assert float(found.temperature) == pytest.approx(f / math.log(q / (1 - q)), rel=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_the_optimum_that_a_search_finds(seed):
    logits, y = drawn(200, 3.0, seed=seed)

    def minus(log_t):
        return -float(Categorical(math.exp(log_t)).log_prob(logits, y).sum()) + log_t**2 / 2

    wanted = math.exp(minimize_scalar(minus, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9}).x)
    found, _ = settled(logits, y)
    assert float(found.temperature) == pytest.approx(wanted, rel=1e-4)


def test_a_mixture_is_judged_as_a_mixture():
    """Two networks, sure of opposite things half of the time: the temperature is that of the average probability."""
    generator = torch.Generator().manual_seed(0)
    x = 6 * torch.randn(400, 2, generator=generator, dtype=torch.float64)
    y = Categorical().sample(x / 4, generator)
    found = recalibrated(posterior_of(weights=(1.0, 0.5)), (x, y))

    def minus(log_t):
        outputs = torch.stack([x, 0.5 * x]) / math.exp(log_t)
        return -float(outputs.softmax(2).mean(0)[torch.arange(400), y].log().sum()) + log_t**2 / 2

    wanted = math.exp(minimize_scalar(minus, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9}).x)
    assert float(found.likelihood.temperature) == pytest.approx(wanted, rel=1e-4)


def test_what_is_calibrated_stays_at_one():
    """20 to 1 are wanted: of 60 calibrated predictions at most 3 may be moved, and one more is an accident in 10⁵."""
    moved = sum(settled(*drawn(n, 1.0, seed=seed))[1]["chosen"] is not None for seed in SEEDS for n in (40, 200, 1000))
    assert moved <= 3


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_what_was_scaled_comes_back(scale):
    """To within three deviations of an estimate from so many examples, at every seed."""
    n = 2000
    errors = []
    for seed in SEEDS:
        logits, y = drawn(n, scale, seed=seed)
        found, told = settled(logits, y)
        assert told["chosen"] == "temperature"
        assert told["tried"]["temperature"]["nll"] < told["nll"]
        errors.append(math.log(float(found.temperature) / scale))
    spread = torch.tensor(errors).std()
    assert spread < 0.1
    assert abs(sum(errors) / len(errors)) < 4 * spread / len(errors) ** 0.5
    assert max(map(abs, errors)) < 4 * spread


def test_answers_that_are_all_right_do_not_ask_for_certainty():
    logits, y = torch.tensor([[3.0, 0.0]], dtype=torch.float64).expand(36, 2), torch.zeros(36, dtype=torch.int64)
    found, told = settled(logits, y)
    assert told["chosen"] is None
    assert found.temperature is None
    assert told["tried"]["temperature"]["value"] > 0.3  # where it would be: not at zero


def test_too_few_examples_tell_nothing():
    logits, y = drawn(19, 10.0)
    found, told = settled(logits, y)
    assert found.temperature is None
    assert told == {"chosen": None, "examples": 19, "nll": told["nll"], "tried": {}}


def test_weights_count_as_copies():
    logits, y = drawn(200, 3.0)
    weight = torch.randint(1, 4, (200,), generator=torch.Generator().manual_seed(0)).double()
    times = weight.long()
    copies = recalibrated(posterior_of(), (logits.repeat_interleave(times, 0), y.repeat_interleave(times)))
    weighted = recalibrated(posterior_of(), Batch(logits, y, weight))
    # the prior counts once for all examples, whose number is that of rows
    assert float(weighted.likelihood.temperature) == pytest.approx(float(copies.likelihood.temperature), rel=0.02)


def test_it_is_in_every_prediction_and_in_the_file(tmp_path):
    logits, y = drawn(500, 3.0)
    posterior = recalibrated(posterior_of(), (logits, y))
    temperature = float(posterior.likelihood.temperature)
    torch.testing.assert_close(posterior.predict(logits).probs, (logits / temperature).softmax(1))
    assert posterior.info["calibration"]["chosen"] == "temperature"
    posterior.save(tmp_path / "p.safetensors")
    again = br.load(tmp_path / "p.safetensors", Identity())
    assert again.likelihood.temperature == posterior.likelihood.temperature
    assert torch.equal(again.predict(logits).probs, posterior.predict(logits).probs)
    assert again.info["calibration"] == posterior.info["calibration"]


def test_a_file_from_before_there_were_temperatures_is_read(tmp_path):
    posterior = posterior_of()
    tree = posterior.tree()
    tree["likelihood"] = {"name": "categorical", "fields": {}}
    br.posteriors.base.files.save(tmp_path / "old", br.posteriors.base.files.sealed(tree), "posterior")
    assert br.load(tmp_path / "old", Identity()).likelihood.temperature is None


def test_it_is_settled_anew_from_where_training_left_it():
    logits, y = drawn(500, 3.0)
    once = recalibrated(posterior_of(), (logits, y))
    twice = recalibrated(once, (logits, y))
    assert twice.likelihood.temperature == once.likelihood.temperature
    assert twice.info["calibration"]["nll"] == once.info["calibration"]["nll"]


def test_reals_and_known_temperatures_are_left_alone():
    x, y = torch.randn(50, 1, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    reals = posterior_of(Gaussian(1.0))
    assert recalibrated(reals, (x, y)) is reals
    logits, labels = drawn(500, 3.0)
    known = posterior_of(Categorical(1.0))
    assert recalibrated(known, (logits, labels)) is known


def overconfident(val):
    """Half of the labels are flipped at random, and an unregularised network learns them by heart."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(160, 8, generator=generator)
    y = ((x[:, 0] > 0) ^ (torch.rand(160, generator=generator) < 0.3)).long()
    torch.manual_seed(0)
    model = br.models.mlp(8, 2, hidden=(32,))
    return br.fit(model, (x, y), br.methods.MAP(lr=0.03), prior=100.0, epochs=80, batch_size=40, val=val)


def test_a_fit_settles_it_on_val():
    posterior = overconfident(0.4)
    assert posterior.info["calibration"]["chosen"] == "temperature"
    assert float(posterior.likelihood.temperature) > 2
    assert posterior.info["calibration"]["examples"] == 64


def test_a_fit_without_val_leaves_it_open():
    posterior = overconfident(None)
    assert posterior.likelihood.temperature is None
    assert "calibration" not in posterior.info


def test_auto_settles_it_on_what_it_holds_out_itself():
    x, y = br.data.moons(n=200, seed=0)
    posterior = br.fit(br.models.tabular(2, 2, hidden=(8,)), (x, y), "auto", epochs=20)
    told = posterior.info["calibration"]
    assert told["examples"] == 200
    assert list(told["tried"]) == ["temperature"]
