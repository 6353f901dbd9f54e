"""Every likelihood against torch.distributions and automatic derivatives, in float64."""

import math

import numpy as np
import pytest
import torch
from torch import distributions as td
from torch.func import jacrev, vmap

from bayesrule import likelihoods
from bayesrule.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    LogNormal,
    NegativeBinomial,
    Poisson,
    Student,
    Tokens,
)
from bayesrule.naming import from_spec, to_spec

B = 4
PAIR = torch.tensor([0.5, 0.8], dtype=torch.float64)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_variance(raw):
    return 40 * (raw / 40).tanh()


def normal(outputs):
    mean, raw = outputs.chunk(2, 1)
    mean, raw = (t.squeeze(1) if t.shape[1] == 1 else t for t in (mean, raw))
    return td.Normal(mean, (log_variance(raw) / 2).exp())


def normal_by_deviation(outputs):
    mean, raw = outputs.chunk(2, 1)
    return normal(torch.cat([mean, 2 * raw], 1))


def squeezed(outputs):
    return outputs.squeeze(1) if outputs.ndim > 1 else outputs


def dispersed(f, alpha):
    """Counts of mean μ = exp(f) and variance μ + α μ², in torch's parameters."""
    return td.NegativeBinomial(1 / torch.as_tensor(alpha), logits=f + torch.as_tensor(alpha).log())


# likelihood, shape of outputs, the same distribution by torch
CASES = [
    (Categorical(), (B, 3), lambda f: td.Categorical(logits=f)),
    (Categorical(), (B, 3, 2, 2), lambda f: td.Categorical(logits=f.movedim(1, -1))),
    (Bernoulli(), (B,), lambda f: td.Bernoulli(logits=f)),
    (Bernoulli(), (B, 1), lambda f: td.Bernoulli(logits=squeezed(f))),
    (Bernoulli(), (B, 3), lambda f: td.Bernoulli(logits=f)),
    (Bernoulli(), (B, 1, 2, 2), lambda f: td.Bernoulli(logits=squeezed(f))),
    (Gaussian(0.7), (B,), lambda f: td.Normal(f, 0.7)),
    (Gaussian(0.7), (B, 1), lambda f: td.Normal(squeezed(f), 0.7)),
    (Gaussian(torch.tensor([0.5, 2.0, 1.0])), (B, 3), lambda f: td.Normal(f, torch.tensor([0.5, 2.0, 1.0]).double())),
    (Gaussian(0.7), (B, 2, 2, 2), lambda f: td.Normal(f, 0.7)),
    (Heteroscedastic(), (B, 2), normal),
    (Heteroscedastic(deviation=True), (B, 2), normal_by_deviation),
    (Heteroscedastic(), (B, 6), normal),
    (Heteroscedastic(), (B, 4, 2), normal),
    (LogNormal(0.7, loc=2.0, scale=0.5), (B,), lambda f: td.LogNormal(2 + f / 2, 0.7)),
    (LogNormal(0.7, loc=2.0, scale=0.5), (B, 1), lambda f: td.LogNormal(2 + squeezed(f) / 2, 0.7)),
    (LogNormal(PAIR, loc=-PAIR, scale=PAIR), (B, 2), lambda f: td.LogNormal(PAIR * f - PAIR, PAIR)),
    (LogNormal(0.7, loc=2.0, scale=0.5), (B, 2, 2, 2), lambda f: td.LogNormal(2 + f / 2, 0.7)),
    (Student(0.7, 5.0), (B,), lambda f: td.StudentT(5.0, f, 0.7)),
    (Student(0.7, 5.0), (B, 1), lambda f: td.StudentT(5.0, squeezed(f), 0.7)),
    (Student(PAIR, 5.0), (B, 2), lambda f: td.StudentT(5.0, f, PAIR)),
    (Student(0.7, 5.0), (B, 2, 2, 2), lambda f: td.StudentT(5.0, f, 0.7)),
    (Poisson(), (B,), lambda f: td.Poisson(f.exp())),
    (Poisson(), (B, 1), lambda f: td.Poisson(squeezed(f).exp())),
    (Poisson(), (B, 3), lambda f: td.Poisson(f.exp())),
    (NegativeBinomial(0.5), (B,), lambda f: dispersed(f, 0.5)),
    (NegativeBinomial(0.5), (B, 1), lambda f: dispersed(squeezed(f), 0.5)),
    (NegativeBinomial(PAIR), (B, 2), lambda f: dispersed(f, PAIR)),
]
ids = [f"{case[0].name}-{'x'.join(map(str, case[1]))}" for case in CASES]


