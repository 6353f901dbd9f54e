"""Positive targets: units of log y, noise, and whole fits."""

import math

import numpy as np
import pytest
import torch
from covering import later
from scipy import stats
from torch import nn
from torch.func import vmap

import bayesrule as br
from bayesrule.likelihoods import AVAILABLE, Gaussian, LogNormal
from bayesrule.naming import from_spec, to_spec
from bayesrule.predictions import PositiveReals

Y = torch.tensor([[1.0, 1000.0], [math.e, 3000.0], [1.0, 1000.0], [math.e, 3000.0]], dtype=torch.float64)


def generated(seed, n, noise=0.4, size=1.0):
    """log y is linear in x, and normal about it."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=g)
    log_y = math.log(size) + 0.8 * x[:, 0] - 0.5 * x[:, 1] + noise * torch.randn(n, generator=g)
    return x, log_y.exp()


def test_units_are_those_of_the_logs_and_stay():
    placed = LogNormal().placed(Y)
    assert torch.allclose(placed.loc, Y.log().mean(0))
    assert torch.allclose(placed.scale, Y.log().std(0, correction=0))
    assert placed.placed(10 * Y) is placed
    partly = LogNormal(scale=2.0).placed(Y)
    assert partly.scale == 2.0
    assert torch.equal(partly.loc, placed.loc)
    assert torch.equal(LogNormal().placed(torch.full((5, 1), 0.1)).scale, torch.ones(1))


def test_units_are_of_all_targets_whatever_their_order():
    y = torch.linspace(-3, 3, 40_000).exp()
    task = br.Task.create(nn.Linear(1, 1), (torch.zeros(len(y), 1), y), "log-normal")
    assert task.likelihood.loc.item() == pytest.approx(0, abs=1e-4)
    assert task.likelihood.scale.item() == pytest.approx(6 / math.sqrt(12), rel=1e-3)


def test_noise_starts_and_is_pooled_as_that_of_the_logs():
    outputs = torch.zeros(4, 2, dtype=torch.float64)
    matched = LogNormal().matched(outputs, Y)
    logs = Gaussian().matched(Y.log().mean(0).expand(4, 2), Y.log())
    assert torch.equal(matched.noise, logs.noise)
    log_noise = matched.unknowns()["log_noise"].requires_grad_()
    (slope,) = torch.autograd.grad(
        matched.with_unknowns({"log_noise": log_noise}).log_prob(outputs, Y).sum(), log_noise
    )
    assert slope.abs().max() < 1e-12
    other = matched.with_unknowns({"log_noise": log_noise.detach() + 1})
    pooled = LogNormal.pooled([matched, other])
    assert torch.allclose(pooled.noise.square(), (matched.noise.square() + other.noise.square()) / 2)
    assert torch.equal(pooled.loc, matched.loc)
    assert matched.kept().unknowns() == {}
    assert torch.equal(matched.kept().matched(outputs, 10 * Y).loc, matched.loc)


def test_known_noise_stays_and_units_are_still_taken():
    known = LogNormal(0.3).matched(torch.zeros(4, 2, dtype=torch.float64), Y)
    assert known.noise == 0.3
    assert known.unknowns() == {}
    assert known.loc.shape == (2,)


def test_all_of_it_is_saved():
    learnt = LogNormal().matched(torch.zeros(4, 2), Y)
    again = from_spec("likelihood", to_spec(learnt), AVAILABLE)
    again.verify()
    for name in ("noise", "loc", "scale"):
        assert torch.equal(getattr(again, name), getattr(learnt, name))
    assert list(again.unknowns()) == ["log_noise"]


def test_many_networks_at_once_give_what_each_gives_alone():
    outputs = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    likelihood = LogNormal().matched(outputs[0], Y)
    y = likelihood.check(outputs[0], Y)
    several = torch.stack([likelihood.unknowns()["log_noise"] + k for k in range(3)])

    def log_prob(f, log_noise):
        return likelihood.with_unknowns({"log_noise": log_noise}).log_prob(f, y)

    together = vmap(log_prob)(outputs, several)
    assert torch.allclose(together, torch.stack([log_prob(f, u) for f, u in zip(outputs, several, strict=True)]))


def test_errors_say_what_to_do():
    outputs = torch.zeros(4, 2)
    cases = [
        (lambda: LogNormal(0.0), "noise must be a positive standard deviation: got 0"),
        (lambda: LogNormal(scale=0.0), "scale must be positive and finite: got 0; None takes the deviation"),
        (lambda: LogNormal(loc=math.inf), "loc must be a finite number: got inf; None takes the mean"),
        (lambda: LogNormal(0.1).log_prob(outputs, outputs + 1), r"loc or scale is None: .*placed\(y\).*scale=1.0"),
        (lambda: LogNormal(0.1).verify(), "loc or scale is None"),
        (lambda: LogNormal(0.1, loc=torch.tensor(math.nan), scale=1.0).verify(), "loc must be finite, and scale pos"),
        (lambda: LogNormal(loc=0.0, scale=1.0).unknowns(), "noise is None"),
        (lambda: LogNormal().check(outputs, torch.full((4, 2), 1e-60).double()), "must be positive: got 0 at row 0"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match=r"loc must be a number, a tensor or None: got '1'; pass float\(loc\)"):
        LogNormal(loc="1")


def test_standardised_targets_are_refused_and_the_likelihood_standardises_what_it_may():
    x, y = generated(0, 64)
    with pytest.raises(ValueError, match="counts in its own units"):
        br.fit(nn.Linear(2, 1), br.data.standardize((x, y)), "map", "log-normal", epochs=1)
    data = LogNormal().standardized((x, y))
    assert data.scaling.targets is None
    assert data.scaling.inputs is not None
    assert Gaussian().standardized((x, y)).scaling.targets is not None


@pytest.mark.parametrize(
    ("method", "size"),
    [("map", 1.0), ("laplace", 1e6), ("auto", 1.0), later("map", 1e6), later("laplace", 1.0), later("auto", 1e6)],
)
def test_as_good_as_the_model_of_the_logs_and_no_bound_below_zero(method, size, tmp_path):
    # The bar: within 0.2 nats of a straight line through log y, and positive intervals. Data of a seed of their own.
    (x, y), (new, truth) = generated(7, 300, size=size), generated(8, 500, size=size)
    model = br.models.tabular(2, 1, hidden=(16,))
    posterior = br.fit(model, LogNormal().standardized((x, y)), method, "log-normal", epochs=60, seed=0)
    prediction = posterior.predict(new)
    assert isinstance(prediction, PositiveReals)
    scores = br.evaluate(posterior, (new, truth), bootstrap=0)

    design = np.column_stack([np.ones(len(x)), x])
    line, *_ = np.linalg.lstsq(design, y.log().numpy(), rcond=None)
    noise = np.std(y.log().numpy() - design @ line)
    centre = np.column_stack([np.ones(len(new)), new]) @ line
    wanted = -stats.lognorm.logpdf(truth.numpy(), noise, scale=np.exp(centre)).mean()
    assert scores["nll"] < wanted + 0.2
    for level in (0.5, 0.9, 0.999):
        assert (prediction.interval(level)[0] > 0).all()
    assert abs(scores["coverage_90"] - 0.9) < 0.08  # 500 examples: six standard deviations
    posterior.save(tmp_path / "p.safetensors")
    again = br.load(tmp_path / "p.safetensors", model)
    assert torch.equal(again.predict(new).quantile(0.1), prediction.quantile(0.1))
