"""Pictures of shapes: what is labelled, what is noise, and what is unseen."""

import pytest
import torch

from bayesrule.data import shapes


def test_a_seed_gives_the_same_pictures_and_another_gives_others():
    one, same, other = (shapes.shapes(3, 32, seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one.y, other.y)


def test_labels_are_the_classes_and_triangles_are_none_of_them():
    taught, strange = shapes.shapes(20, seed=0), shapes.shapes(20, unseen=True, seed=0)
    assert taught.y.unique().tolist() == [0, 1, 2]
    assert not taught.unseen.any()
    assert strange.unseen.flatten(1).any(1).all()
    assert torch.equal(taught.y, strange.y)  # a triangle hides what is there; its own pixels count for nothing


def test_labels_disagree_with_the_middle_of_edges_at_borders_only():
    """The label of a disc ends where a person says: away from the border the grey value tells the class."""
    some = shapes.shapes(50, seed=3)
    dark = some.x[:, 0] < 0.4  # a disc and the bright stripes are above, the background and dark stripes below
    disc = some.y == 1
    inner, outer = disc & ~some.border, disc & some.border
    assert dark[outer].float().mean() > 5 * dark[inner].float().mean()


@pytest.mark.parametrize(("n", "side"), [(0, 64), (1, 8)])
def test_what_cannot_be_drawn_is_refused(n, side):
    with pytest.raises(ValueError, match="n of at least 1 and side of at least 16"):
        shapes.shapes(n, side)
