"""Every structure is the dense matrix it stands for: one table, and what is particular to each."""

import copy
import itertools

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
from bayesrule.structures import (
    AVAILABLE,
    Blocks,
    Dense,
    Diagonal,
    Kronecker,
    LowRank,
    Structure,
    Sum,
    relative_eigenvalues,
    selected,
)

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
    values = positive(generator, rows * columns)
    return Diagonal(values), values.diag()


def low_rank(generator, rows, columns):
    values, factor = positive(generator, rows * columns), normal(generator, rows * columns, columns)
    return LowRank(values, factor), values.diag() + factor @ factor.T


def path(generator, rows, columns):
    """What a covariance is made of."""
    values, factor = positive(generator, rows * columns), normal(generator, rows * columns, columns)
    return LowRank(values, factor, of="covariance"), (values.diag() + factor @ factor.T).inverse()


def dense(generator, rows, columns):
    precision = definite(generator, rows * columns)
    return Dense(precision), precision


def kronecker(generator, rows, columns):
    """Of a product of any rank, and a prior of one precision for all weights."""
    left, right = (f @ f.T for f in (normal(generator, rows, 2), normal(generator, columns, 2)))
    values = torch.full((rows * columns,), 0.5, dtype=DOUBLE)
    return Kronecker([left], [right], values), torch.kron(left, right) + values.diag()


def order(rows, columns):
    """Where the numbers of a matrix are in the vector that has its last column, a bias, at the end."""
    index = torch.arange(rows * columns).view(rows, columns)
    return torch.cat([index[:, :-1].flatten(), index[:, -1]])


def biased(generator, rows, columns):
    """The last column of the matrix, a bias with another prior, at the end of the vector."""
    structure, _ = kronecker(generator, rows, columns)
    values = torch.cat([torch.full((rows * (columns - 1),), 0.5), torch.full((rows,), 4.0)]).double()
    index = order(rows, columns)
    matrix = torch.kron(structure.lefts[0], structure.rights[0])[index][:, index] + values.diag()
    return Kronecker(structure.lefts, structure.rights, values, bias=True), matrix


def several(generator, rows, columns):
    """Products that share a factor up to a number, one more prior for each row, and a prior for each column."""
    left, right, other = (definite(generator, n) for n in (rows, columns, columns))
    values = torch.outer(torch.ones(rows).double(), positive(generator, columns)).flatten()
    matrix = torch.kron(left, right + 3 * other) + values.diag()
    return Kronecker([left, 3 * left], [right, other], values), matrix


def blocks(generator, rows, columns):
    """One part of several other kinds, two of them in Blocks of their own."""
    parts, matrices = zip(
        *(make(generator, rows, columns) for make in (kronecker, diagonal, dense, low_rank)), strict=True
    )
    return Blocks([*parts[:2], Blocks(parts[2:])]), torch.block_diag(*matrices)


def total(generator, rows, columns):
    """Of kinds that have no simpler sum."""
    parts, matrices = zip(*(make(generator, rows, columns) for make in (kronecker, low_rank, path)), strict=True)
    return Sum(parts), sum(matrices)


