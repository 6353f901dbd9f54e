"""Noise that is known, and noise that is learnt."""

import pytest
import torch

from bayesrule.likelihoods import AVAILABLE, Bernoulli, Gaussian
from bayesrule.naming import from_spec, to_spec

Y = torch.tensor([[1.0, 10.0], [-1.0, 30.0], [1.0, 10.0], [-1.0, 30.0]], dtype=torch.float64)


def test_known_noise_stays():
    known = Gaussian(0.1)
    assert known.matched(torch.zeros(4, 2), Y) is known
    assert known.unknowns() == {}
    assert known.with_unknowns({}) is known
    assert Gaussian.pooled([known, Gaussian(0.1)]) is known
    assert known.predict(torch.zeros(1, 2, dtype=torch.float64)).std[0].item() == pytest.approx(0.1, rel=1e-15)


def test_learnt_noise_starts_at_the_residuals():
    noise = Gaussian().matched(torch.zeros(4, 2, dtype=torch.float64), Y).noise
    assert torch.allclose(noise, Y.square().mean(0).sqrt())
    assert Gaussian().matched(torch.zeros(4, 1), Y[:, 0]).noise.shape == ()
    assert Gaussian().matched(torch.zeros(4, 1), Y[:, :1]).noise.shape == ()
    assert Gaussian().matched(torch.zeros(4), Y[:, 0]).noise.dtype == torch.float32
    assert Gaussian().matched(torch.zeros(4, 2, 3), torch.ones(4, 2, 3)).noise.shape == (2, 3)


def test_learnt_noise_starts_above_zero():
    assert torch.allclose(Gaussian().matched(Y, Y).noise, 1e-3 * Y.std(0, correction=0))
    constant = torch.full((4,), 5.0)
    assert Gaussian().matched(constant, constant).noise.item() == pytest.approx(1e-3)
    assert Gaussian().matched(torch.zeros(4), constant).noise.item() == pytest.approx(5.0)
    assert Gaussian().matched(torch.zeros(1), torch.ones(1)).noise.item() == 1.0


def test_a_given_start_is_kept_in_the_right_shape():
    matched = Gaussian(torch.tensor(0.3)).matched(torch.zeros(4, 2), Y)
    assert torch.equal(matched.noise, torch.full((2,), 0.3))
    assert Gaussian(torch.tensor([0.3])).matched(torch.zeros(4, 1), Y[:, 0]).noise.shape == ()


def test_gradients_reach_the_noise_and_its_best_value_is_the_residual():
    outputs = torch.zeros(4, 2, dtype=torch.float64)
    likelihood = Gaussian().matched(outputs, Y)
    log_noise = likelihood.unknowns()["log_noise"].requires_grad_()
    moved = likelihood.with_unknowns({"log_noise": log_noise})
    assert torch.allclose(moved.noise, likelihood.noise)
    (slope,) = torch.autograd.grad(moved.log_prob(outputs, Y).sum(), log_noise)
    assert slope.abs().max() < 1e-12


def test_noise_is_part_of_every_predictive_variance():
    likelihood = Gaussian(torch.tensor([0.5, 2.0]))
    prediction = likelihood.predict(torch.zeros(3, 4, 2))
    assert torch.equal(prediction.aleatoric, torch.tensor([[0.25, 4.0]]).expand(4, 2))


def test_a_mixture_averages_variances():
    pooled = Gaussian.pooled([Gaussian(torch.tensor([1.0, 2.0])), Gaussian(torch.tensor([7.0, 2.0]))])
    assert torch.allclose(pooled.noise, torch.tensor([5.0, 2.0]))
    assert isinstance(Bernoulli.pooled([Bernoulli(), Bernoulli()]), Bernoulli)


def test_learnt_noise_is_saved_and_still_learnt():
    learnt = Gaussian().matched(torch.zeros(4, 2), Y)
    again = from_spec("likelihood", to_spec(learnt), AVAILABLE)
    assert torch.equal(again.noise, learnt.noise)
    assert list(again.unknowns()) == ["log_noise"]
    assert from_spec("likelihood", to_spec(Gaussian(0.1)), AVAILABLE).unknowns() == {}


def test_errors_say_what_to_do():
    outputs = torch.zeros(4, 2)
    cases = [
        (lambda: Gaussian(0.0), "noise must be a positive standard deviation: got 0; None learns it"),
        (lambda: Gaussian(float("nan")), "got nan"),
        (lambda: Gaussian().log_prob(outputs, outputs), r"noise is None: .*matched\(outputs, y\).*noise=0.1"),
        (lambda: Gaussian().unknowns(), "noise is None"),
        (lambda: Gaussian(torch.tensor(-1.0)).matched(outputs, Y), "noise must be positive standard deviations: got"),
        (
            lambda: Gaussian(torch.ones(3)).matched(outputs, Y),
            r"noise must be one value or one per output \[2\]: got \[3\]",
        ),
        (lambda: Gaussian(0.1).with_unknowns({"log_noise": outputs}), r"values must be of \[\] for noise=0.1: got"),
        (lambda: Gaussian(torch.ones(())).with_unknowns({}), r"values must be of \['log_noise'\]"),
        (lambda: Bernoulli().with_unknowns({"a": outputs}), r"bernoulli has nothing to learn.*got \['a'\]"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match=r"noise must be a number, a tensor or None: got '0.1'; pass float\(noise\)"):
        Gaussian("0.1")
