"""Predictions as sequences and as tables."""

import numpy as np
import pytest
import torch

from bayesrule.predictions import Binary, Classes, Counts, Reals


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


KINDS = {
    "classes": Classes(normal(3, 5, 4)),
    "entropies": Classes(normal(3, 5, 4), torch.rand(3, 5)),
    "pixels": Classes(normal(3, 5, 4, 2, 2)),
    "binary": Binary(normal(3, 5)),
    "labels": Binary(normal(3, 5, 2)),
    "reals": Reals(normal(3, 5), torch.tensor(0.5)),
    "several": Reals(normal(3, 5, 2), torch.tensor([0.5, 1.0])),
    "counts": Counts(normal(3, 5)),
}


@pytest.mark.parametrize("prediction", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    ("index", "kept"),
    [
        (0, [0]),
        (-1, [4]),
        (np.int64(2), [2]),
        (slice(1, 4), [1, 2, 3]),
        ([3, 0], [3, 0]),
        (torch.tensor([True, False, False, True, False]), [0, 3]),
        (np.array([4, 1]), [4, 1]),
    ],
    ids=str,
)
def test_some_examples(prediction, index, kept):
    some = prediction[index]
    assert type(some) is type(prediction)
    assert len(some) == len(kept)
    assert some.samples == prediction.samples
    assert torch.equal(some.point, prediction.point[kept])
    torch.testing.assert_close(some.epistemic, prediction.epistemic[kept])


@pytest.mark.parametrize("index", [5, -6])
def test_no_example_beyond_the_last(index):
    with pytest.raises(IndexError, match="index must be one of 5 examples"):
        KINDS["reals"][index]


def test_a_loop_over_examples_ends():
    assert [len(one) for one in KINDS["classes"]] == [1] * 5


def test_a_table_of_numbers():
    prediction = KINDS["reals"]
    table = prediction.to_frame(level=0.5)
    assert list(table) == ["prediction", "std", "lower_50", "upper_50", "aleatoric_std", "epistemic_std"]
    low, high = prediction.interval(0.5)
    np.testing.assert_allclose(table.lower_50, low, rtol=1e-6)
    np.testing.assert_allclose(table.upper_50, high, rtol=1e-6)
    np.testing.assert_allclose(table.epistemic_std**2, prediction.epistemic, rtol=1e-5)


def test_a_table_of_classes():
    prediction = KINDS["classes"]
    assert prediction.to_frame().prediction.tolist() == prediction.label.tolist()
    table = prediction.to_frame(classes=["a", "b", "c", "d"])
    names = [f"p_{name}" for name in "abcd"]
    assert list(table) == ["prediction", "confidence", *names, "entropy", "aleatoric", "epistemic"]
    assert table.prediction.tolist() == ["abcd"[label] for label in prediction.label]
    np.testing.assert_allclose(table[names], prediction.probs, rtol=1e-6)


def test_a_table_of_several_targets_has_columns_for_each():
    prediction = KINDS["several"]
    table = prediction.to_frame()
    np.testing.assert_allclose(table[["prediction_0", "prediction_1"]], prediction.mean, rtol=1e-6)
    labels = KINDS["labels"].to_frame(classes=["no", "yes"])
    np.testing.assert_allclose(labels[["p_yes_0", "p_yes_1"]], KINDS["labels"].probs, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "classes", "error"),
    [("classes", ["a"], "names of all 4 classes, got 1"), ("counts", ["a"], "classes must be empty for numbers")],
)
def test_names_of_classes_that_do_not_fit(kind, classes, error):
    with pytest.raises(ValueError, match=error):
        KINDS[kind].to_frame(classes=classes)


@pytest.mark.parametrize("prediction", KINDS.values(), ids=KINDS)
def test_a_notebook_shows_the_first_examples(prediction):
    several = type(prediction).cat([prediction] * 3)
    page = several._repr_html_()
    assert page.startswith(f"<p>{several!r}</p>")
    assert page.count("<tr>") == 10  # pandas writes the head's as <tr style=...>


@pytest.mark.parametrize(
    ("kind", "name", "having"),
    [
        ("classes", "mean", "Counts and PositiveReals and Reals and TailedReals"),
        ("reals", "label", "Binary and Classes and TokenClasses"),
        ("counts", "crps", "PositiveReals and Reals and TailedReals"),
    ],
)
def test_what_a_kind_has_not_is_said_with_those_that_have_it(kind, name, having):
    assert not hasattr(KINDS[kind], name)
    with pytest.raises(AttributeError, match=f"{type(KINDS[kind]).__name__} has no '{name}', which is of {having}$"):
        getattr(KINDS[kind], name)
