"""The page of life-long learning: what of a run is shown."""

import pytest
import torch

from bayesrule import lifelong
from bayesrule.lifelong.scores import Result
from bayesrule.report import lifelong as report


def life(unsure):
    accuracy = [[0.9, 0.3], [0.8, 1.0]]
    zeros = [[0.0, 0.0]] * 2
    return Result("s", {}, 0, ["a", "b"], accuracy, zeros, zeros, unsure, [0.0, 0.2], [1.0, 1.0], [8, 8], True)


def test_doubt_has_a_column_and_a_curve_of_its_own():
    lives = report.Lives("s", "", {"ivon": [life([[0.1, 0.5], [0.2, 0.4]])], "ewc": [life([[0.0] * 2] * 2)]})
    column = list(report.COLUMNS).index("unsure")
    cells = {line.name: line.cells[column].text for line in report.lines(lives)}
    assert cells == {"ivon": "0.300", "ewc": "0.000"}
    _, doubt = report.curves(lives).axes
    assert doubt.get_ylabel() == "mean epistemic uncertainty so far"
    assert doubt.lines[0].get_ydata().tolist() == pytest.approx([0.1, 0.3])


def test_where_nothing_is_unsure_there_is_no_curve_of_doubt():
    lives = report.Lives("s", "", {"ewc": [life([[0.0] * 2] * 2)]})
    assert len(report.curves(lives).axes) == 1


def test_permuted_pictures_are_put_back_in_order():
    stream = lifelong.streams.digits("permuted", 2)
    plain, mixed = ([(stream[task].test[0][:1], stream[0].test[1][:1])] for task in (0, 1))
    assert not torch.equal(plain[0][0], mixed[0][0])
    shape, orders = stream.image_shape, stream.orders
    pages = [report.kept_pictures("replay", ["a", "b"], parts * 2, shape, (), orders) for parts in (plain, mixed)]
    first = pages[0].tasks[0][2][0].png
    assert first
    assert pages[1].tasks[1][2][0].png == first
