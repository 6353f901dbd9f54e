"""Hamiltonian Monte Carlo in float64: what a posterior is, without any of the package."""

import math

import torch

TARGET = 0.8  # share of proposals that are accepted (Betancourt 2014)


def sample(log_density, start, draws, leaps=64, warm_up=None, seed=0):
    """Draws [S, C, P] of C chains that move at once; ``log_density`` is of [C, P], its value of [C].

    Leapfrog steps of one length for all chains, which dual averaging fits during the warm-up (Hoffman & Gelman 2014);
    each trajectory has a random number of them, up to ``leaps``, so that none returns to where it began.
    """
    generator = torch.Generator().manual_seed(seed)
    warm_up = draws if warm_up is None else warm_up
    w, (value, slope) = start.double(), _slope(log_density, start.double())
    size, averaged, error = 1e-3, math.log(1e-3), 0.0
    kept = []
    for trajectory in range(1, warm_up + draws + 1):
        step = size if trajectory <= warm_up else math.exp(averaged)
        momentum = torch.randn(w.shape, generator=generator, dtype=torch.float64)
        there, push, end, steep = w, momentum, value, slope
        for _ in range(int(torch.randint(1, leaps + 1, (), generator=generator))):
            push = push + 0.5 * step * steep
            there = there + step * push
            end, steep = _slope(log_density, there)
            push = push + 0.5 * step * steep
        gain = end - value - 0.5 * (push.square().sum(1) - momentum.square().sum(1))
        probability = gain.nan_to_num(nan=-math.inf).clamp(max=0).exp()
        taken = torch.rand(len(w), generator=generator, dtype=torch.float64) < probability
        w, slope = torch.where(taken[:, None], there, w), torch.where(taken[:, None], steep, slope)
        value = torch.where(taken, end, value)
        if trajectory <= warm_up:
            error += TARGET - float(probability.mean())
            size = math.exp(math.log(1e-2) - error * math.sqrt(trajectory) / (0.05 * (trajectory + 10)))
            share = trajectory**-0.75
            averaged = share * math.log(size) + (1 - share) * averaged
        else:
            kept.append(w)
    return torch.stack(kept)


def r_hat(values):
    """Of draws [S, C, ...] of a number: the pooled deviation over that within halves of chains, largest of all."""
    half = len(values) // 2
    halves = torch.cat([values[:half], values[half : 2 * half]], 1)
    within = halves.var(0).mean(0)
    between = halves.mean(0).var(0)
    return float(((within * (1 - 1 / len(halves)) + between) / within).sqrt().max())


def _slope(log_density, w):
    w = w.detach().requires_grad_()
    value = log_density(w)
    (slope,) = torch.autograd.grad(value.sum(), w)
    return value.detach(), slope
