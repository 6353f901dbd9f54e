"""Scores of many pixels, in parts: the same as at once, in less memory."""

import pytest
import torch

import bayesrule as br
from bayesrule.boards import cells
from bayesrule.data import Split
from bayesrule.evaluate import evaluate, parts, score, strangers, under_shift
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
    monkeypatch.setattr(parts, "ROOM", 5 * 2 * 10 * SIDE**2)


@pytest.mark.parametrize("predictor", [Pixels, Numbers])
def test_scores_in_parts_are_those_of_the_whole(predictor, little_room):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, SIDE, SIDE, generator=g)
    y = torch.randint(3, (N, SIDE, SIDE), generator=g)
    if predictor is Numbers:
        y = y.float()
    one = predictor()
    found = evaluate(one, (x, y), samples=2, bootstrap=50)
    assert max(one.asked) <= 5
    assert sum(one.asked) == N
    whole = score(predictor().predict(x, 2, 0), y, bootstrap=50)
    for name, value in whole.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name
        assert found.interval(name) == pytest.approx(whole.interval(name), rel=1e-12), name
    if predictor is Pixels:
        assert found.null("ece") == pytest.approx(whole.null("ece"), rel=1e-12)


class Rows(Pixels):
    """Rows of three classes, whatever shape they come in."""

    def predict(self, x, samples, seed=0):
        self.asked.append(len(x))
        return Classes(torch.stack([(1 + 0.3 * s) * x[:, :3] for s in range(samples)]))


@pytest.fixture
def room_for_seven(monkeypatch):
    """Seven rows and two networks."""

    def limit():
        monkeypatch.setattr(parts, "ROOM", 7 * 2 * 10)

    return limit


def rows(count, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=g), torch.randint(3, (count,), generator=g)


def test_shifted_examples_in_parts_are_the_whole(room_for_seven):
    one, test = Rows(), rows(40, 0)
    whole = under_shift(one, test, "noise", samples=2, bootstrap=20)
    assert set(one.asked) == {40}
    room_for_seven()
    cut = under_shift(streamed := Rows(), test, "noise", samples=2, bootstrap=20)
    assert max(streamed.asked) == 7
    assert cut.to_json() == whole.to_json()


def test_examples_from_elsewhere_in_parts_are_the_whole(room_for_seven):
    test, ood = rows(40, 0), rows(30, 1)[0] + 2
    scores, told = evaluate(Rows(), test, ood, samples=2, bootstrap=20), strangers(Rows(), test, ood, samples=2)
    room_for_seven()
    one = Rows()
    assert evaluate(one, test, ood, samples=2, bootstrap=20).to_json() == scores.to_json()
    assert strangers(one, test, ood, samples=2).to_json() == told.to_json()
    assert max(one.asked) == 7
    assert sum(one.asked) == 2 * (40 + 30) + 2  # and one row each to see how many targets there are


@pytest.mark.parametrize("score", ["aps", "randomised-aps"])
def test_guarantees_in_parts_are_the_whole(score, room_for_seven, monkeypatch):
    x, y = rows(120, 0)
    posterior = br.fit(br.models.mlp(4, 3, hidden=(4,)), (x, y), "map", epochs=1)
    held, test, groups = rows(90, 1), rows(45, 2), ["a", "b", "b"]
    promising = posterior.conformalize(held, level=0.8, groups=groups * 30, score=score, samples=2)
    promising = promising.selective(held, error=0.9, samples=2)
    whole = br.evaluate.guarantees(promising, test, groups * 15, bootstrap=20)
    room_for_seven()
    asked = []
    predict = type(promising).predict
    monkeypatch.setattr(
        type(promising), "predict", lambda self, x, *a, **k: asked.append(len(x)) or predict(self, x, *a, **k)
    )
    assert br.evaluate.guarantees(promising, test, groups * 15, bootstrap=20).to_json() == whole.to_json()
    assert max(asked) == 7
    with pytest.raises(ValueError, match="groups must name the group of each of the 45 examples, got 3"):
        br.evaluate.guarantees(promising, test, groups)


def test_the_leaderboard_predicts_in_parts(room_for_seven):
    split = Split("t", "classes", "", rows(40, 0), classes=("a", "b", "c"))
    strange = {"auroc_ood": rows(30, 1)[0] + 2}
    whole = cells._scores(Rows(), split, strange, 0, 2)
    room_for_seven()
    one = Rows()
    assert cells._scores(one, split, strange, 0, 2) == whole
    assert max(one.asked) == 7


def test_memory_does_not_grow_with_the_number_of_examples(room_for_seven):
    """As many rows at once of ten times as many: `tracemalloc` does not see what torch takes."""
    room_for_seven()
    most = []
    for count in (20, 200):
        one = Rows()
        strangers(one, rows(count, 0), rows(count, 1)[0], samples=2)
        under_shift(one, rows(count, 0), "missing", samples=2)
        most.append(max(one.asked))
    assert most == [7, 7]
