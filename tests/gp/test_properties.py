"""What holds for every network and all data."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import bayesrule as br

NUMBERS = {"seed": st.integers(0, 10_000), "n": st.integers(1, 6), "hidden": st.integers(1, 4)}
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def made(seed, n, hidden, outputs, classes):
    """A network, data and its process."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()
    x = 2 * torch.randn(n, 2).double()
    y = torch.randint(outputs, (n,)) if classes else torch.randn(n, outputs).double()
    likelihood = None if classes else br.likelihoods.Gaussian(0.3)
    return x, y, br.gp.from_network(model, (x, y), likelihood, br.priors.Gaussian(1.3))


@given(**NUMBERS, classes=st.booleans())
def test_kernels_are_symmetric_and_without_negative_eigenvalues(seed, n, hidden, classes):
    _, _, gp = made(seed, n, hidden, 2, classes)
    x = torch.randn(4, 2).double()
    full = gp.kernel(x)
    assert_close(full, full.permute(2, 3, 0, 1), **CLOSE)
    for matrix in (full.reshape(8, 8), gp.kernel(x, aggregate="sum"), *gp.kernel(x, aggregate="class")):
        values = torch.linalg.eigvalsh(matrix)
        assert float(values.min()) >= -1e-10 * float(values.max())


@given(**NUMBERS)
def test_a_permutation_of_examples_permutes_the_kernel(seed, n, hidden):
    _, _, gp = made(seed, n, hidden, 3, True)
    x, order = torch.randn(5, 2).double(), torch.randperm(5)
    assert_close(gp.kernel(x[order]), gp.kernel(x)[order][:, :, order], **CLOSE)
    assert_close(gp.posterior(x[order]).covariance, gp.posterior(x).covariance[order], **CLOSE)


@given(**NUMBERS)
def test_the_order_of_the_training_data_does_not_matter(seed, n, hidden):
    x, y, gp = made(seed, n, hidden, 3, True)
    order = torch.randperm(n)
    again = br.gp.from_network(gp.task.model, (x[order], y[order]), prior=br.priors.Gaussian(1.3))
    new = torch.randn(3, 2).double()
    assert_close(again.posterior(new).mean, gp.posterior(new).mean, rtol=1e-7, atol=1e-7)
    assert abs(again.log_marginal_likelihood() - gp.log_marginal_likelihood()) < 1e-8


@given(**NUMBERS, classes=st.booleans())
def test_data_never_add_to_the_variance(seed, n, hidden, classes):
    """Cov before − Cov after has no negative eigenvalue; the aleatoric variance is not negative either."""
    _, _, gp = made(seed, n, hidden, 2, classes)
    x = 3 * torch.randn(4, 2).double()
    before, found = gp.kernel(x).reshape(8, 8), gp.posterior(x, joint=True)
    gained = torch.linalg.eigvalsh(before - found.covariance.reshape(8, 8))
    assert float(gained.min()) >= -1e-9 * float(before.diagonal().max())
    assert float(torch.linalg.eigvalsh(found.covariance.reshape(8, 8)).min()) >= -1e-9 * float(before.diagonal().max())
    assert bool((found.aleatoric >= 0).all())


@given(**NUMBERS)
def test_more_data_never_add_to_the_variance(seed, n, hidden):
    """For Gaussian noise, whose Λ does not depend on the data."""
    x, y, gp = made(seed, n, hidden, 2, False)
    more = torch.cat([x, torch.randn(2, 2).double()]), torch.cat([y, torch.randn(2, 2).double()])
    after = br.gp.from_network(gp.task.model, more, br.likelihoods.Gaussian(0.3), br.priors.Gaussian(1.3))
    new = 3 * torch.randn(4, 2).double()
    assert bool((after.posterior(new).variance <= gp.posterior(new).variance * (1 + 1e-9) + 1e-12).all())


@given(**NUMBERS, classes=st.booleans())
def test_both_ways_give_the_same_numbers(seed, n, hidden, classes):
    x, y, gp = made(seed, n, hidden, 2, classes)
    other = "dual" if gp.solver.name == "primal" else "primal"
    likelihood, prior = gp.likelihood, br.priors.Gaussian(1.3)
    again = br.gp.from_network(gp.task.model, (x, y), likelihood, prior, solve=other)
    new = torch.randn(3, 2).double()
    one, two = gp.posterior(new, joint=True), again.posterior(new, joint=True)
    assert_close(one.mean, two.mean, rtol=1e-7, atol=1e-7)
    assert_close(one.covariance, two.covariance, rtol=1e-7, atol=1e-7)
    assert abs(gp.log_marginal_likelihood() - again.log_marginal_likelihood()) < 1e-7
