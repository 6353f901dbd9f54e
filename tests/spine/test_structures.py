"""Every structure is the dense matrix it stands for: one table, and what is particular to each."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal, kl_divergence

import bayesrule as br
from bayesrule import files, modules, priors
from bayesrule.naming import from_spec, to_spec
from bayesrule.posteriors import Context, Gaussian
from bayesrule.structures import AVAILABLE, Blocks, Dense, Diagonal, Kronecker, LowRank, Scaled, Spiked, Structure

DOUBLE = torch.float64
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
seeds = st.integers(0, 2**20)
small = st.integers(1, 4)


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=DOUBLE)


def positive(generator, *shape):
    return torch.rand(*shape, generator=generator, dtype=DOUBLE) + 0.1


def definite(generator, size):
    factor = normal(generator, size, size)
    return factor @ factor.T / size + 0.5 * torch.eye(size, dtype=DOUBLE)


def diagonal(generator, rows, columns):
    variance = positive(generator, rows * columns)
    return Diagonal(variance), variance.diag()


def low_rank(generator, rows, columns):
    variance, factor = positive(generator, rows * columns), normal(generator, rows * columns, columns)
    return LowRank(variance, factor), variance.diag() + factor @ factor.T


def dense(generator, rows, columns):
    precision = definite(generator, rows * columns)
    return Dense.of_precision(precision), precision.inverse()


def kronecker(generator, rows, columns):
    left, right = (torch.linalg.qr(normal(generator, n, n))[0] for n in (rows, columns))
    variance = positive(generator, rows, columns)
    both = torch.kron(left, right)
    return Kronecker(left, right, variance), both @ variance.flatten().diag() @ both.T


def biased(generator, rows, columns):
    """The last column of the matrix, a bias, at the end of the vector."""
    structure, sigma = kronecker(generator, rows, columns)
    place = torch.arange(rows * columns).view(rows, columns)
    order = torch.cat([place[:, :-1].flatten(), place[:, -1]])
    return Kronecker(structure.left, structure.right, structure.variance, bias=True), sigma[order][:, order]


def spiked(generator, rows, columns):
    vectors = torch.linalg.qr(normal(generator, rows * columns, columns))[0]
    variance = positive(generator, columns)
    sigma = torch.eye(rows * columns, dtype=DOUBLE) + vectors @ (variance - 1).diag() @ vectors.T
    return Spiked(vectors, variance), sigma


def scaled(generator, rows, columns):
    part, sigma = dense(generator, rows, columns)
    scale = positive(generator, rows * columns)
    return Scaled(part, scale), scale[:, None] * sigma * scale


def blocks(generator, rows, columns):
    """One part of several other kinds, two of them in Blocks of their own."""
    parts, sigmas = zip(
        *(make(generator, rows, columns) for make in (kronecker, diagonal, dense, low_rank)), strict=True
    )
    return Blocks([*parts[:2], Blocks(parts[2:])]), torch.block_diag(*sigmas)


TABLE = {
    "diagonal": diagonal,
    "low-rank": low_rank,
    "spiked": spiked,
    "dense": dense,
    "kronecker": kronecker,
    "kronecker, with a bias": biased,
    "blocks": blocks,
    "scaled": scaled,
}
every = pytest.mark.parametrize("kind", TABLE)


def make(kind, rows, columns, seed):
    """A structure and the matrix that it stands for, made apart from it."""
    return TABLE[kind](torch.Generator().manual_seed(seed), rows, columns)


def test_every_structure_is_in_the_table():
    assert {make(kind, 2, 3, 0)[0].name for kind in TABLE} == set(AVAILABLE)


@every
@given(rows=small, columns=small, seed=seeds)
def test_a_structure_is_its_matrix(kind, rows, columns, seed):
    structure, sigma = make(kind, rows, columns, seed)
    size = len(sigma)
    v = normal(torch.Generator().manual_seed(seed + 1), size)
    precision = sigma.inverse()
    reference = MultivariateNormal(torch.zeros(size, dtype=DOUBLE), sigma)
    assert structure.size == size
    torch.testing.assert_close(structure.diagonal, sigma.diagonal(), **CLOSE)
    torch.testing.assert_close(structure.precision_diagonal, precision.diagonal(), **CLOSE)
    torch.testing.assert_close(structure.quadratic(v), v @ precision @ v, **CLOSE)
    torch.testing.assert_close(structure.logdet(), sigma.logdet(), **CLOSE)
    torch.testing.assert_close(structure.log_prob(v), reference.log_prob(v), **CLOSE)
    assert structure.quadratic(v) >= 0
    assert (structure.diagonal > 0).all()
    assert (structure.precision_diagonal > 0).all()


@every
@given(rows=small, columns=small, seed=seeds, lead=st.lists(st.integers(1, 3), max_size=2), outputs=small)
def test_products_are_those_of_the_matrix(kind, rows, columns, seed, lead, outputs):
    structure, sigma = make(kind, rows, columns, seed)
    j = normal(torch.Generator().manual_seed(seed + 1), *lead, outputs, len(sigma))
    torch.testing.assert_close(structure.multiply(j), j @ sigma, **CLOSE)
    torch.testing.assert_close(structure.multiply(j.flatten(0, -2)[0]), sigma @ j.flatten(0, -2)[0], **CLOSE)
    torch.testing.assert_close(structure.variance_along(j), j @ sigma @ j.mT, **CLOSE)
    torch.testing.assert_close(Structure.variance_along(structure, j), j @ sigma @ j.mT, **CLOSE)


@every
def test_single_precision_stays_and_is_near(kind):
    structure, sigma = make(kind, 3, 4, 0)
    low, v = structure.to(torch.float32), normal(torch.Generator().manual_seed(1), len(sigma))
    pairs = [
        (low.diagonal, sigma.diagonal()),
        (low.precision_diagonal, sigma.inverse().diagonal()),
        (low.log_prob(v.float()), structure.log_prob(v)),
        (low.multiply(v.float()), sigma @ v),
        (low.variance_along(v.float()[None]), (v @ sigma @ v)[None, None]),
    ]
    assert low.sample(3, torch.Generator().manual_seed(0)).dtype == torch.float32
    for found, wanted in pairs:
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@every
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_draws_have_the_covariance(kind, seed):
    """z-test of every mean and entry of the sample covariance: of 24 numbers for blocks, of 6 for the other kinds.

    3 seeds × (7 × 27 + 324) numbers at |z| < 5: error rate < 1e-3.
    """
    (structure, sigma), n = make(kind, 2, 3, seed), 20_000
    draws = structure.sample(n, torch.Generator().manual_seed(seed))
    error = ((sigma.diagonal()[:, None] * sigma.diagonal() + sigma.square()) / n).sqrt()
    assert ((draws.T @ draws / n - sigma).abs() / error).max() < 5
    assert (draws.mean(0).abs() / (sigma.diagonal() / n).sqrt()).max() < 5


@every
def test_draws_follow_the_generator_alone(kind):
    structure, _ = make(kind, 2, 3, 0)
    state = torch.get_rng_state()
    first, second = (structure.sample(2, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())


@every
def test_a_structure_comes_back_from_a_file_to_the_bit(kind, tmp_path):
    structure, sigma = make(kind, 5, 7, 0)
    files.save(tmp_path / "it", to_spec(structure), "structure")
    again = from_spec("structure", files.load(tmp_path / "it", "structure"), AVAILABLE)
    v = normal(torch.Generator().manual_seed(1), len(sigma))
    for one in (again, copy.deepcopy(structure)):
        assert type(one) is type(structure)
        assert torch.equal(one.log_prob(v), structure.log_prob(v))
        assert torch.equal(
            one.sample(2, torch.Generator().manual_seed(0)), structure.sample(2, torch.Generator().manual_seed(0))
        )


@every
@given(seed=seeds)
def test_divergence_of_a_structured_prior(kind, seed):
    structure, sigma = make(kind, 2, 3, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    mean, other, std = (
        {"w": normal(generator, len(sigma))},
        normal(generator, len(sigma)),
        positive(generator, len(sigma)),
    )
    prior = priors.from_spec(to_spec(priors.Structured(mean, structure)))
    reference = kl_divergence(MultivariateNormal(other, std.square().diag()), MultivariateNormal(mean["w"], sigma))
    torch.testing.assert_close(prior.divergence(other, std, {"w": mean["w"]}), reference, rtol=1e-9, atol=1e-9)


def network_posterior(model):
    """Kronecker for the first weight, dense and low-rank for the others, diagonal for the biases."""
    generator = torch.Generator().manual_seed(0)
    parts = [kronecker(generator, 5, 2)[0], diagonal(generator, 5, 1)[0], dense(generator, 3, 5)[0]]
    covariance = Blocks([*parts, low_rank(generator, 3, 1)[0]]).to(torch.float32)
    context = Context(model, br.likelihoods.Categorical())
    return Gaussian(modules.copies(modules.parameters(model)), covariance, {}, context)


def test_a_posterior_of_blocks_draws_saves_loads_and_becomes_a_prior(tmp_path):
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3))
    posterior = network_posterior(model)
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    posterior.save(tmp_path / "posterior.safetensors")
    again = br.load(tmp_path / "posterior.safetensors", model)
    assert torch.equal(again.predict(x).probs, posterior.predict(x).probs)
    assert {k: v.shape for k, v in again.std.items()} == {k: v.shape for k, v in modules.parameters(model).items()}
    data = (x, torch.tensor([0, 1, 2, 0, 1, 2]))
    for method in ("map", "swag"):
        after = br.fit(model, data, method, prior=again.as_prior(), epochs=4)
        after.save(tmp_path / "after.safetensors")
        assert torch.equal(br.load(tmp_path / "after.safetensors", model).predict(x).probs, after.predict(x).probs)


def test_low_rank_agrees_with_torch():
    structure, _ = make("low-rank", 10, 3, 0)
    v = normal(torch.Generator().manual_seed(1), 30)
    torch_own = LowRankMultivariateNormal(torch.zeros(30, dtype=DOUBLE), structure.factor, structure.variance)
    torch.testing.assert_close(structure.log_prob(v), torch_own.log_prob(v))


@given(rows=small, columns=small, seed=seeds, rank=small, scale=st.floats(0, 100), precision=st.floats(0.1, 100))
def test_kronecker_of_factors_is_the_inverse(rows, columns, seed, rank, scale, precision):
    """Factors of any rank, none included where scale is 0."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (f @ f.T for f in (normal(generator, rows, rank), normal(generator, columns, rank)))
    structure = Kronecker.of_factors(left, right, scale, precision)
    want = scale * torch.kron(left, right) + precision * torch.eye(rows * columns, dtype=DOUBLE)
    j = normal(generator, 3, rows * columns)
    torch.testing.assert_close(structure.multiply(j) @ want, j, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(structure.logdet(), -want.logdet(), rtol=1e-9, atol=1e-9)


def test_kronecker_of_single_factors_clips_rounding():
    """A float32 Gram matrix of rank one in a hundred dimensions has eigenvalues below zero."""
    column = torch.randn(100, 1, generator=torch.Generator().manual_seed(0))
    gram = column @ column.T
    structure = Kronecker.of_factors(gram, gram, scale=1e8, precision=1e-3)
    assert structure.variance.dtype == torch.float32
    assert structure.variance.max() <= 1000.001


def test_dense_of_a_single_precision_matrix():
    precision = definite(torch.Generator().manual_seed(0), 6)
    assert Dense.of_precision(precision.float()).factor.dtype == torch.float32
    torch.testing.assert_close(Dense.of_precision(precision).factor, torch.linalg.cholesky(precision), **CLOSE)


EYE = torch.eye(2)
NAN = torch.tensor([[1.0, 0.0], [float("nan"), 1.0]])
WRONG = {"name": "densee", "fields": {}}
TILTED = torch.tensor([[1.0, 0.5], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (
            lambda: Dense.of_precision(torch.diag(torch.tensor([1.0, -2.0]))),
            r"smallest eigenvalue is -2; add more than 2",
        ),
        (lambda: Dense.of_precision(torch.zeros(2, 2)), "positive definite, but its smallest eigenvalue is 0"),
        (lambda: Dense.of_precision(NAN), r"the precision must be finite, but \[1, 0\] is nan"),
        (lambda: Dense.of_precision(TILTED), r"must be symmetric, but \[0, 1\] is 0.5 and \[1, 0\] is 0;"),
        (lambda: Dense.of_precision(torch.ones(2, 3)), r"square matrix of floats, not \[2, 3\] torch.float32"),
        (lambda: Dense.of_precision(torch.eye(2, dtype=torch.int64)), "of floats, not .* torch.int64"),
        (lambda: Dense(TILTED), "factor must be lower triangular"),
        (lambda: Dense(-EYE), "positive diagonal, not -1"),
        (lambda: Kronecker(EYE, torch.eye(3), torch.ones(3, 2)), r"shape \[2, 3\] of left and right, not \[3, 2\]"),
        (lambda: Kronecker(EYE, EYE, torch.zeros(2, 2)), "variance must be positive, not 0"),
        (
            lambda: Kronecker(EYE, 3 * EYE, torch.ones(2, 2)),
            "right must hold orthonormal columns, but one has length 3",
        ),
        (lambda: Kronecker(torch.ones(2), EYE, torch.ones(2, 2)), r"left must be a square matrix of floats, not \[2\]"),
        (lambda: Kronecker.of_factors(NAN, EYE), "left must be finite"),
        (lambda: Kronecker.of_factors(EYE, TILTED), "right must be symmetric"),
        (
            lambda: Kronecker.of_factors(EYE, -EYE),
            "right must be positive semi-definite, but its smallest eigenvalue is -1",
        ),
        (lambda: Kronecker.of_factors(EYE, EYE, scale=-1.0), "scale must be finite and not negative, not -1.0"),
        (lambda: Kronecker.of_factors(EYE, 0 * EYE, precision=0.0), "precision must be above 0, not 0"),
        (
            lambda: Kronecker.of_factors(EYE, EYE, precision=float("nan")),
            "precision must be one finite number, not nan",
        ),
        (lambda: Spiked(2 * EYE, torch.ones(2)), "vectors must hold orthonormal columns, but one has length 2"),
        (lambda: Spiked(EYE, torch.ones(3)), r"one number for each of the 2 vectors, not \[3\]"),
        (lambda: Spiked(EYE, torch.zeros(2)), "variance must be positive, not 0"),
        (lambda: Scaled(Diagonal(torch.ones(2)), torch.ones(3)), r"shape \[2\] of the part, not \[3\]"),
        (lambda: Scaled(Diagonal(torch.ones(2)), torch.zeros(2)), "scale must be positive and finite, not 0"),
        (lambda: Blocks([]), "at least one structure"),
        (lambda: Blocks([Diagonal(torch.ones(2)), torch.ones(2)]), r"parts\[1\] must be a structure, not Tensor"),
        (
            lambda: from_spec("structure", {"name": "blocks", "fields": {"parts": [WRONG]}}, AVAILABLE),
            "unknown structure 'densee': did you mean 'dense'",
        ),
    ],
)
def test_what_a_structure_refuses(build, match):
    with pytest.raises((ValueError, TypeError), match=match):
        build()
