"""Scenes say what the predictions hold, and nothing else."""

import torch

from bayesrule.data import Split
from bayesrule.evaluate import score
from bayesrule.predictions import Classes, Reals
from bayesrule.report import Comparison, Entry, Opening
from bayesrule.report.page import render
from bayesrule.report.scenes import mistakes, promise, strangers, verdict

X = torch.zeros(4, 2)


def sure_of(*labels, confidence=0.99):
    """One network's prediction of two classes."""
    chosen = torch.nn.functional.one_hot(torch.tensor(labels), 2).float()
    return Classes((chosen * confidence + (1 - chosen) * (1 - confidence)).log()[None])


def classes():
    y = torch.tensor([0, 0, 1, 1])
    split = Split("four", "classes", "four rows", (X, y), (X, y), ("a", "b"), ood=X, image_shape=(1, 1, 2))
    bold, careful = sure_of(1, 1, 1, 1), sure_of(1, 0, 1, 1, confidence=0.6)
    entries = [
        Entry(name, score(prediction, y, prediction, bootstrap=10), prediction, prediction)
        for name, prediction in (("plain", bold), ("ours", careful))
    ]
    return Comparison(split, entries)


def reals():
    y = torch.tensor([0.0, 1.0, 2.0, 30.0])
    split = Split("numbers", "reals", "four rows", (X, y), (X, y))
    entries = []
    for name, noise in (("plain", 0.1), ("auto", 10.0)):
        prediction = Reals(torch.zeros(1, 4), torch.full((4,), noise))
        entries.append(Entry(name, score(prediction, y, bootstrap=10), prediction))
    return Comparison(split, entries)


def test_mistakes_and_strangers_are_counted():
    assert mistakes(classes()).figures == {
        "plain": {"wrong": 2, "sure and wrong": 2},
        "ours": {"wrong": 1, "sure and wrong": 0},
    }
    assert strangers(classes()).figures == {"plain": {"sure of strangers": 1.0}, "ours": {"sure of strangers": 0.0}}


def test_truths_in_intervals_are_counted():
    figures = promise(reals()).figures
    assert {name: found["coverage"] for name, found in figures.items()} == {"plain": 0.25, "auto": 0.75}
    # 2 · 1.645 · 10, the width of a normal 90 % interval
    assert abs(figures["auto"]["width"] - 32.897) < 1e-2


def test_the_page_opens_with_the_verdict_and_pictures():
    scenes = [mistakes(classes()), strangers(classes()), promise(reals())]
    said = verdict(scenes, "plain", ("ours", "auto"))
    assert "sure of 2 of its 2 mistakes, and of 100 %" in said
    assert said.endswith("With ours and auto: 0 of 1, 0 %, 75 %.")
    page = render(classes(), Opening(said, scenes))
    order = [page.index(part) for part in ('class="verdict"', "mistakes", "strangers", "promise", "Leaderboard")]
    assert order == sorted(order)
