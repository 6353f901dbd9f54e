"""Deviations of coordinates are learnt on any scale."""

import torch

from bayesrule.samplers import ByAcceptance, Hamiltonian, began
from bayesrule.samplers.tuning import Spread

DEVIATIONS = torch.tensor([1e-5, 1e-4, 1e-2], dtype=torch.float64)


def target(w):
    z = w / DEVIATIONS
    return -0.5 * z.square().sum(1), -z / DEVIATIONS


def test_coordinates_of_weights_far_below_one():
    """Columns of inputs in other units, for instance, make weights that small."""
    generator = torch.Generator().manual_seed(0)
    start = DEVIATIONS * torch.randn(8, 3, generator=generator, dtype=torch.float64)
    tuner = ByAcceptance(start, 0.574, torch.full((8,), 1e-5, dtype=torch.float64), fixed=False, diagonal=True)
    state, kernel, rounds = began(start, torch.zeros_like(start), target), Hamiltonian(1), 3000
    for n in range(rounds):
        state, told = kernel.move(state, tuner.scales(None), target, generator, n)
        tuner.observe(state, told, n / rounds)
    found = tuner.deviation.log().mean(0).exp() / DEVIATIONS
    assert ((found > 0.5) & (found < 2)).all(), found


def test_few_positions_say_little_and_none_that_moves_is_no_deviation_of_zero():
    spread = Spread.none(torch.zeros(1, 2))
    before = torch.tensor([[4.0, 4.0]])
    for value in (0.0, 2.0):
        spread.add(torch.tensor([[value, 1.0]]))
    found = spread.variance(before)
    assert torch.allclose(found[0, 0].log(), 2 / 7 * torch.tensor(2.0).log() + 5 / 7 * torch.tensor(4.0).log())
    assert 0 < float(found[0, 1]) < 4
