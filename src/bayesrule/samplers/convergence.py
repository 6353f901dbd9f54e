"""Have the chains mixed, and how many independent draws are theirs worth (Vehtari et al. 2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MIXED = 1.01  # R̂ up to which chains are said to have mixed
FEWEST = 4  # draws of a chain: two for each of its halves


def r_hat(draws: Tensor) -> Tensor:
    """R̂ of numbers whose draws are ``[C, D, ...]``: rank-normalised, split, the larger of location's and scale's.

    √(var⁺/W): W the variance within halves of chains, var⁺ = (D − 1)/D W + B/D with B that between them. It is one
    where all halves tell the same; not a number where there are fewer than four draws, or no two that differ.

    >>> generator = torch.Generator().manual_seed(0)
    >>> same = torch.randn(4, 200, generator=generator, dtype=torch.float64)
    >>> round(float(r_hat(same)), 2), round(float(r_hat(same + torch.arange(4)[:, None])), 2)
    (1.0, 1.55)
    """
    draws = _ready(draws)
    if draws.shape[1] < FEWEST:
        return _unknown(draws)
    halves = split(draws)
    folded = (halves - _median(halves)).abs()
    # not `maximum`, of which a NaN is one of both
    return torch.fmax(_plain_r_hat(_normalised(halves)), _plain_r_hat(_normalised(folded)))


def ess_bulk(draws: Tensor) -> Tensor:
    """How many independent draws tell the mean as well as these, ``[C, D, ...]``: by ranks, so that tails do not count.

    >>> generator = torch.Generator().manual_seed(0)
    >>> 700 < float(ess_bulk(torch.randn(4, 250, generator=generator, dtype=torch.float64))) < 1300
    True
    """
    draws = _ready(draws)
    if draws.shape[1] < FEWEST:
        return _unknown(draws)
    return _ess(_normalised(split(draws)))


def ess_tail(draws: Tensor) -> Tensor:
    """How many independent draws tell the 5 % and 95 % quantiles as well as these: the smaller of the two."""
    draws = _ready(draws)
    if draws.shape[1] < FEWEST:
        return _unknown(draws)
    found = []
    for level in (0.05, 0.95):
        quantile = torch.quantile(draws.flatten(0, 1), level, dim=0)
        found.append(_ess(split((draws <= quantile).double())))
    return torch.fmin(*found)


def e_bfmi(steps: Tensor, squares: Tensor) -> Tensor:
    """Σ(E_n − E_{n−1})²/Σ(E_n − Ē)² of the energies of a chain's transitions, from these two sums.

    Below 0.3 momenta change the energy too little to reach all of its values, and the tails are seldom seen
    (Betancourt 2016).
    """
    return steps / squares


def split(draws: Tensor) -> Tensor:
    """Halves of chains as chains: ``[2C, ⌊D/2⌋, ...]``, without the draw in the middle of an odd number."""
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, draws.shape[1] - half :]])


def _ready(draws: Tensor) -> Tensor:
    """In double precision, on the CPU: not every device has it, nor sorts and Fourier's transform."""
    return draws.detach().cpu().double()


def _unknown(draws: Tensor) -> Tensor:
    """Not a number: there are too few draws to tell."""
    return torch.full(draws.shape[2:], math.nan, dtype=torch.float64)


def _median(draws: Tensor) -> Tensor:
    """Over all draws; of an even number the mean of the two in the middle."""
    ordered = draws.flatten(0, 1).sort(0).values
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _normalised(draws: Tensor) -> Tensor:
    """Normal scores of the ranks among all draws: Φ⁻¹((r − 3/8)/(S + 1/4)), ties with their mean rank."""
    flat = draws.flatten(0, 1)
    count = len(flat)
    columns = flat.reshape(count, -1).T.contiguous()
    ordered = columns.sort(dim=1).values
    below = torch.searchsorted(ordered, columns, side="left")
    up_to = torch.searchsorted(ordered, columns, side="right")
    rank = (below + up_to + 1).double() / 2
    scores = torch.special.ndtri((rank - 0.375) / (count + 0.25))
    scores = torch.where(columns.isfinite().all(1, keepdim=True), scores, torch.nan)
    return scores.T.reshape(draws.shape)


def _plain_r_hat(draws: Tensor) -> Tensor:
    count = draws.shape[1]
    within = draws.var(1).mean(0)
    between = draws.mean(1).var(0)
    return ((count - 1) / count + between / within).sqrt()


def _ess(draws: Tensor) -> Tensor:
    """M·D/τ, τ = −1 + 2 Σ_t P̂_t over Geyer's initial monotone sequence of pairs of autocorrelations."""
    chains, count = draws.shape[:2]
    shape = draws.shape[2:]
    covariances = _autocovariances(draws.reshape(chains, count, -1)).mean(0)  # [D, Q]
    means = draws.reshape(chains, count, -1).mean(1)
    within = covariances[0] * count / (count - 1)
    pooled = within * (count - 1) / count + means.var(0)
    correlations = 1 - (within - covariances) / pooled
    correlations[0] = 1.0
    times = torch.stack([_time(column) for column in correlations.T])
    total = chains * count
    # as Stan has it: more than S log₁₀ S is not to be believed
    found = total / times.clamp_min(1 / math.log10(total))
    constant = (draws.reshape(total, -1) == draws.reshape(total, -1)[0]).all(0)
    found = torch.where(constant, torch.full_like(found, float(total)), found)
    return found.reshape(shape)


def _time(correlations: Tensor) -> Tensor:
    """−1 + 2 Σ ρ_t, over pairs (ρ_2k, ρ_2k+1) as long as their sums are positive, each no larger than that before it.

    Of the pair that ends it the first number still counts once, if it is positive, as in Stan.
    """
    if not bool(correlations.isfinite().all()):
        return correlations.new_tensor(math.nan)
    pairs = correlations[: len(correlations) // 2 * 2].reshape(-1, 2)
    sums = pairs.sum(1)
    most = max((len(correlations) - 2) // 2, 1)  # the last pairs are of few draws, and all noise
    ended = (sums[:most] <= 0).nonzero()
    stop = int(ended[0]) if len(ended) else most
    if not len(ended) and stop > 1:
        stop -= 1
    falling = sums[:stop].cummin(0).values
    rest = pairs[stop, 0].clamp_min(0) if stop < len(pairs) else pairs.new_zeros(())
    return -1 + 2 * falling.sum() + rest


def _autocovariances(draws: Tensor) -> Tensor:
    """Σ_i (x_i − x̄)(x_{i+t} − x̄)/D of draws ``[M, D, Q]``, for t from 0 to D − 1, by Fourier's transform."""
    count = draws.shape[1]
    centred = draws - draws.mean(1, keepdim=True)
    size = 2 ** math.ceil(math.log2(2 * count))
    transformed = torch.fft.rfft(centred, n=size, dim=1)
    return torch.fft.irfft(transformed * transformed.conj(), n=size, dim=1)[:, :count] / count
