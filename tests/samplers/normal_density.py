"""A normal density in ten dimensions of condition 100, and what a linear recursion makes of it."""

import math

import torch

from bayesrule.samplers import began

SIZE, CHAINS = 10, 160
PRECISIONS = torch.logspace(0, 2, SIZE, dtype=torch.float64)


def problem(seed):
    """The density, its mean and the directions of its precisions."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))[0]
    precision = directions @ torch.diag(PRECISIONS) @ directions.T
    mean = torch.randn(SIZE, generator=generator, dtype=torch.float64)

    def target(w):
        slope = -(w - mean) @ precision
        return 0.5 * ((w - mean) * slope).sum(1), slope

    return target, mean, directions


def run(kernel, tuner_of, seed, chains=CHAINS, warm=200, draws=50, thin=1):
    """Draws [C, D, P] along the directions, each in units of its deviation; and the tuner."""
    target, mean, directions = problem(seed)
    generator = torch.Generator().manual_seed(100 + seed)
    start = mean + torch.randn(chains, SIZE, generator=generator, dtype=torch.float64) * 0.3
    tuner = tuner_of(start)
    state = began(start, kernel.momentum(start, generator), target)
    number = 0
    for k in range(warm * thin):
        state, told = kernel.move(state, tuner.scales(None), target, generator, number)
        tuner.observe(state, told, k / (warm * thin))
        number += 1
    kept = []
    for k in range(draws):
        for _ in range(thin):
            state, told = kernel.move(state, tuner.scales(k / draws), target, generator, number)
            number += 1
        kept.append(state.position)
    along = (torch.stack(kept, 1) - mean) @ directions
    return along * PRECISIONS.sqrt(), tuner


def scores(along, variances):
    """z-scores of all means and second moments, whose standard errors are those between chains."""
    means = along.mean(1)
    squares = torch.einsum("cdi,cdj->cij", along, along) / along.shape[1] - torch.diag(variances)
    rows, columns = torch.triu_indices(SIZE, SIZE)
    both = torch.cat([means, squares[:, rows, columns]], 1)
    return both.mean(0) / (both.std(0) / math.sqrt(len(both)))


def ubu(step, keep, precision):
    """The long-run variance of UBU on a normal density, from the recursion of (z, v) worked out here."""
    gamma, t = -math.log(keep) / step, step / 2
    eta = math.exp(-gamma * t)
    flow = torch.tensor([[1, (1 - eta) / gamma], [0, eta]], dtype=torch.float64)
    # of √(2/γ)(Z₁ − Z₂) and √(2γ) Z₂
    z1, z2, both = t, (1 - eta**2) / (2 * gamma), (1 - eta) / gamma
    cross = 2 * (both - z2)
    noise = torch.tensor([[2 / gamma * (z1 - 2 * both + z2), cross], [cross, 2 * gamma * z2]], dtype=torch.float64)
    kick = torch.tensor([[1, 0], [-step * precision, 1]], dtype=torch.float64)
    whole = flow @ kick @ flow
    added = flow @ kick @ noise @ kick.T @ flow.T + noise
    square = torch.eye(4, dtype=torch.float64) - torch.kron(whole, whole)
    return float(torch.linalg.solve(square, added.flatten())[0])
