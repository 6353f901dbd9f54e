"""Acts of least expected cost: closed forms, enumeration, and what is refused."""

import math
from itertools import product

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.decide import ClassCosts, Newsvendor, PiecewiseLinear
from bayesrule.predictions import Binary, Classes, Counts, PositiveReals, Reals, TailedReals

COSTS = torch.tensor([[0.0, 5.0, 9.0], [1.0, 0.0, 4.0], [2.0, 2.0, 0.0], [0.7, 0.7, 0.7]]).double()


def conjugate():
    """The exact posterior of a linear model with normal noise, and its predictive moments by hand."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, generator=generator).double()
    y = x @ torch.tensor([1.0, -2.0]).double() + 0.3 * torch.randn(20, generator=generator).double()
    exact = br.methods.Laplace(structure="dense", tune="nothing", newton=1)
    model = nn.Linear(2, 1, bias=False).double()
    posterior = br.fit(model, (x, y), exact, br.likelihoods.Gaussian(0.3), 1.0, epochs=1, val=0)
    precision = torch.eye(2).double() + x.T @ x / 0.09
    mean = torch.linalg.solve(precision, x.T @ y / 0.09)
    new = torch.tensor([[1.0, 0.0], [3.0, -2.0]]).double()
    variance = (new @ torch.linalg.inv(precision) * new).sum(1) + 0.09
    return posterior.predict(new), new @ mean, variance.sqrt()


def test_a_newsvendor_under_the_true_posterior_is_the_closed_form():
    prediction, mean, std = conjugate()
    decision = br.decide(prediction, Newsvendor(under=4.0, over=1.0))
    z = float(torch.special.ndtri(torch.tensor(0.8, dtype=torch.float64)))
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    torch.testing.assert_close(decision.act, mean + z * std, rtol=0, atol=1e-10)
    torch.testing.assert_close(decision.cost, 5.0 * std * density, rtol=0, atol=1e-10)
    torch.testing.assert_close(decision.point_act, mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(decision.point_cost, 5.0 * std / math.sqrt(2 * math.pi), rtol=0, atol=1e-10)


def test_expected_costs_of_classes_are_those_of_enumeration():
    logits = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(1)).double()
    decision = br.decide(Classes(logits), COSTS)
    for row, act in product(range(4), range(4)):
        by_hand = 0.0
        for network, label in product(range(3), range(3)):  # y given the network, each network as probable
            by_hand += float(logits[network, row].softmax(0)[label]) / 3 * float(COSTS[act, label])
        assert float(decision.costs[row, act]) == pytest.approx(by_hand, abs=1e-12)
    assert torch.equal(decision.act, decision.costs.argmin(1))
    assert bool((decision.regret >= 0).all())


def test_a_beta_bernoulli_model_is_the_closed_form():
    """Seven of ten, a uniform prior: p(y = 1) = 8/12; the posterior is drawn finely enough for four digits."""
    levels = (torch.arange(20_000).double() + 0.5) / 20_000
    grid = torch.linspace(1e-6, 1 - 1e-6, 20_001).double()
    beta = (grid**7 * (1 - grid) ** 3).cumsum(0)
    rates = grid[torch.searchsorted(beta / beta[-1], levels)]
    prediction = Binary(torch.logit(rates)[:, None])
    decision = br.decide(prediction, [[0.0, 1.0], [3.0, 0.0]])
    assert float(decision.costs[0, 0]) == pytest.approx(8 / 12, abs=1e-4)
    assert float(decision.costs[0, 1]) == pytest.approx(3 * 4 / 12, abs=3e-4)
    assert int(decision.act[0]) == 0 != int(prediction.label[0])
    assert float(decision.regret[0]) == pytest.approx(1 - 8 / 12, abs=4e-4)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_imbalanced_digits_cost_less_than_arg_max(seed):
    """One in ten of the digits is an 8, a tenth of these is trained on, and to miss one costs 20 false alarms."""
    x, y = br.data.digits()
    eights = (y == 8).long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    common, rare = order[eights[order] == 0], order[eights[order] == 1]
    third = len(common) // 3
    train, test = torch.cat([common[third:], rare[:17]]), torch.cat([common[:third], rare[17:]])
    torch.manual_seed(seed)
    options = {"prior": 1.0, "epochs": 20, "batch_size": 64, "val": 0, "seed": seed}
    posterior = br.fit(br.models.mlp(64, 2, hidden=(16,)), (x[train], eights[train]), "laplace", **options)
    decision = br.decide(posterior.predict(x[test]), [[0.0, 20.0], [1.0, 0.0]])
    paid, by_arg_max = decision.paid(eights[test]), decision.point_paid(eights[test])
    saved = by_arg_max - paid
    assert float(saved.mean()) > 2 * float(saved.std()) / math.sqrt(len(saved))  # two standard errors
    assert float(decision.regret.mean()) > 0  # as the prediction itself expects


def test_utilities_are_costs_with_the_other_sign():
    prediction = Classes(torch.randn(2, 5, 3))
    assert torch.equal(br.decide(prediction, COSTS).act, br.decide(prediction, utilities=-COSTS).act)


def test_pixels_are_decided_one_by_one():
    prediction = Classes(torch.randn(2, 3, 3, 4, 5))
    decision = br.decide(prediction, COSTS)
    alone = br.decide(Classes(prediction.logits[..., 2, 3]), COSTS)
    assert decision.act.shape == (3, 4, 5)
    assert torch.equal(decision.act[:, 2, 3], alone.act)


def test_usual_costs_give_the_most_probable_class():
    prediction = Classes(torch.randn(4, 50, 3))
    decision = br.decide(prediction, 1 - torch.eye(3))
    assert torch.equal(decision.act, prediction.label)
    assert float(decision.regret.abs().max()) < 1e-6
    torch.testing.assert_close(decision.cost, 1 - prediction.confidence)


NUMBERS = {
    "reals": Reals(torch.tensor([[0.0, 2.0], [1.0, -1.0]]).double(), torch.tensor(0.7), torch.tensor(0.2)),
    "tails": TailedReals(torch.tensor([[0.0, 2.0], [1.0, -1.0]]).double(), torch.tensor(0.7), torch.tensor(4.0)),
    "positive": PositiveReals(torch.tensor([[0.0, 1.0], [0.5, -1.0]]).double(), torch.tensor(0.5)),
    "counts": Counts(torch.tensor([[0.5, 2.0], [1.0, 1.5]]).double()),
}


@pytest.mark.parametrize("prediction", NUMBERS.values(), ids=NUMBERS)
def test_no_other_quantity_costs_less(prediction):
    rule = Newsvendor(under=3.0, over=1.0)
    decision = rule.decide(prediction)
    for away in (-1.0, -0.1, 0.1, 1.0):
        assert bool((rule.expected(prediction, decision.act + away) > decision.cost - 1e-9).all())
    torch.testing.assert_close(rule.expected(prediction, prediction.mean), decision.point_cost)


@pytest.mark.parametrize("prediction", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("a", [1.3, *(pytest.param(a, marks=pytest.mark.slow) for a in (-0.5, 4.0))])
def test_the_shortfall_is_the_integral_of_the_cdf(prediction, a):
    """E(a − y)₊ = ∫_{−∞}^a F, by the midpoints of 0.1, which no jump of counts falls on."""
    grid = torch.arange(-8.0, a - 1e-9, 0.1).double() + 0.05
    sums = torch.stack([prediction.cdf(float(t)) for t in grid]).sum(0) * 0.1
    if isinstance(prediction, TailedReals):  # with four degrees of freedom the cdf falls as |t|⁻⁴ there
        sums = sums + 8.0 / 3 * prediction.cdf(-8.0)
    torch.testing.assert_close(prediction.shortfall(a), sums, rtol=2e-3, atol=3e-3)


def test_costs_at_knots_are_means_over_draws():
    """Within four standard errors of 200 000 draws."""
    rule = PiecewiseLinear(knots=[-1.0, 0.5, 2.0, 3.0], costs=[[3.0, 0.0, 1.0, 5.0], [1.0, 2.0, 0.0, 0.0]])
    prediction = NUMBERS["reals"]
    decision = br.decide(prediction, rule)
    draws = prediction.sample(200_000, torch.Generator().manual_seed(0))
    paid = rule.at(draws.flatten()).reshape(*draws.shape, 2)
    error = paid.std(0) / math.sqrt(len(draws))
    assert bool(((decision.costs - paid.mean(0)).abs() < 4 * error).all())


def test_a_line_costs_what_the_mean_does():
    rule = PiecewiseLinear(knots=[0.0, 1.0], costs=[[1.0, 3.0], [4.0, 4.0]])
    decision = br.decide(NUMBERS["counts"], rule)
    torch.testing.assert_close(decision.costs[:, 0], 1 + 2 * NUMBERS["counts"].mean)
    assert float(decision.regret.abs().max()) < 1e-6  # nothing bends: the mean says all


def test_what_was_paid():
    decision = br.decide(Classes(torch.tensor([[[5.0, 0.0, 0.0], [0.0, 0.0, 0.5]]])), COSTS)
    assert decision.paid([1, 2]).tolist() == [COSTS[decision.act[0], 1], COSTS[decision.act[1], 2]]
    vendor = br.decide(NUMBERS["reals"], Newsvendor(under=3.0, over=1.0))
    torch.testing.assert_close(vendor.paid(vendor.act + 2), torch.full((2,), 6.0).double())
    torch.testing.assert_close(vendor.paid(vendor.act - 2), torch.full((2,), 2.0).double())
    torch.testing.assert_close(vendor.point_paid(vendor.point_act + 1), torch.full((2,), 3.0).double())
    rule = PiecewiseLinear(knots=[0.0, 1.0], costs=[[0.0, 2.0], [1.0, 1.0]])
    lines = br.decide(NUMBERS["reals"], rule)
    assert lines.paid(torch.tensor([0.25, 3.0])).shape == (2,)


CLASSES = Classes(torch.zeros(1, 2, 3))


@pytest.mark.parametrize(
    ("prediction", "options", "error", "words"),
    [
        (CLASSES, {}, ValueError, "give costs or utilities, got neither"),
        (CLASSES, {"costs": COSTS, "utilities": COSTS}, ValueError, "got both"),
        (CLASSES, {"costs": torch.eye(2)}, ValueError, "a column for each of the 3 classes, got 2 columns"),
        (CLASSES, {"costs": [1.0, 2.0, 3.0]}, ValueError, r"a matrix of acts × classes, got the shape \[3\]"),
        (CLASSES, {"costs": [[0.0, math.inf, 1.0]]}, ValueError, "finite numbers"),
        (CLASSES, {"costs": "high"}, TypeError, "costs must be a matrix of numbers"),
        (CLASSES, {"costs": Newsvendor(1.0, 1.0)}, TypeError, "a prediction of Numbers, not Classes"),
        (CLASSES, {"utilities": Newsvendor(1.0, 1.0)}, TypeError, "utilities must be a matrix"),
        (NUMBERS["reals"], {"costs": torch.eye(3)}, TypeError, "for numbers give Newsvendor or PiecewiseLinear"),
    ],
)
def test_what_does_not_fit_is_refused(prediction, options, error, words):
    with pytest.raises(error, match=words):
        br.decide(prediction, **options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Newsvendor(under=0.0, over=1.0), "under must be a positive cost of a unit, got 0"),
        (lambda: Newsvendor(under=1.0, over=math.inf), "over must be a positive cost"),
        (lambda: PiecewiseLinear([1.0, 0.0], [[0.0, 1.0]]), "knots must be at least two rising numbers"),
        (lambda: PiecewiseLinear([0.0, 1.0], [[0.0, 1.0, 2.0]]), r"costs must be finite numbers \[A, 2\]"),
        (lambda: ClassCosts(torch.eye(2)).paid(torch.tensor([0]), torch.tensor([2])), "from 0 to 1"),
        (lambda: Newsvendor(1.0, 1.0).paid(torch.zeros(2), torch.zeros(3)), r"the shape of the acts, \[2\]"),
    ],
)
def test_costs_that_are_none_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
