"""From a prior to a penalty: closed forms against quadrature and sampling, and a penalty in a loop of one's own."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bayesrule import penalties
from bayesrule.modules import parameters
from bayesrule.penalties import penalty_of, prior_of
from bayesrule.penalties import translations as families
from bayesrule.priors import Flat, Gaussian, Laplace, ScaleMixture, Structured
from bayesrule.structures import Diagonal

FAMILIES = [families.Gaussian, families.Laplace, families.Uniform, families.Logistic, families.Student]
MU = torch.linspace(-3, 3, 13, dtype=torch.float64)


def normal(x, mean, scale):
    return -0.5 * ((x - mean) / scale) ** 2 - math.log(scale * math.sqrt(2 * math.pi))


@given(st.floats(-2, 2), st.floats(0.1, 3), st.floats(-2, 2), st.floats(0.1, 3))
def test_gaussians_are_the_textbook_formula(mu, nu, mean, scale):
    r = penalty_of(Gaussian(scale, mean), families.Gaussian())
    expected = 0.5 * ((mu - mean) ** 2 + nu**2) / scale**2 - 0.5 - math.log(nu / scale)
    assert abs(float(r(torch.tensor([mu], dtype=torch.float64), nu)) - expected) < 1e-9 * (1 + expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("nu", [0.2, 1.0])
def test_a_closed_form_is_what_quadrature_gives(family, nu):
    """Gaussian and Laplace priors as such, and as functions of which nothing is known."""
    for prior, function in (
        (Gaussian(0.8, 0.3), lambda x: normal(x, 0.3, 0.8)),
        (Laplace(0.7, -0.2), lambda x: -(x + 0.2).abs() / 0.7 - math.log(1.4)),
    ):
        shape = family(nu, df=8.0) if family is families.Student else family(nu)
        exact, summed = penalty_of(prior, shape)(MU), penalty_of(function, shape, nodes=40_001)(MU)
        torch.testing.assert_close(exact, summed, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_against_sampling(family):
    """Within five standard errors of 10⁵ draws: an error rate of 6e-7."""
    shape, prior = family(0.7), ScaleMixture(0.4, 1.0, 0.3)
    noise = shape.sample((100_000,), generator=torch.Generator().manual_seed(0))
    logs = shape.log_density(noise) - prior._log_density(0.5 + noise)
    expected, doubt = float(logs.mean()), float(logs.std()) / math.sqrt(len(logs))
    assert abs(float(penalty_of(prior, shape)(torch.tensor([0.5]).double())) - expected) < 5 * doubt


@given(st.sampled_from(FAMILIES), st.floats(-3, 3), st.floats(0.05, 2))
def test_a_divergence_is_not_negative(family, mu, nu):
    for prior in (Laplace(0.5), ScaleMixture(0.5, 1.0, 0.2)):
        assert float(penalty_of(prior, family(nu))(torch.tensor([mu], dtype=torch.float64))) > -1e-6


def test_it_is_zero_at_the_prior():
    assert abs(float(penalty_of(Gaussian(0.5, 0.3), families.Gaussian(0.5))(torch.tensor([0.3]).double()))) < 1e-12
    own = penalty_of(lambda x: families.Logistic().log_density(x), families.Logistic(1.0))
    assert abs(float(own(torch.zeros(1).double()))) < 1e-10


@pytest.mark.parametrize("prior", [Gaussian(0.5), Laplace(0.5), ScaleMixture(0.5, 1.0, 0.2)], ids=str)
def test_gradients_are_those_of_differences(prior):
    r = penalty_of(prior, families.Gaussian((0.1, 1.0)))
    mu = torch.tensor([0.3, -0.4], dtype=torch.float64, requires_grad=True)
    nu = torch.tensor([0.2, 0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(r, (mu, nu), eps=1e-5, atol=1e-6)


def test_a_point_mass_has_minus_the_log_density():
    torch.testing.assert_close(penalty_of(Laplace(0.5), families.PointMass())(MU), MU.abs() / 0.5 + math.log(1.0))
    assert float(penalty_of(Flat(), families.PointMass())(MU).abs().max()) == 0


def test_a_penalty_trains_a_mean_and_a_scale():
    """Alone it leads to the prior; what it was made from is found again."""
    r = penalty_of(Gaussian(0.7, 0.2), families.Gaussian((0.1, 2.0)))
    means = {"a": torch.full((3,), 2.0, requires_grad=True), "b": torch.zeros(2, 2, requires_grad=True)}
    logs = {name: torch.zeros_like(w).requires_grad_() for name, w in means.items()}
    optimiser = torch.optim.Adam([*means.values(), *logs.values()], lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        loss = r.total(means, {name: log.exp() for name, log in logs.items()})
        loss.backward()
        optimiser.step()
    assert loss.dtype == torch.float32
    assert loss.item() < 1e-3
    assert all((w - 0.2).abs().max().item() < 0.02 for w in means.values())
    assert all((log.exp() - 0.7).abs().max().item() < 0.02 for log in logs.values())


def test_totals_take_tensors_mappings_and_lists():
    r, w = penalties.L2(0.5) + penalties.L1(1.0), torch.tensor([1.0, -2.0])
    assert float(r.total(w)) == float(r.total([w])) == float(r.total({"w": w})) == 5.5
    group = penalties.GroupLasso(2.0)
    assert float(group.total(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))) == 12.0
    with pytest.raises(ValueError, match="at least one tensor"):
        r.total({})


def test_a_prior_of_many_weights_is_sampled():
    """A diagonal Gaussian, whose divergence is known, within five standard errors."""
    module = nn.Linear(3, 2).double()
    named = parameters(module)
    mean = {k: torch.zeros_like(w) for k, w in named.items()}
    prior = Structured(mean, Diagonal(torch.full((8,), 4.0, dtype=torch.float64)))
    r = penalty_of(prior, families.Gaussian(0.3), draws=2000)
    with torch.no_grad():
        found = float(r.total(named, generator=torch.Generator().manual_seed(0)))
        exact = float(penalty_of(Gaussian(0.5), families.Gaussian(0.3)).total(named))
    assert abs(found - exact) < 0.1
    with pytest.raises(ValueError, match="use total"):
        r(torch.zeros(2))
    with pytest.raises(TypeError, match="must have names"):
        r.total(torch.zeros(2))


def test_implied_priors_go_back_to_their_penalty():
    family = families.Gaussian((0.1, 1.0))
    prior = prior_of(
        penalty_of(lambda x: -0.25 * x**4 - 0.1 * torch.cos(3 * x), families.Gaussian(0.1)), families.Gaussian(0.1)
    )
    again = prior_of(penalty_of(prior, family), family)
    x = torch.linspace(-2, 2, 41, dtype=torch.float64)
    assert float((again.log_density(x) - prior.log_density(x)).abs().max()) < 2 * (prior.error + again.error)


def test_a_mixture_for_a_model_keeps_its_means():
    """That of a normalisation layer's weight is one: no one density for every weight."""
    module = nn.BatchNorm1d(4)
    bound = ScaleMixture(0.5, 1.0, 0.1).resolve(module)
    with torch.no_grad():
        found = float(penalty_of(bound, families.Gaussian(0.01)).total(parameters(module)))
        each = penalty_of(ScaleMixture(0.5, 1.0, 0.1), families.Gaussian(0.01))(torch.zeros(8))
    assert found == pytest.approx(float(each.sum()), rel=0.01)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: penalty_of(Gaussian(1.0), Gaussian(1.0)), TypeError, "br.penalties.translations"),
        (lambda: penalty_of(3, families.Gaussian()), TypeError, "prior must be"),
        (
            lambda: penalty_of(torch.distributions.Normal(torch.zeros(2), 1.0), families.Gaussian()),
            ValueError,
            "one number",
        ),
        (lambda: penalty_of(Gaussian(1.0), families.Gaussian(), nodes=1), ValueError, "nodes"),
        (lambda: penalty_of(Gaussian(1.0), families.Gaussian((0.1, 1)))(MU), ValueError, "scale is trained"),
        (lambda: penalty_of(Gaussian(1.0), families.Gaussian())(MU, -1.0), ValueError, "nu must be positive"),
        (lambda: families.Gaussian(-1.0), ValueError, "positive"),
        (lambda: families.Gaussian((2.0, 1.0)), ValueError, "rising"),
        (lambda: families.Gaussian("wide"), ValueError, "positive number"),
        (lambda: penalties.L2().total(nn.Linear(2, 1)), TypeError, "named_parameters"),
        (lambda: penalties.L2().total({"a": MU}, {"b": MU}), ValueError, "none for 'a'"),
        (lambda: penalties.L2().total([MU], [MU, MU]), ValueError, "as many as there are means, 1, not 2"),
        (lambda: families.Student(1.0, df=-1.0), ValueError, "df must be positive"),
        (lambda: families.PointMass(0.5), ValueError, "no scale"),
        (lambda: families.Samples(draws=torch.ones(20)), ValueError, "that differ"),
        (lambda: families.Characteristic(function=lambda k: 2 + k), ValueError, "1 at frequency 0"),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