TABLE = {
    "diagonal": diagonal,
    "low rank": low_rank,
    "low rank, of a covariance": path,
    "dense": dense,
    "kronecker": kronecker,
    "kronecker, with a bias": biased,
    "kronecker, several products": several,
    "blocks": blocks,
    "sum": total,
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
    structure, matrix = make(kind, rows, columns, seed)
    size = len(matrix)
    v = normal(torch.Generator().manual_seed(seed + 1), size)
    reference = MultivariateNormal(torch.zeros(size, dtype=DOUBLE), precision_matrix=matrix)
    assert structure.size == size
    torch.testing.assert_close(structure.dense(), matrix, **CLOSE)
    torch.testing.assert_close(structure.diagonal, matrix.diagonal(), **CLOSE)
    torch.testing.assert_close(structure.variances, matrix.inverse().diagonal(), **CLOSE)
    torch.testing.assert_close(structure.quadratic(v), v @ matrix @ v, **CLOSE)
    torch.testing.assert_close(structure.logdet(), matrix.logdet(), **CLOSE)
    torch.testing.assert_close(structure.log_prob(v), reference.log_prob(v), **CLOSE)
    torch.testing.assert_close((structure * 3.0).dense(), 3 * matrix, **CLOSE)


@every
@given(rows=small, columns=small, seed=seeds, lead=st.lists(st.integers(1, 3), max_size=2), outputs=small)
def test_products_are_those_of_the_matrix(kind, rows, columns, seed, lead, outputs):
    structure, matrix = make(kind, rows, columns, seed)
    j, sigma = normal(torch.Generator().manual_seed(seed + 1), *lead, outputs, len(matrix)), matrix.inverse()
    torch.testing.assert_close(structure.multiply(j), j @ matrix, **CLOSE)
    torch.testing.assert_close(structure.solve(j), j @ sigma, **CLOSE)
    torch.testing.assert_close(structure.solve(j.flatten(0, -2)[0]), sigma @ j.flatten(0, -2)[0], **CLOSE)
    torch.testing.assert_close(structure.variance_along(j), j @ sigma @ j.mT, **CLOSE)
    torch.testing.assert_close(Structure.variance_along(structure, j), j @ sigma @ j.mT, **CLOSE)


@every
@given(rows=small, columns=small, seed=seeds, ends=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_part_is_that_of_the_matrix(kind, rows, columns, seed, ends):
    structure, matrix = make(kind, rows, columns, seed)
    start, stop = sorted(round(end * len(matrix)) for end in ends)
    if start < stop:
        torch.testing.assert_close(structure.part(start, stop).dense(), matrix[start:stop, start:stop], **CLOSE)


@pytest.mark.parametrize("second", TABLE)
@pytest.mark.parametrize("first", TABLE)
def test_precisions_add_up(first, second):
    """Every two kinds, exactly: products with the sum, and what needs its inverse, as the sum is small."""
    (a, left), (b, right) = make(first, 2, 3, 0), make(second, 2, 3, 1)
    if a.size < b.size:
        a, left = Blocks([a] * (b.size // a.size)), torch.block_diag(*[left] * (b.size // a.size))
    elif b.size < a.size:
        b, right = Blocks([b] * (a.size // b.size)), torch.block_diag(*[right] * (a.size // b.size))
    both = a + b
    v = normal(torch.Generator().manual_seed(2), both.size)
    torch.testing.assert_close(both.dense(), left + right, **CLOSE)
    torch.testing.assert_close(both.multiply(v), (left + right) @ v, **CLOSE)
    if not _of_several_products(both):
        torch.testing.assert_close(both.solve(v), torch.linalg.solve(left + right, v), **CLOSE)
        torch.testing.assert_close(both.logdet(), (left + right).logdet(), **CLOSE)


def mixed(structure, chance):
    """The same, with each part of blocks and sums in single or double precision."""
    if isinstance(structure, Blocks | Sum):
        return type(structure)([mixed(part, chance) for part in structure.parts])
    return structure.to(chance.choice([torch.float32, DOUBLE]))


@given(kinds=st.lists(st.sampled_from(list(TABLE)), min_size=1, max_size=3), seed=seeds, chance=st.randoms())
def test_structures_of_any_dtypes_add_up_and_answer_in_the_dtype_of_the_vector(kinds, seed, chance):
    found = [make(kind, 2, 3, seed + index) for index, kind in enumerate(kinds)]
    size = max(structure.size for structure, _ in found)
    parts, matrix = [], torch.zeros(size, size, dtype=DOUBLE)
    for structure, own in found:
        count = size // structure.size
        parts.append(mixed(Blocks([structure] * count), chance))
        matrix = matrix + torch.block_diag(*[own] * count)
    total = sum(parts[1:], parts[0])
    assert (total.dtype == DOUBLE) == any(part.dtype == DOUBLE for part in parts)
    near = {"rtol": 1e-3, "atol": 1e-3, "check_dtype": False}
    torch.testing.assert_close(total.dense(), matrix, **near)
    torch.testing.assert_close(total.diagonal, matrix.diagonal(), **near)
    torch.testing.assert_close(total.part(1, size).dense(), matrix[1:, 1:], **near)
    assert total.sample(2, torch.Generator().manual_seed(0)).shape == (2, size)
    for dtype in (torch.float32, DOUBLE):
        v = normal(torch.Generator().manual_seed(seed), size).to(dtype)
        torch.testing.assert_close(total.multiply(v), matrix @ v.double(), **near)
        for answer in (total.multiply(v), total.solve(v), total.quadratic(v), total.variance_along(v[None])):
            assert answer.dtype == dtype
        assert total.log_prob(v).isfinite()


def _of_several_products(structure):
    """Whether a square root is an approximation: Kronecker products that share no factor, or an uneven diagonal."""
    if isinstance(structure, Blocks):
        return any(_of_several_products(part) for part in structure.parts)
    return isinstance(structure, Kronecker)


@pytest.mark.parametrize("apart", [0.0, 0.1, 1.0])
def test_how_far_the_root_of_several_products_is_from_the_sum(apart):
    """Second factors that differ by ``apart`` from a multiple of the first: the error of marginal variances and of the
    volume for each number grows with the square of it."""
    generator = torch.Generator().manual_seed(0)
    left, right, more, other = (definite(generator, n) for n in (3, 4, 3, 4))
    first = Kronecker.of(left, right) + Diagonal(torch.ones(12, dtype=DOUBLE))
    second = Kronecker.of(left + apart * more, 2 * right + apart * other)
    both, matrix = first + second, first.dense() + second.dense()
    error = (both.variances / matrix.inverse().diagonal() - 1).abs().max()
    volume = abs(float(both.logdet() - matrix.logdet())) / 12
    assert error <= 1e-12 + 0.1 * apart**2
    assert volume <= 1e-12 + 0.02 * apart**2
    assert torch.allclose(both.dense(), matrix, rtol=1e-12)


@pytest.mark.parametrize(("apart", "bound"), [(0.1, 0.005), (None, 0.33)])
def test_variances_of_two_products_are_as_near_as_the_documentation_says(apart, bound):
    """Well-conditioned products whose factors differ by a tenth, and unlike ones; each of 20 pairs."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        left, right, more, other = (definite(generator, n) for n in (6, 5, 6, 5))
        second = Kronecker.of(more, other)
        if apart is not None:
            second = Kronecker.of(left + apart * more, 2 * right + apart * other)
        both = Kronecker.of(left, right) + Diagonal(torch.ones(30, dtype=DOUBLE)) + second
        assert (both.variances / both.dense().inverse().diagonal() - 1).abs().max() < bound


def test_one_product_is_exact_beside_a_diagonal_of_rows_times_columns():
    generator = torch.Generator().manual_seed(0)
    values = torch.outer(positive(generator, 3), positive(generator, 4)).flatten()
    both = Kronecker.of(definite(generator, 3), definite(generator, 4)) + Diagonal(values)
    torch.testing.assert_close(both.variances, both.dense().inverse().diagonal(), **CLOSE)


def test_products_and_directions_grow_by_one_part_with_each_data_set():
    generator = torch.Generator().manual_seed(0)
    products, few = kronecker(generator, 2, 3)[0], low_rank(generator, 2, 3)[0]
    for sets in range(2, 5):
        products, few = products + kronecker(generator, 2, 3)[0], few + low_rank(generator, 2, 3)[0]
        assert (len(products.lefts), few.factor.shape[1]) == (sets, 3 * sets)


def test_the_root_of_a_large_sum_keeps_the_products_and_the_diagonals(monkeypatch):
    monkeypatch.setattr(br.structures.sums, "SMALL", 1)
    (products, matrix), (few, other) = make("kronecker", 2, 3, 0), make("low rank", 2, 3, 1)
    both = products + few
    assert isinstance(both, Sum)
    assert isinstance(both.root, Kronecker)
    torch.testing.assert_close(both.root.dense(), matrix + other.diagonal().diag(), **CLOSE)
    torch.testing.assert_close(both.dense(), matrix + other, **CLOSE)


def large_sums():
    """Parts that no kind holds together, and which of them a large sum keeps."""
    generator = torch.Generator().manual_seed(0)
    flat, tall = (Kronecker.of(definite(generator, n), definite(generator, 6 // n)) for n in (2, 3))
    few, way = low_rank(generator, 2, 3)[0], path(generator, 2, 3)[0]
    pieces = Blocks([dense(generator, 1, 2)[0], dense(generator, 2, 2)[0]])
    even = Diagonal(torch.ones(6, dtype=DOUBLE))
    return [
        ([flat, tall * 9.0], 1),
        ([few, way], 1),
        ([flat, few, way], 0),
        ([few, pieces, even], 1),
        ([even, few, tall, flat * 9.0], 3),
    ]


@pytest.mark.parametrize("case", range(5))
def test_the_root_of_a_large_sum_is_the_same_in_every_order(monkeypatch, case):
    monkeypatch.setattr(br.structures.sums, "SMALL", 1)
    parts, kept = large_sums()[case]
    wanted = parts[kept].dense()
    for index, part in enumerate(parts):
        if index != kept:
            wanted = wanted + part.diagonal.diag()
    for order in itertools.permutations(parts):
        added = sum(order[1:], order[0])
        for total in (added, Sum(order)):
            torch.testing.assert_close(total.root.dense(), wanted, **CLOSE)


def test_the_root_of_a_large_sum_is_exact_where_one_kind_holds_all(monkeypatch):
    monkeypatch.setattr(br.structures.sums, "SMALL", 1)
    (matrix, own), (few, other) = make("dense", 2, 3, 0), make("low rank", 2, 3, 1)
    torch.testing.assert_close(Sum([few, few, matrix]).root.dense(), own + 2 * other, **CLOSE)


def test_products_that_share_a_factor_become_one():
    left, right = definite(torch.Generator().manual_seed(0), 2), definite(torch.Generator().manual_seed(1), 3)
    total = Kronecker.of(left, right)
    for scale in (2.0, 3.0, 0.5):
        total = total + Kronecker.of(scale * left, definite(torch.Generator().manual_seed(2), 3))
    assert len(total.lefts) == 1


def test_blocks_that_are_cut_at_other_places_meet_where_both_are_cut():
    first = Blocks([Diagonal(torch.ones(4)), Dense(torch.eye(2)), Dense(torch.eye(3))])
    second = Blocks([Dense(torch.eye(3)), Diagonal(torch.ones(1)), Dense(torch.eye(5))])
    both = first + second
    assert [part.size for part in both.parts] == [3, 1, 5]
    assert torch.equal(both.dense(), 2 * torch.eye(9))


def with_eigenvalues(seed=0):
    """Priors and curvatures whose volumes come from eigenvalues that are worked out once."""
    (values, _), (matrix, _) = (make(kind, 2, 3, seed) for kind in ("diagonal", "dense"))
    even = Diagonal(torch.full((6,), 2.0, dtype=DOUBLE))
    product = Kronecker.of(*(definite(torch.Generator().manual_seed(1), n) for n in (2, 3)))
    return {
        "diagonal, diagonal": (values, even),
        "diagonal, dense": (values, matrix),
        "dense, dense": (matrix, Dense(definite(torch.Generator().manual_seed(1), 6))),
        "diagonal, kronecker": (even, product),
    }


@pytest.mark.parametrize("pair", with_eigenvalues())
@given(a=st.floats(0.01, 100), b=st.floats(0.01, 100))
def test_relative_eigenvalues_give_every_volume(pair, a, b):
    prior, curvature = with_eigenvalues()[pair]
    volume = (prior * a).logdet() + (b / a * relative_eigenvalues(prior, curvature)).log1p().sum()
    wanted = (a * prior.dense() + b * curvature.dense()).logdet()
    torch.testing.assert_close(volume, wanted, rtol=1e-8, atol=1e-8)


def test_structures_without_cheap_eigenvalues_have_none():
    (few, _), (values, _), (several, _) = (make(kind, 2, 3, 0) for kind in ("low rank", "diagonal", "kronecker"))
    assert relative_eigenvalues(values, few) is None
    assert relative_eigenvalues(values, several) is None
    assert relative_eigenvalues(several, several) is None


@every
def test_single_precision_is_near(kind):
    structure, matrix = make(kind, 3, 4, 0)
    low, v = structure.to(torch.float32), normal(torch.Generator().manual_seed(1), len(matrix))
    pairs = [
        (low.diagonal, matrix.diagonal()),
        (low.variances, matrix.inverse().diagonal()),
        (low.log_prob(v.float()), structure.log_prob(v)),
        (low.solve(v.float()), torch.linalg.solve(matrix, v)),
        (low.variance_along(v.float()[None]), (v @ torch.linalg.solve(matrix, v))[None, None]),
    ]
    for found, wanted in pairs:
        torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-3)


@every
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_draws_have_the_covariance(kind, seed):
    """z-test of every mean and entry of the sample covariance: of 24 numbers for blocks, of 6 for the other kinds.

    3 seeds × (8 × 27 + 324) numbers at |z| < 5: error rate < 1e-3.
    """
    (structure, matrix), n = make(kind, 2, 3, seed), 20_000
    sigma = matrix.inverse()
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
    structure, matrix = make(kind, 5, 7, 0)
    files.save(tmp_path / "it", to_spec(structure), "structure")
    again = from_spec("structure", files.load(tmp_path / "it", "structure"), AVAILABLE)
    v = normal(torch.Generator().manual_seed(1), len(matrix))
    for one in (again, copy.deepcopy(structure)):
        assert type(one) is type(structure)
        assert torch.equal(one.log_prob(v), structure.log_prob(v))
        assert torch.equal(
            one.sample(2, torch.Generator().manual_seed(0)), structure.sample(2, torch.Generator().manual_seed(0))
        )


@every
@given(seed=seeds)
def test_divergence_of_a_structured_prior(kind, seed):
    structure, matrix = make(kind, 2, 3, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    mean, other, std = (
        {"w": normal(generator, len(matrix))},
        normal(generator, len(matrix)),
        positive(generator, len(matrix)),
    )
    prior = priors.from_spec(to_spec(priors.Structured(mean, structure)))
    reference = kl_divergence(
        MultivariateNormal(other, std.square().diag()), MultivariateNormal(mean["w"], precision_matrix=matrix)
    )
    torch.testing.assert_close(prior.divergence(other, std, {"w": mean["w"]}), reference, rtol=1e-9, atol=1e-9)


def network_posterior(model):
    """Kronecker for the first weight, dense and low-rank for the others, diagonal for the biases."""
    generator = torch.Generator().manual_seed(0)
    parts = [kronecker(generator, 5, 2)[0], diagonal(generator, 5, 1)[0], dense(generator, 3, 5)[0]]
    precision = Blocks([*parts, low_rank(generator, 3, 1)[0]])
    context = Context(model, br.likelihoods.Categorical())
    return Gaussian(modules.copies(modules.parameters(model)), precision, {}, context)


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
    structure, _ = make("low rank, of a covariance", 10, 3, 0)
    v = normal(torch.Generator().manual_seed(1), 30)
    torch_own = LowRankMultivariateNormal(torch.zeros(30, dtype=DOUBLE), structure.factor, structure.values)
    torch.testing.assert_close(structure.log_prob(v), torch_own.log_prob(v))


def test_products_of_single_precision_sums_clip_rounding():
    """A float32 Gram matrix of rank one in a hundred dimensions has eigenvalues below zero."""
    column = torch.randn(100, 1, generator=torch.Generator().manual_seed(0))
    gram = column @ column.T
    structure = Kronecker.of(gram * 1e8, gram) + Diagonal(torch.full((10_000,), 1e-3))
    assert structure.variances.max() <= 1000.001


@pytest.mark.parametrize("seed", range(5))
def test_products_of_low_rank_have_no_inverse_without_a_prior(seed):
    """Though rounding makes some of their zero eigenvalues positive."""
    factor = normal(torch.Generator().manual_seed(seed), 6, 2)
    product = Kronecker.of(factor @ factor.T, definite(torch.Generator().manual_seed(seed), 3))
    with pytest.raises(ValueError, match="must be positive definite"):
        product.logdet()
    assert (product + Diagonal(torch.full((18,), 1e-12, dtype=DOUBLE))).variances.max() <= 1.001e12


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_covariance_with_very_wide_directions_takes_precisions_in(dtype):
    """Directions 10¹⁰ times as wide as the others: one observation of each weight settles them all."""
    path = LowRank(torch.ones(4, dtype=dtype), 1e10 * torch.eye(4, dtype=dtype)[:, :2], of="covariance")
    seen = path.plus_diagonal(torch.ones(4, dtype=dtype))
    assert seen.values.dtype == seen.factor.dtype == dtype
    torch.testing.assert_close(seen.variances, torch.tensor([1, 1, 0.5, 0.5], dtype=dtype))
    torch.testing.assert_close(path.diagonal[2:], torch.ones(2, dtype=dtype))
    assert path.part(0, 3).values.dtype == dtype
    wide = LowRank(torch.ones(4, dtype=dtype), 1e5 * torch.ones(4, 1, dtype=dtype), of="covariance")
    torch.testing.assert_close(wide.dense(), torch.eye(4, dtype=dtype) - 0.25)
    # the fourth weight given the first three, which tell where the wide direction is
    torch.testing.assert_close(wide.part(3, 4).variances, torch.tensor([4 / 3], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("least", [1e-12, 1e-16, 1e-20])
def test_a_covariance_of_next_to_nothing_beside_its_directions_takes_precisions_in(least, dtype):
    """As SWAG's is where a weight has not moved: (M⁻¹ + I)⁻¹ = M (M + I)⁻¹ to the digits of the dtype."""
    factor = normal(torch.Generator().manual_seed(0), 6, 3).to(dtype)
    path = LowRank(torch.full((6,), least, dtype=dtype), factor, of="covariance")
    seen = path + Diagonal(torch.ones(6, dtype=dtype))
    before = factor.double() @ factor.double().T + least * torch.eye(6, dtype=DOUBLE)
    wanted = torch.linalg.solve(before + torch.eye(6, dtype=DOUBLE), before)
    found = seen.solve(torch.eye(6, dtype=dtype))
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=8 * torch.finfo(dtype).eps)
    assert seen.logdet().isfinite()


def test_the_bias_of_a_wide_layer_is_cut_out_without_the_layer():
    """All of the matrix would take 300 GB."""
    layer = Kronecker.of(2 * torch.eye(100), 3 * torch.eye(2001), bias=True) + Diagonal(torch.ones(200_100))
    bias = layer.part(200_000, 200_100)
    assert torch.equal(bias.dense(), 7 * torch.eye(100))


def test_eigenvalues_are_not_those_of_the_products_alone_where_a_curvature_has_more():
    more = Kronecker.of(EYE, EYE) + Diagonal(torch.ones(4))
    assert relative_eigenvalues(Diagonal(torch.ones(4)), more) is None


def test_the_root_of_a_large_sum_counts_every_part(monkeypatch):
    """One part alone, and the same part twice."""
    monkeypatch.setattr(br.structures.sums, "SMALL", 1)
    part, matrix = make("low rank", 2, 3, 0)
    torch.testing.assert_close(Sum([part]).root.dense(), matrix, **CLOSE)
    torch.testing.assert_close(Sum([part, part]).root.diagonal, 2 * matrix.diagonal(), **CLOSE)


def test_what_is_selected_from_a_large_precision_leaves_out_what_ties_the_runs(monkeypatch):
    precision, matrix = make("dense", 2, 3, 0)
    runs, index = [(0, 2), (3, 6)], torch.tensor([0, 1, 3, 4, 5])
    torch.testing.assert_close(selected(precision, runs).dense(), matrix[index][:, index], **CLOSE)
    torch.testing.assert_close(selected(precision, runs[1:]).dense(), matrix[3:, 3:], **CLOSE)
    monkeypatch.setattr(br.structures.selection, "SMALL", 1)
    apart = torch.block_diag(matrix[:2, :2], matrix[3:, 3:])
    torch.testing.assert_close(selected(precision, runs).dense(), apart, **CLOSE)


EYE = torch.eye(2)
NAN = torch.tensor([[1.0, 0.0], [float("nan"), 1.0]])
WRONG = {"name": "densee", "fields": {}}
TILTED = torch.tensor([[1.0, 0.5], [0.0, 1.0]])
NEGATIVE = torch.diag(torch.tensor([3.0, -2.0]))


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Dense(NEGATIVE).logdet(), r"smallest eigenvalue is -2; add a prior, or more than 2"),
        (lambda: Dense(torch.zeros(2, 2)).logdet(), "positive definite, but its smallest eigenvalue is 0"),
        (lambda: Dense(NAN), r"matrix must be finite, but \[1, 0\] is nan"),
        (lambda: Dense(TILTED), r"must be symmetric, but \[0, 1\] is 0.5 and \[1, 0\] is 0;"),
        (lambda: Dense(torch.ones(2, 3)), r"square matrix of floats, not \[2, 3\] torch.float32"),
        (lambda: Dense(torch.eye(2, dtype=torch.int64)), "of floats, not .* torch.int64"),
        (lambda: Diagonal(torch.ones(2, 2)), r"values must be one vector, not \[2, 2\]"),
        (lambda: Kronecker([EYE], [torch.eye(3)], torch.ones(4)), r"values must be 2 × 3 in one vector, not \[4\]"),
        (lambda: Kronecker([EYE], [], torch.ones(4)), "the same length, at least 1, not 1 and 0"),
        (lambda: Kronecker.of(torch.ones(2), EYE), r"lefts\[0\] must be a square matrix of floats, not \[2\]"),
        (lambda: Kronecker.of(NAN, EYE), r"lefts\[0\] must be finite"),
        (lambda: Kronecker.of(EYE, TILTED), r"rights\[0\] must be symmetric"),
        (
            lambda: Kronecker.of(0.5 * EYE, NEGATIVE).logdet(),
            "rights must be positive semi-definite, but the smallest eigenvalue is -2",
        ),
        (lambda: Kronecker.of(EYE, 0 * EYE).logdet(), "positive definite, but has an eigenvalue 0; add a prior"),
        (lambda: Dense(torch.ones(2, 2)).logdet(), "positive definite, but its smallest eigenvalue is"),
        (lambda: Diagonal(torch.tensor([1.0, 0.0])).variances, "values must be positive for an inverse, but one is 0"),
        (lambda: Diagonal(torch.tensor([1.0, -2.0])).sample(1), "for an inverse, but one is -2; add a prior"),
        (lambda: Diagonal(torch.zeros(2)).solve(torch.ones(2)), "values must be positive for an inverse"),
        (lambda: Diagonal(torch.zeros(2)).logdet(), "values must be positive for an inverse"),
        (lambda: Diagonal(torch.zeros(2)).variance_along(torch.ones(1, 2)), "values must be positive for an inverse"),
        (lambda: LowRank(torch.zeros(2), torch.ones(2, 1)).logdet(), "values must be positive for an inverse"),
        (lambda: LowRank(torch.ones(2, 1), torch.ones(2, 1)), r"values must be one vector, not \[2, 1\]"),
        (lambda: LowRank(torch.ones(2), torch.ones(3, 1)), r"a row for each of the 2 values, not the shape \[3, 1\]"),
        (lambda: LowRank(torch.ones(2), torch.ones(2, 1), of="both"), "unknown form of a low-rank matrix 'both'"),
        (lambda: LowRank(torch.zeros(2), torch.ones(2, 1)).variances, "values must be positive for an inverse"),
        (lambda: Blocks([]), "at least one structure"),
        (lambda: Blocks([Diagonal(torch.ones(2)), torch.ones(2)]), r"parts\[1\] must be a structure, not Tensor"),
        (lambda: Sum([]), "at least one structure"),
        (lambda: Sum([Diagonal(torch.ones(2)), 1.0]), r"parts\[1\] must be a structure, not float"),
        (lambda: Sum([Diagonal(torch.ones(2)), Diagonal(torch.ones(3))]), r"of the same size, not of \[2, 3\]"),
        (lambda: Diagonal(torch.ones(2)) + Diagonal(torch.ones(3)), "of the same size to be added, not 2 and 3"),
        (
            lambda: from_spec("structure", {"name": "blocks", "fields": {"parts": [WRONG]}}, AVAILABLE),
            "unknown structure 'densee': did you mean 'dense'",
        ),
    ],
)
def test_what_a_structure_refuses(build, match):
    with pytest.raises((ValueError, TypeError), match=match):
        build()