@pytest.fixture(params=CASES, ids=ids)
def case(request):
    likelihood, shape, reference = request.param
    outputs = randn(*shape)
    torch.manual_seed(0)
    return likelihood, outputs, reference(outputs)


def test_log_prob_is_torchs_summed_per_example(case):
    likelihood, outputs, reference = case
    y = likelihood.check(outputs, reference.sample())
    log_prob = likelihood.log_prob(outputs, y)
    assert log_prob.shape == (B,)
    assert torch.allclose(log_prob, reference.log_prob(y.to(reference.sample().dtype)).reshape(B, -1).sum(1))


def test_hessian_is_the_expected_second_derivative(case):
    likelihood, outputs, reference = case

    def second(y):
        return vmap(jacrev(jacrev(lambda f, y: -likelihood.log_prob(f[None], y[None]).sum())))(outputs, y)

    if isinstance(likelihood, Heteroscedastic):  # at most quadratic in y: points at mean ± std give the mean over y
        expected = sum(second(reference.mean + sign * reference.stddev) for sign in (1, -1)) / 2
    elif isinstance(likelihood, Student):  # with z = √ν tan θ the density is cos(θ)^(ν−1), and the rest polynomial
        nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(60))
        angles = nodes * math.pi / 2
        weights = weights * angles.cos() ** (likelihood.freedom - 1)
        points = [reference.loc + reference.scale * math.sqrt(likelihood.freedom) * a.tan() for a in angles]
        expected = sum(w * second(y) for w, y in zip(weights / weights.sum(), points, strict=True))
    elif isinstance(likelihood, NegativeBinomial):  # linear in y
        expected = second(reference.mean)
    else:
        expected = second(likelihood.check(outputs, reference.sample()))
    ours = likelihood.hessian(outputs)
    c, pixels = (outputs.shape[1] if outputs.ndim > 1 else 1), math.prod(outputs.shape[2:])
    assert ours.shape == (B, *outputs.shape[2:], c, c)
    assert (torch.linalg.eigvalsh(ours) > -1e-12).all()
    blocks = expected.reshape(B, c, pixels, c, pixels)
    for p in range(pixels):
        assert torch.allclose(blocks[:, :, p, :, p], ours.reshape(B, pixels, c, c)[:, p], atol=1e-10)
        blocks[:, :, p, :, p] = 0
    assert (blocks == 0).all()  # pixels are independent


def test_mean_and_one_network_prediction_agree(case):
    likelihood, outputs, reference = case
    y = likelihood.check(outputs, reference.sample())
    mean = likelihood.mean(outputs)
    if isinstance(likelihood, Categorical):
        assert torch.allclose(mean.movedim(1, -1), reference.probs)
    else:
        assert torch.allclose(mean, reference.mean)
    prediction = likelihood.predict(outputs.unsqueeze(0))
    assert prediction.shape == y.shape
    assert torch.allclose(prediction.log_prob(y).reshape(B, -1).sum(1), likelihood.log_prob(outputs, y))
    assert (prediction.epistemic.abs() < 1e-12).all()


@pytest.mark.parametrize("seed", range(3))
def test_samples_have_the_mean(case, seed):
    # At most 48 z-scores per case; beyond 5.5 has chance 48 · 4e-8 (normal approximation).
    likelihood, outputs, reference = case
    n = 4000
    many = outputs.unsqueeze(0).expand(n, *outputs.shape).reshape(-1, *outputs.shape[1:])
    drawn = likelihood.sample(many, torch.Generator().manual_seed(seed))
    if isinstance(likelihood, Categorical):
        drawn = torch.nn.functional.one_hot(drawn, 3).movedim(-1, 1)
        mean = likelihood.mean(outputs)
        variance = mean * (1 - mean)
    else:
        mean, variance = reference.mean, reference.variance
    average = drawn.double().reshape(n, *mean.shape).mean(0)
    assert ((average - mean) / (variance / n).sqrt()).abs().max() < 5.5


def test_round_trip_through_plain_data(case):
    likelihood, outputs, reference = case
    again = from_spec("likelihood", to_spec(likelihood), likelihoods.AVAILABLE)
    y = likelihood.check(outputs, reference.sample())
    assert type(again) is type(likelihood)
    assert torch.equal(again.log_prob(outputs, y), likelihood.log_prob(outputs, y))


