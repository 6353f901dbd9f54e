"""Pages of other verbs on a telephone: nothing sticks out to the right, and figures scroll rather than shrink."""

import pytest
import torch

from bayesrule.active import Result
from bayesrule.boards import page as boards
from bayesrule.boards.cells import Cell
from bayesrule.boards.standings import standings
from bayesrule.cli import serve
from bayesrule.lifelong import Result as Life
from bayesrule.methods import MAP
from bayesrule.report import active, lifelong
from bayesrule.report.runs import shown

NARROW = 380
POINT = 4 / 3  # pixels that a point of a figure is where nothing shrinks it: its letters are drawn as outlines
NAMES = ("random", "bald", "variation-ratios", "expected-variance")
LONG = "a_column_of_a_long_name_that_nobody_broke"


def learnt(seed):
    steps = range(6)
    return Result(
        "pool",
        {},
        seed,
        rows=[[step] for step in steps],
        answers=[[0] for _ in steps],
        guesses=[[0] for _ in steps],
        sure=[[0.7] for _ in steps],
        labels=[20 * (step + 1) for step in steps],
        accuracy=[0.5 + 0.08 * step for step in steps],
        nll=[1.0 - 0.1 * step for step in steps],
        ece=[0.1 for _ in steps],
        unsure=[0.3 for _ in steps],
        seconds=[1.0 for _ in steps],
        finished=True,
    )


def curves():
    runs = {name: [learnt(0), learnt(1)] for name in NAMES}
    asked = [active.Asked("bald", [("round 1", [shown(torch.rand(1, 8, 8), "7", (1, 8, 8)) for _ in range(9)])])]
    return active.render(active.Curves("digits", "1797 pictures of digits", runs, True, reach=(0.8,), asked=asked))


def answering():
    examples = [shown(torch.rand(1, 8, 8), "", (1, 8, 8)) for _ in range(3)]
    return active.answering("abcd1234", LONG, [5, 9, 11], examples, [], [f"class {k}" for k in range(10)])


def lives():
    def life(seed):
        rows = [[0.9 - 0.02 * (task - k) for k in range(min(task + 2, 10))] for task in range(10)]
        lower = [[1 - value for value in row] for row in rows]
        about = {"first": [0.1] * 10, "seconds": [1.0] * 10, "bytes": [10**6] * 10, "finished": True}
        names = [f"permutation {k}" for k in range(10)]
        return Life("perm-mnist", {}, seed, names, rows, lower, lower, lower, **about)

    runs = {name: [life(0), life(1)] for name in ("finetune", "joint", "kfac-laplace", "vcl-coreset", "online-ewc")}
    return lifelong.render(lifelong.Lives("perm-mnist", "ten permutations of the pixels", runs))


def leaderboard():
    asked, found = [], []
    for board in ("uci/yacht", "uci/concrete"):
        for index, method in enumerate(("map", "dropout-ensemble", "swag")):
            for repeat in range(2):
                asked.append(Cell(board, method, MAP(), repeat, part="test"))
                scores = {"nll": 1.0 + 0.1 * index + 0.05 * repeat, "rmse": 2.0, "crps": 0.5, "coverage_90": 0.9}
                found.append({"scores": scores, "training": 2.0, "prediction": 0.5, "likelihood": "gaussian"})
    every = standings(asked, found, [], [])
    about = dict.fromkeys(("command", "commit", "date", "machine", "versions"), "a text that is not short at all")
    return boards.render(boards.Shown(every, {one.board: "20 splits" for one in every}, about))


class Served:
    """What the page of a service is made of."""

    def about(self):
        columns = [{"name": LONG, "example": 3.5}, {"name": "city", "choices": ["Rome", f"{LONG}_too"]}]
        return {"data": f"{LONG}.csv", "target": LONG, "kind": "reals", "classes": [], "columns": columns, "shape": [9]}


PAGES = {
    "active": curves,
    "answering": answering,
    "lifelong": lives,
    "leaderboard": leaderboard,
    "serve": lambda: serve.page(Served()),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_telephone(name, fitting):
    found = fitting(PAGES[name](), NARROW)
    assert found["wide"] <= NARROW
    if name not in ("answering", "serve"):  # which have no figures
        assert found["scale"] >= POINT
