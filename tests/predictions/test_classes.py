"""Mixtures of categorical and Bernoulli distributions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesrule.predictions import Binary, Classes, Counts

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(2, 5), st.sampled_from([(), (2, 3)]))


def logits(shape, seed, scale=3.0):
    s, b, c, rest = shape
    return scale * torch.randn(s, b, c, *rest, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(SHAPES, st.integers(0, 1000), st.sampled_from([0.1, 3.0, 300.0]))
def test_uncertainties_split_and_probabilities_sum_to_one(shape, seed, scale):
    prediction = Classes(logits(shape, seed, scale))
    assert torch.allclose(prediction.probs.sum(1), torch.ones(prediction.shape, dtype=torch.float64))
    assert (prediction.epistemic >= 0).all()
    assert (prediction.aleatoric >= 0).all()
    assert torch.equal(prediction.total, prediction.aleatoric + prediction.epistemic)
    assert torch.equal(prediction.entropy, prediction.total)
    assert prediction.uncertainty.shape == (len(prediction),)
    if shape[0] == 1:
        assert (prediction.epistemic == 0).all()


@given(SHAPES, st.integers(0, 1000))
def test_order_of_networks_and_of_examples_does_not_matter(shape, seed):
    values = logits(shape, seed)
    a, b = Classes(values), Classes(values.flip(0))
    assert torch.allclose(a.probs, b.probs)
    assert torch.allclose(a.epistemic, b.epistemic, atol=1e-12)
    assert torch.allclose(a.aleatoric.flip(0), Classes(values.flip(1)).aleatoric)


def test_against_torch_distributions():
    values = logits((4, 3, 5, ()), 0)
    y = torch.tensor([0, 4, 2])
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(3, 4, dtype=torch.float64)),
        torch.distributions.Categorical(logits=values.transpose(0, 1)),
    )
    prediction = Classes(values)
    assert torch.allclose(prediction.log_prob(y), mixture.log_prob(y))
    assert torch.allclose(prediction.probs.log().gather(1, y[:, None])[:, 0], mixture.log_prob(y))
    entropy = torch.distributions.Categorical(probs=prediction.probs).entropy()
    assert torch.allclose(prediction.entropy, entropy)
    assert torch.allclose(
        prediction.aleatoric, torch.distributions.Categorical(logits=values.movedim(2, -1)).entropy().mean(0)
    )
    assert torch.equal(prediction.label, prediction.point)
    assert torch.equal(prediction.confidence, prediction.probs.amax(1))


def test_log_prob_survives_underflow():
    prediction = Classes(torch.tensor([[[0.0, 2000.0]], [[0.0, 2000.0]]]))
    assert prediction.log_prob(torch.tensor([0])).item() == -2000.0


def test_log_prob_of_a_segmentation_is_per_pixel():
    values = logits((3, 2, 4, (2, 3)), 1)
    y = torch.randint(4, (2, 2, 3), generator=torch.Generator().manual_seed(0))
    log_prob = Classes(values).log_prob(y)
    assert log_prob.shape == (2, 2, 3)
    assert torch.allclose(log_prob.exp(), Classes(values).probs.gather(1, y[:, None])[:, 0])


@given(SHAPES, st.integers(0, 1000), st.floats(0.05, 1.0))
def test_the_set_holds_the_level_and_none_of_it_can_go(shape, seed, level):
    prediction = Classes(logits(shape, seed))
    chosen = prediction.prediction_set(level)
    mass = torch.where(chosen, prediction.probs, 0.0)
    assert (mass.sum(1) >= level - 1e-12).all()
    least = torch.where(chosen, prediction.probs, 2.0).amin(1)
    assert (mass.sum(1) - least < level + 1e-12).all()
    assert (least >= torch.where(chosen, -1.0, prediction.probs).amax(1)).all()


@pytest.mark.parametrize("seed", range(3))
def test_samples_follow_the_probabilities(seed):
    # 6 frequencies, each normal to a good approximation: z beyond 4.5 has chance 6 · 7e-6 in all.
    prediction = Classes(logits((3, 2, 3, ()), 5, 1.0))
    n = 20_000
    drawn = prediction.sample(n, torch.Generator().manual_seed(seed))
    assert drawn.shape == (n, 2)
    frequency = torch.stack([(drawn == c).double().mean(0) for c in range(3)], 1)
    z = (frequency - prediction.probs) / (prediction.probs * (1 - prediction.probs) / n).sqrt()
    assert z.abs().max() < 4.5


def test_one_draw_is_one_network():
    prediction = Classes(torch.tensor([[[400.0, 0.0]] * 9, [[0.0, 400.0]] * 9]))
    drawn = prediction.sample(50, torch.Generator().manual_seed(0))
    assert (drawn == drawn[:, :1]).all()
    assert drawn[:, 0].unique().tolist() == [0, 1]


def test_batches_join():
    values = logits((3, 5, 4, ()), 2)
    joined = Classes.cat([Classes(values[:, :2]), Classes(values[:, 2:])])
    assert torch.equal(joined.logits, values)
    assert repr(joined) == "Classes(samples=3, shape=[5])"
    with pytest.raises(
        ValueError, match=r"one number of samples: got .'Classes of 2 samples', 'Classes of 3 samples'."
    ):
        Classes.cat([Classes(values[:2]), Classes(values)])


def test_binary_is_two_classes():
    values = logits((4, 3, 2, ()), 3)  # [S, B, L]: multi-label
    prediction = Binary(values)
    assert prediction.shape == (3, 2)
    assert torch.allclose(prediction.probs, values.sigmoid().mean(0))
    bernoulli = torch.distributions.Bernoulli(probs=prediction.probs)
    assert torch.allclose(prediction.entropy, bernoulli.entropy())
    assert torch.allclose(prediction.aleatoric, torch.distributions.Bernoulli(logits=values).entropy().mean(0))
    assert (prediction.epistemic >= 0).all()
    for y in (torch.tensor([[0, 1], [1, 0], [1, 1]]), torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])):
        assert torch.allclose(prediction.log_prob(y), bernoulli.log_prob(y.double()))
    assert torch.equal(prediction.label, (prediction.probs > 0.5).long())
    assert torch.equal(prediction.point, prediction.label)
    assert torch.allclose(prediction.confidence, prediction.probs.maximum(1 - prediction.probs))
    assert torch.allclose(prediction.uncertainty, prediction.entropy.mean(1))
    assert prediction.sample(7, torch.Generator().manual_seed(0)).shape == (7, 3, 2)


def test_binary_log_prob_survives_underflow():
    assert Binary(torch.tensor([[2000.0]])).log_prob(torch.tensor([0])).item() == -2000.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(dtype):
    for prediction in (Classes(torch.zeros(2, 3, 4, dtype=dtype)), Binary(torch.zeros(2, 3, dtype=dtype))):
        for value in (prediction.probs, prediction.total, prediction.log_prob(torch.zeros(3, dtype=torch.long))):
            assert value.dtype == dtype
        assert prediction.label.dtype == torch.int64
    assert math.isclose(float(Classes(torch.zeros(2, 3, 4, dtype=dtype)).entropy[0]), math.log(4), rel_tol=1e-6)


def test_errors_say_what_to_do():
    classes = Classes(torch.zeros(1, 4, 10))
    cases = [
        (
            lambda: Classes(torch.zeros(4, 10)),
            r"logits must be a floating-point tensor \[S, B, C, ...\].*unsqueeze\(0\)",
        ),
        (lambda: Classes(torch.zeros(1, 4, 10, dtype=torch.long)), "floating-point .* got torch.int64"),
        (lambda: Binary(torch.zeros(0, 4)), r"at least one sample: got .* \[0, 4\]"),
        (lambda: classes.prediction_set(0.0), "level must be above 0 and at most 1: got 0"),
        (lambda: classes.sample(0), "n must be a number of draws of at least 1: got 0"),
        (lambda: classes.log_prob(torch.tensor([0, 1])), r"must have shape \[4\].*got \[2\]"),
        (
            lambda: classes.log_prob(torch.tensor([0, 1, 2, 12])),
            r"in \[0, 10\): got 12 at row 3; .*or give the network 13 outputs",
        ),
        (lambda: classes.log_prob(torch.tensor([0, -1, 2, 12])), r"got -1 at row 1; pass labels as class indices$"),
        (lambda: classes.log_prob(torch.zeros(4, 10)), r"looks one-hot; pass y.argmax\(1\)"),
        (lambda: Binary(torch.zeros(1, 2)).log_prob(torch.tensor([0, 2])), "must be 0 or 1: got 2 at row 1"),
        (lambda: Binary(torch.zeros(1, 2)).log_prob(torch.tensor([0, math.nan])), "got nan at row 1"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match=r"must be integers: got torch.float32; pass y.long\(\)"):
        classes.log_prob(torch.zeros(4))
    with pytest.raises(TypeError, match="Classes has no units to rescale"):
        classes.rescaled(0.0, 1.0)
    with pytest.raises(TypeError, match="Counts has no units"):
        Counts(torch.zeros(1, 2)).rescaled(0.0, 1.0)