def test_by_name_and_inferred():
    reals = ["gaussian", "heteroscedastic", "log-normal"]
    counts = ["negative-binomial", "poisson"]
    assert sorted(likelihoods.AVAILABLE) == ["bernoulli", "categorical", *reals, *counts, "student", "tokens"]
    for name, kind in likelihoods.AVAILABLE.items():
        assert isinstance(likelihoods.choose(name), kind)
    with pytest.raises(ValueError, match="did you mean 'poisson'"):
        likelihoods.choose("poison")
    whole = torch.tensor([0, 1])
    assert likelihoods.infer(torch.zeros(2, 3), whole).name == "categorical"
    assert likelihoods.infer(torch.zeros(2, 1), whole.bool()).name == "bernoulli"
    assert likelihoods.infer(torch.zeros(2), whole).name == "bernoulli"
    assert likelihoods.infer(torch.zeros(2, 3), torch.zeros(2, 3)).name == "gaussian"


@pytest.mark.parametrize(
    ("outputs", "y"),
    [
        ((4,), torch.tensor([0.0, 1.0, 1.0, 0.0])),
        ((4, 1), torch.tensor([0.0, 1.0, 1.0, 0.0])),
        ((4, 1), torch.tensor([[0.0], [1.0], [1.0], [0.0]], dtype=torch.float64)),
        ((4, 1, 2), torch.tensor([[0.0, 1.0]] * 4)),
    ],
)
def test_float_zeros_and_ones_for_one_output_are_answers(outputs, y):
    assert likelihoods.infer(torch.zeros(outputs), y).name == "bernoulli"


@pytest.mark.parametrize("y", [torch.tensor([0.0, 1.0, 0.5]), torch.zeros(3), torch.ones(3)], ids=str)
def test_other_floats_and_constants_are_reals(y):
    assert likelihoods.infer(torch.zeros(3, 1), y).name == "gaussian"
    assert likelihoods.infer(torch.zeros(3, 2), torch.stack([y, y], 1)).name == "gaussian"


@pytest.mark.parametrize(
    ("outputs", "y", "asked"),
    [
        ((3, 3), torch.eye(3), r"looks one-hot: pass y.argmax\(1\) for one of 3 classes, likelihood=\"bernoulli\""),
        ((2, 3), torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]), r"only 0 and 1: likelihood=\"bernoulli\""),
        ((3, 3), torch.tensor([0.0, 2.0, 1.0]), r"class indices as torch.float32: pass y.long\(\)"),
        ((3, 3), torch.tensor([[0.0], [2.0], [1.0]]), r"class indices as torch.float32: pass y.long\(\)"),
    ],
)
def test_floats_that_may_be_classes_are_asked_about(outputs, y, asked):
    with pytest.raises(ValueError, match=asked):
        likelihoods.infer(torch.zeros(outputs), y)


