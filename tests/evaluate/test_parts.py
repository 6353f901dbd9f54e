"""Scores of many pixels, in parts: the same as at once, in less memory."""

import pytest
import torch

from bayesrule.evaluate import evaluate, score
from bayesrule.evaluate import score as module_score
from bayesrule.predictions import Classes, Prediction, Reals

N, SIDE = 12, 8


class Pixels:
    """Predicts by its inputs alone, and remembers how many examples it was asked at once."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def predict(self, x: torch.Tensor, samples: int, seed: int) -> Prediction:
        self.asked.append(len(x))
        return Classes(torch.stack([(1 + s) * x for s in range(samples)]))


class Numbers(Pixels):
    def predict(self, x: torch.Tensor, samples: int, seed: int) -> Prediction:
        self.asked.append(len(x))
        return Reals(torch.stack([x[:, 0] + 0.1 * s for s in range(samples)]), torch.ones(()))


@pytest.fixture
def little_room(monkeypatch):
    """Five examples of 8 x 8 labels and two networks."""
    import sys

    monkeypatch.setattr(sys.modules[module_score.__module__], "ROOM", 5 * 2 * 10 * SIDE**2)


@pytest.mark.parametrize("predictor", [Pixels, Numbers])
def test_scores_in_parts_are_those_of_the_whole(predictor, little_room):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, SIDE, SIDE, generator=g)
    y = torch.randint(3, (N, SIDE, SIDE), generator=g)
    if predictor is Numbers:
        y = y.float()
    parts = predictor()
    found = evaluate(parts, (x, y), samples=2, bootstrap=50)
    assert max(parts.asked) <= 5
    assert sum(parts.asked) == N
    whole = score(predictor().predict(x, 2, 0), y, bootstrap=50)
    for name, value in whole.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name
        assert found.interval(name) == pytest.approx(whole.interval(name), rel=1e-12), name
    if predictor is Pixels:
        assert found.null("ece") == pytest.approx(whole.null("ece"), rel=1e-12)
