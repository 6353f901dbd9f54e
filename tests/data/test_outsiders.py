"""A class or a range that training never sees."""

from dataclasses import replace

import pytest
import torch

import bayesrule as br
from bayesrule.data import Split, without_class, without_range


@pytest.fixture
def split():
    """Nine rows to train on, six to test on, three classes; the first column counts up."""
    x = torch.stack([torch.arange(9.0), -torch.arange(9.0)], 1)
    y = torch.arange(9) % 3
    names = ("a", "b", "c")
    return Split("t", "classes", "rows", (x[:6], y[:6]), (x, y), names, ("up", "down"), weight=torch.arange(9.0))


def test_a_class_is_left_out_and_its_test_rows_are_strangers(split):
    known = without_class(split, "b")
    assert known.classes == ("a", "c")
    assert known.train[1].tolist() == [0, 1, 0, 1, 0, 1]
    assert known.train[0][:, 0].tolist() == [0, 2, 3, 5, 6, 8]
    assert known.weight.tolist() == [0, 2, 3, 5, 6, 8]
    assert known.ood[:, 0].tolist() == [1, 4]
    assert known.test[1].tolist() == [0, 1, 0, 1]
    assert known.what == "rows, without class 'b'"
    assert split.train[1].tolist() == [0, 1, 2] * 3  # as it was


def test_a_range_is_left_out_by_a_quantile_of_the_training_rows(split):
    known = without_range(split, "up", above=0.5)
    assert known.train[0][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert known.ood[:, 0].tolist() == [5]
    assert without_range(split, 1, above=0.5).ood[:, 0].tolist() == [0, 1, 2, 3]
    assert known.classes == split.classes


def test_a_posterior_is_less_sure_of_a_class_that_it_has_never_seen():
    known = without_class(br.data.load_set("digits"), 9)
    model = br.models.mlp(64, len(known.classes), hidden=(32,))
    posterior = br.fit(model, known.train, "map", epochs=10)
    told = br.evaluate.strangers(posterior, known.test, known.ood)
    assert told["entropy"]["auroc"] > 0.7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: without_class(s, "d"), "unknown class 'd'"),
        (lambda s: without_class(replace(s, kind="reals"), "a"), "split must have classes, one for each example"),
        (lambda s: without_class(replace(s, classes=("a", "b")), "a"), "split must have two classes when one is left"),
        (lambda s: without_range(s, "upp"), "unknown column 'upp': did you mean 'up'?"),
        (lambda s: without_range(s, 2), "column must be from 0 to 1, or a name: got 2"),
        (lambda s: without_range(s, "up", above=1.0), "above must be a quantile between 0 and 1, both excluded, got 1"),
        (lambda s: without_range(s, "up"), "'up' above 6.4 must be a part of the examples of t, neither none"),
        (lambda s: without_range(replace(s, training=(torch.zeros(2, 1, 4, 4), s.test[1][:2])), 0), "must be a table"),
        (lambda s: without_class(replace(s, calibration=s.test), "a"), "split must have no examples to calibrate on"),
    ],
)
def test_what_cannot_be_left_out(split, change, words):
    with pytest.raises(ValueError, match=words):
        change(split)