def test_targets_come_back_in_shape_and_dtype():
    column = torch.tensor([[0], [1]], dtype=torch.int32)
    assert Categorical().check(torch.zeros(2, 3), column).dtype == torch.int64
    assert Categorical().check(torch.zeros(2, 3), column.bool()).shape == (2,)
    for likelihood in (Bernoulli(), Gaussian(), Poisson()):
        for outputs in (torch.zeros(2, 1), torch.zeros(2)):
            for y in (column, column[:, 0]):
                checked = likelihood.check(outputs, y)
                assert checked.shape == (2,)
                assert checked.dtype == torch.float32
    assert Heteroscedastic().check(torch.zeros(2, 2), column).shape == (2,)
    assert Heteroscedastic().check(torch.zeros(2, 6), torch.zeros(2, 3)).shape == (2, 3)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y", "error", "message"),
    [
        ("categorical", (4, 10), [0, 1, 2, 12], ValueError, r"in \[0, 10\): got 12 at row 3; .* 13 outputs"),
        ("categorical", (2, 3), [0, -1], ValueError, r"got -1 at row 1"),
        ("categorical", (2, 3), [0.0, 1.0], TypeError, r"must be integers: got torch.float32; pass y.long\(\)"),
        ("categorical", (2, 3), [[0, 0, 1], [1, 0, 0]], ValueError, r"looks one-hot; pass y.argmax\(1\).*'bernoulli'"),
        ("categorical", (2, 3), [0, 1, 2], ValueError, r"must have shape \[2\].*got \[3\]"),
        ("categorical", (2, 1), [0, 1], ValueError, "C of at least 2: got .*use likelihood 'bernoulli'"),
        ("bernoulli", (2, 1), [0, 3], ValueError, "must be 0 or 1: got 3 at row 1; for more classes .*'poisson'"),
        ("bernoulli", (2, 3), [0, 1], ValueError, r"must have shape \[2, 3\].*got \[2\]"),
        ("bernoulli", (2,), [0.0, math.nan], ValueError, "got nan at row 1"),
        ("gaussian", (3, 1), [[0.0, 1.0, 2.0]], ValueError, r"must have shape \[3\].*got \[1, 3\]"),
        ("gaussian", (2, 2), [0.0, 1.0], ValueError, r"must have shape \[2, 2\].*change the number of outputs"),
        ("gaussian", (3, 1), [0.0, math.nan, math.inf], ValueError, "must be finite: got nan at row 1; drop or fill"),
        ("heteroscedastic", (2, 3), [0.0, 1.0], ValueError, r"\[B, 2 D, ...\].*got \[2, 3\]; .*two outputs per target"),
        ("heteroscedastic", (2,), [0.0, 1.0], ValueError, "or use likelihood 'gaussian'"),
        ("heteroscedastic", (2, 4), [0.0, 1.0], ValueError, r"must have shape \[2, 2\]"),
        ("log-normal", (3, 1), [1.0, 0.0, -1.0], ValueError, "must be positive: got 0 at row 1; .*'gaussian' or"),
        ("log-normal", (2, 2), [[1.0, 2.0], [3.0, -4.0]], ValueError, "got -4 at row 1"),
        ("log-normal", (2, 1), [1.0, math.nan], ValueError, "must be finite: got nan at row 1"),
        ("poisson", (2, 1), [0.0, 1.5], ValueError, "whole numbers from 0 up: got 1.5 at row 1"),
        ("poisson", (2, 1), [-2, 1], ValueError, "got -2 at row 0"),
    ],
)
def test_bad_targets_get_an_error_that_teaches(likelihood, outputs, y, error, message):
    with pytest.raises(error, match=message):
        likelihoods.choose(likelihood).check(torch.zeros(outputs), torch.tensor(y))


def test_extreme_outputs_stay_finite():
    wild = torch.tensor([[0.0, 1e4], [0.0, -1e4]])
    y = torch.tensor([1.0, 1.0])
    assert Heteroscedastic().log_prob(wild, y).isfinite().all()
    assert Heteroscedastic().hessian(wild).isfinite().all()
    assert Heteroscedastic().predict(wild.unsqueeze(0)).variance.isfinite().all()
    assert Categorical().log_prob(wild, torch.tensor([0, 0])).isfinite().all()
    assert Bernoulli().log_prob(wild, torch.tensor([[0.0, 0.0], [1.0, 1.0]])).isfinite().all()


def test_log_deviations_are_half_of_log_variances():
    outputs, y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double(), torch.zeros(5, 2).double()
    half = torch.cat([outputs[:, :2], outputs[:, 2:] / 2], 1)
    wanted, found = Heteroscedastic(), Heteroscedastic(deviation=True)
    torch.testing.assert_close(found.log_prob(half, y), wanted.log_prob(outputs, y))
    torch.testing.assert_close(found.predict(half[None]).std, wanted.predict(outputs[None]).std)
    assert from_spec("likelihood", to_spec(found), likelihoods.AVAILABLE).deviation


@pytest.mark.parametrize("likelihood", [kind for kind in likelihoods.AVAILABLE.values() if kind is not Tokens])
def test_a_network_with_the_outputs_that_a_likelihood_asks_for_can_learn_its_targets(likelihood):
    outputs = torch.zeros(5, likelihood().outputs_for(1, classes=2))
    y = torch.tensor([1, 2, 1, 2, 2] if likelihood is LogNormal else [0, 1, 0, 1, 1])
    assert likelihood().check(outputs, y).shape == (5,)


def test_the_usual_likelihood_of_each_kind_of_target():
    assert [likelihoods.usual(kind).name for kind in ("classes", "reals", "counts")] == [
        "categorical",
        "gaussian",
        "poisson",
    ]


def test_bernoulli_refuses_more_than_two_classes():
    with pytest.raises(ValueError, match="bernoulli is for 2 classes, got 3: use categorical"):
        likelihoods.Bernoulli().outputs_for(1, classes=3)
