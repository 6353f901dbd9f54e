"""Information of labels: against enumeration of a small discrete model, in double precision."""

import math
from itertools import product

import pytest
import torch

from bayesrule.active import information

SEEDS = range(4)


def model(seed, draws=6, rows=5, classes=3):
    """p(y|x, w) of each of some equally probable w, [S, N, C]."""
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(draws, rows, classes, generator=generator, dtype=torch.float64)).softmax(2)


def joint(probs, rows):
    """p(y_1, …, y_b) of some rows, by summing over w one configuration after the other."""
    draws, _, classes = probs.shape
    table = {}
    for labels in product(range(classes), repeat=len(rows)):
        terms = [math.prod(float(probs[s, row, y]) for row, y in zip(rows, labels, strict=True)) for s in range(draws)]
        table[labels] = sum(terms) / draws
    return table


def entropy_of(table):
    return -sum(p * math.log(p) for p in table.values() if p > 0)


def noise(probs, row):
    """E_w H(y|x, w)."""
    return -sum(float(p) * math.log(p) for p in probs[:, row].flatten().tolist()) / len(probs)


def gain(probs, rows):
    """I(y_1, …, y_b; w)."""
    return entropy_of(joint(probs, rows)) - sum(noise(probs, row) for row in rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_single_labels(seed):
    probs = model(seed)
    for row in range(probs.shape[1]):
        mean = joint(probs, [row])
        assert float(information.entropy(probs)[row]) == pytest.approx(entropy_of(mean), abs=1e-10)
        assert float(information.bald(probs)[row]) == pytest.approx(gain(probs, [row]), abs=1e-10)
        assert float(information.variation_ratios(probs)[row]) == pytest.approx(1 - max(mean.values()), abs=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_labels_that_tell_of_other_labels(seed):
    probs, targets = model(seed), model(seed + 100, rows=4)
    found = information.epig(probs, targets)
    both = torch.cat([probs, targets], 1)
    for row in range(5):
        told = []
        for other in range(5, 9):
            parts = [entropy_of(joint(both, rows)) for rows in ([row], [other], [row, other])]
            told.append(parts[0] + parts[1] - parts[2])
        assert float(found[row]) == pytest.approx(sum(told) / 4, abs=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_is_the_greedy_choice_of_enumeration(seed):
    probs = model(seed, rows=8)
    chosen, gains = [], []
    for _ in range(3):
        scores = {row: gain(probs, [*chosen, row]) for row in range(8) if row not in chosen}
        chosen.append(max(scores, key=scores.get))
        gains.append(scores[chosen[-1]])
    found = information.batchbald(probs, 3)
    assert found.rows.tolist() == chosen
    assert found.information.tolist() == pytest.approx(gains, abs=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_change_nothing(seed, monkeypatch):
    probs, targets = model(seed, rows=60), model(seed + 1, rows=7)
    whole, told = information.batchbald(probs, 4), information.epig(probs, targets)
    monkeypatch.setattr(information, "BLOCK", 3000)
    blocked = information.batchbald(probs, 4)
    assert torch.equal(blocked.rows, whole.rows)
    assert torch.allclose(blocked.information, whole.information, atol=1e-12, rtol=0)
    assert torch.allclose(information.epig(probs, targets), told, atol=1e-12, rtol=0)


def test_sampled_configurations_are_near_the_exact_information():
    """Each of the sampled terms H(y|y_k) lies within [0, log C], so that Hoeffding's bound fails once in 10⁶."""
    probs = model(0, draws=30, rows=40)
    exact = information.batchbald(probs, 6)
    sampled = information.batchbald(probs, 6, configurations=600, generator=torch.Generator().manual_seed(1))
    for count in range(1, 7):
        rows = sampled.rows[:count].tolist()
        bound = 0.0 if 3**count <= 600 else math.log(3) * math.sqrt(math.log(2e6) / (2 * 600))
        step = float(sampled.information[count - 1] - (sampled.information[count - 2] if count > 1 else 0.0))
        truth = _step(probs, rows)
        assert abs(step - truth) <= bound + 1e-10
    assert float(exact.information[-1]) > 0


def _step(probs, rows):
    """I of all rows minus I of all but the last, exactly."""
    weights = torch.ones(1, len(probs), dtype=torch.float64)
    for row in rows[:-1]:
        weights = (weights[:, None] * probs[:, row].T).flatten(0, 1)
    share = weights.mean(1)
    conditional = weights @ probs[:, rows[-1]] / weights.sum(1, keepdim=True)
    told = float((share * torch.special.entr(conditional).sum(1)).sum())
    return told - noise(probs, rows[-1])


def test_copies_of_a_row_are_not_taken_twice_but_bald_does_so():
    unique = model(3, rows=6)
    unique[:, 0] = torch.eye(3, dtype=torch.float64)[torch.arange(6) % 3] * 0.98 + 0.02 / 3  # the most informative
    probs = torch.cat([unique, unique[:, :1], unique[:, :1]], 1)
    assert set(information.bald(probs).topk(3).indices.tolist()) == {0, 6, 7}
    found = information.batchbald(probs, 3).rows.tolist()
    assert len({0, 6, 7} & set(found)) == 1


def test_draws_that_are_certain_have_no_logarithm_of_zero():
    probs = torch.eye(3, dtype=torch.float64)[torch.tensor([[0, 1], [1, 1], [2, 1]])]
    assert information.bald(probs).tolist() == pytest.approx([math.log(3), 0.0])
    assert information.batchbald(probs, 2).information.tolist() == pytest.approx([math.log(3), math.log(3)])
    assert information.epig(probs, probs[:, :1]).tolist() == pytest.approx([math.log(3), 0.0])


BAD = {
    "probs must be [draws, examples, classes]": lambda: information.bald(torch.ones(3, 2)),
    "sum to one over classes, draw 0 of row 1 has 1.4": lambda: information.entropy(
        torch.tensor([[[0.5, 0.5], [0.7, 0.7]]])
    ),
    "count must be from 1 to the 2 rows": lambda: information.batchbald(torch.full((3, 2, 2), 0.5), 3),
    "as many draws": lambda: information.epig(torch.full((3, 2, 2), 0.5), torch.full((2, 2, 2), 0.5)),
    "configurations must be at least 2, the classes of one label": lambda: information.batchbald(
        torch.full((3, 2, 2), 0.5), 1, configurations=1
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_refused(message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[").replace("]", r"\]")):
        BAD[message]()
