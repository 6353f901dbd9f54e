"""The temperature of classes: what it does to a likelihood."""

import pytest
import torch

import bayesrule as br
from bayesrule.curvature.roots import root
from bayesrule.likelihoods import AVAILABLE, Bernoulli, Categorical
from bayesrule.naming import from_spec, to_spec
from bayesrule.posteriors import predict_normal

T = 2.5
CASES = [
    (Categorical, torch.tensor([[3.0, -1.0, 0.5], [0.1, 0.2, -4.0]], dtype=torch.float64), torch.tensor([0, 2])),
    (Bernoulli, torch.tensor([2.0, -7.0], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)),
    (Bernoulli, torch.tensor([[2.0], [1.0]], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)),
]


@pytest.mark.parametrize(("kind", "f", "y"), CASES)
@pytest.mark.parametrize("temperature", [T, torch.tensor(T, dtype=torch.float64)])
def test_it_divides_the_logits_everywhere(kind, f, y, temperature):
    tempered, plain = kind(temperature), kind()
    torch.testing.assert_close(tempered.log_prob(f, y), plain.log_prob(f / T, y))
    torch.testing.assert_close(tempered.mean(f), plain.mean(f / T))
    torch.testing.assert_close(tempered.hessian(f), plain.hessian(f / T) / T**2)
    torch.testing.assert_close(tempered.predict(f[None]).probs, plain.predict(f[None] / T).probs)
    s = root(tempered, f)
    torch.testing.assert_close((s @ s.mT).reshape(tempered.hessian(f).shape), tempered.hessian(f))
    many = f[:1].expand(20_000, *f.shape[1:])
    draws = tempered.sample(many, torch.Generator().manual_seed(0))
    share = (draws == 0).double().mean()
    wanted = tempered.predict(f[None, :1]).log_prob(torch.zeros(1, dtype=torch.int64)).exp()
    assert abs(share - wanted) < 5 * (0.25 / 20_000) ** 0.5  # an error in 10⁶ runs


@pytest.mark.parametrize(("kind", "f", "y"), CASES)
def test_normal_logits_are_divided_with_their_covariance(kind, f, y):
    width = f[0].numel()
    covariance = 3 * torch.eye(width, dtype=torch.float64).expand(len(f), width, width)
    found = predict_normal(kind(T), f, covariance, 32, torch.Generator())
    wanted = predict_normal(kind(), f / T, covariance / T**2, 32, torch.Generator())
    torch.testing.assert_close(found.probs, wanted.probs)


def test_it_is_no_unknown_of_a_training_and_known_if_a_number():
    assert Categorical().unknowns() == Categorical(T).unknowns() == {}
    settled = Categorical(torch.tensor(T))
    assert torch.equal(settled.unknowns()["log_temperature"], torch.tensor(T).log())
    assert settled.with_unknowns({"log_temperature": torch.tensor(0.0)}).temperature == 1
    assert settled.matched(torch.zeros(2, 3), torch.zeros(2)).temperature is None
    assert Categorical(T).matched(torch.zeros(2, 3), torch.zeros(2)).temperature == T
    assert settled.kept().temperature == T
    assert Categorical(T).recalibrations() == {}
    assert list(settled.recalibrations()) == ["temperature", "vector", "isotonic"]


def test_it_is_kept_in_files():
    for given in (None, 3.0, torch.tensor(T, dtype=torch.float64)):
        again = from_spec("likelihood", to_spec(Bernoulli(given)), AVAILABLE)
        assert again.temperature == given


def test_a_known_one_is_part_of_training():
    """A linear model under T learns T times the weights that it learns without, where the prior is flat."""
    x, y = br.data.moons(n=40, seed=0)
    plain, hot = (
        br.fit(torch.nn.Linear(2, 2).double(), (x.double(), y), "mle", likelihood=Categorical(t)) for t in (None, 2.0)
    )
    torch.testing.assert_close(hot.predict(x).probs, plain.predict(x).probs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Categorical(0.0), ValueError, "temperature must be positive and finite: got 0"),
        (lambda: Categorical(float("inf")), ValueError, "temperature must be positive and finite: got inf"),
        (lambda: Bernoulli("hot"), TypeError, "temperature must be a number, a tensor or None: got 'hot'"),
        (lambda: Bernoulli(torch.tensor(-1.0)).verify(), ValueError, "temperature must be one number from 0.02 to 50"),
        (lambda: Bernoulli(torch.ones(2)).verify(), ValueError, "temperature must be one number from 0.02 to 50"),
        (lambda: Bernoulli(torch.tensor(1.0)).with_unknowns({}), ValueError, "values must be of .'log_temperature'."),
    ],
)
def test_errors_say_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()
