"""The threshold on doubt: exact probabilities of a broken promise by enumeration."""

import itertools
import math

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesrule.predictions import Binary, Classes, Reals, Selective, needed_answers, select
from bayesrule.predictions.selective import binomial_cdf, doubt, thresholds


def prediction(doubts):
    """Answers "yes" with these doubts."""
    p = 1 - torch.tensor(doubts, dtype=torch.float64)
    return Binary(torch.log(p / (1 - p))[None])


def test_the_p_value_is_the_binomial_distribution_function():
    k, n = torch.tensor([0, 3, 17, 40, 0]), torch.tensor([10, 100, 400, 40, 0])
    for p in (0.01, 0.1, 0.5):
        expected = torch.from_numpy(scipy.stats.binom.cdf(k.numpy(), n.numpy(), p))
        assert torch.allclose(binomial_cdf(k, n, p), expected, rtol=1e-10)


WORLDS = {
    "wrong as often everywhere, just too often": ((0.3, 0.3, 0.4), (0.51, 0.51, 0.51)),
    "sure where it is right": ((0.3, 0.3, 0.4), (0.45, 0.6, 0.6)),
    "surest where it is wrong": ((0.3, 0.3, 0.4), (0.9, 0.2, 0.55)),
    "safe but for the last": ((0.5, 0.3, 0.2), (0.3, 0.6, 0.99)),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("n", [5, 7])
def test_a_promise_is_broken_no_more_often_than_said_by_enumeration(world, n):
    """All multinomial outcomes of n answers in three bins of doubt, right or wrong, at error 0.5 and confidence 0.6."""
    masses, rates = WORLDS[world]
    error, confidence = 0.5, 0.6
    doubts = (0.1, 0.3, 0.499)  # at most ½, or "no" would be the answer
    cells = [m * part for m, r in zip(masses, rates, strict=True) for part in (1 - r, r)]
    broken = total = 0.0
    for counts in itertools.product(range(n + 1), repeat=6):
        if sum(counts) != n:
            continue
        chance = math.factorial(n) * math.prod(c**k / math.factorial(k) for c, k in zip(cells, counts, strict=True))
        rows = [(doubts[cell // 2], cell % 2) for cell, k in enumerate(counts) for _ in range(k)]
        promise = select(prediction([d for d, _ in rows]), 1 - torch.tensor([w for _, w in rows]), error, confidence)
        total += chance
        if promise.doubt is None:
            continue
        given_mass = [m * (d <= promise.doubt) for m, d in zip(masses, doubts, strict=True)]
        risk = sum(m * r for m, r in zip(given_mass, rates, strict=True)) / max(sum(given_mass), 1e-300)
        broken += chance * (risk > error)
    assert total == pytest.approx(1)
    assert broken <= 1 - confidence + 1e-12


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_the_order_of_examples_does_not_count_and_fewer_mistakes_answer_no_less(seed, random):
    generator = torch.Generator().manual_seed(seed)
    doubts = (0.49 * torch.rand(150, generator=generator).pow(4)).tolist()
    y = (torch.rand(150, generator=generator) > 0.08).long()
    promise = select(prediction(doubts), y, 0.1)
    order = random.sample(range(150), 150)
    again = select(prediction([doubts[place] for place in order]), y[order], 0.1)
    assert (promise.doubt, promise.share) == (again.doubt, again.share)
    better = select(prediction(doubts), y | (torch.rand(150, generator=generator) > 0.5), 0.1)
    assert (better.doubt or 0.0) >= (promise.doubt or 0.0)


def test_the_number_needed_is_the_least_that_works():
    for error, confidence in ((0.1, 0.95), (0.2, 0.9)):
        n = needed_answers(error, confidence)
        assert select(prediction([1e-9] * n), torch.ones(n), error, confidence).doubt == 1
        words = rf"at least {n} examples for error={error:g} at confidence={confidence:g}: got {n - 1}; hold out more"
        with pytest.raises(ValueError, match=words):
            select(prediction([1e-9] * (n - 1)), torch.ones(n - 1), error, confidence)
        assert (1 - error) ** (n - 1) > (1 - confidence) / len(thresholds(error)) >= (1 - error) ** n


def test_answers_are_those_of_little_doubt():
    promise = Selective(0.1, 0.95, 0.2, 100, 0.5)
    found = promise.answers(prediction([0.1, 0.2001, 0.4]))
    assert found.answered.tolist() == [True, False, False]
    assert found.prediction.label.tolist() == [1, 1, 1]
    assert not Selective(0.1, 0.95, None, 100, 0.0).answers(prediction([0.1])).answered.any()


def test_doubt_is_told_where_confidence_is_one():
    logits = torch.tensor([[[40.0, 0.0, 0.0], [0.0, 60.0, 0.0]]])
    assert doubt(Classes(logits)).tolist() == pytest.approx([2 * math.exp(-40), 2 * math.exp(-60)])


def test_promises_in_words():
    said = "of 100 answers given, at most 5 wrong, with 95 % confidence, as calibrated on 400 rows; "
    assert Selective(0.05, 0.95, 0.1, 400, 0.871).says == said + "87 % of them were answered"
    assert Selective(0.005, 0.9, 1.0, 4000, 1.0).says.startswith("of 1000 answers given, at most 5 wrong, with 90 %")
    said = Selective(0.05, 0.95, None, 400, 0.0).says
    assert said.startswith("nothing is answered: that at most 5 of 100 answers are wrong cannot be promised")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: select(prediction([0.1]), torch.ones(1), 1.0), ValueError, "error must be between 0 and 1"),
        (lambda: select(prediction([0.1]), torch.ones(1), 0.1, 1.0), ValueError, "confidence must be between 0 and 1"),
        (lambda: select(Reals(torch.zeros(1, 9), torch.ones(())), torch.ones(9), 0.1), TypeError, "for numbers use"),
        (
            lambda: select(Classes(torch.zeros(1, 9, 2, 4)), torch.ones(9, 4).long(), 0.1),
            ValueError,
            r"one label to be answered or not: got labels \[9, 4\]",
        ),
    ],
)
def test_errors_say_what_is_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call()
