"""Streams: what each task holds, and what is refused."""

import pytest
import torch

import bayesrule as br
from bayesrule.lifelong import streams

DIGITS = br.data.load_set("digits")


def test_permuted_tasks_hold_the_same_numbers_in_another_order():
    stream = streams.permuted(DIGITS, 3, seed=1)
    first, second = stream[0], stream[1]
    assert torch.equal(first.train[0], DIGITS.train[0].flatten(1))
    assert not torch.equal(first.train[0], second.train[0])
    assert torch.equal(first.train[0].sort(1).values, second.train[0].sort(1).values)
    assert torch.equal(stream[1].train[0], second.train[0])  # the same whenever it is asked for


def test_one_order_for_training_and_test():
    chapter = streams.permuted(DIGITS, 2)[1]
    sums = DIGITS.train[0].flatten(1).mean(0), DIGITS.test[0].flatten(1).mean(0)
    order = [torch.cdist(chapter.train[0].mean(0)[:, None], sums[0][:, None]).argmin(1)]
    assert torch.allclose(sums[0][order[0]], chapter.train[0].mean(0))
    assert torch.equal(chapter.test[1], DIGITS.test[1])


def test_split_with_many_heads_has_labels_of_its_own_and_says_the_task():
    stream = streams.split_by_class(DIGITS)
    assert (len(stream), stream.classes) == (5, 2)
    for index, chapter in enumerate(stream):
        (x, task), y = chapter.train
        assert set(y.tolist()) == {0, 1}
        assert set(task.tolist()) == {index}
        assert len(x) == int(((DIGITS.train[1] // 2) == index).sum())


def test_split_with_one_head_keeps_the_labels():
    stream = streams.split_by_class(DIGITS, heads="one")
    assert [set(chapter.train[1].tolist()) for chapter in stream] == [{2 * k, 2 * k + 1} for k in range(5)]
    assert stream.classes == 10


def test_rotated_pictures():
    stream = streams.rotated(DIGITS, 3, most=180.0)
    plain = DIGITS.test[0].flatten(1)
    torch.testing.assert_close(stream[0].test[0], plain)
    # a half turn is all numbers in reverse
    torch.testing.assert_close(stream[2].test[0], plain.flip(1), atol=1e-5, rtol=0)


def test_settings_are_chosen_on_training_examples_only():
    stream = streams.digits("permuted", 2)
    tuning = stream.tuning(0.2)
    for index in range(2):
        whole, part = stream[index], tuning[index]
        both = torch.cat([part.train[0], part.test[0]])
        rows = {tuple(row) for row in whole.train[0].tolist()}
        assert len(both) == len(whole.train[0])
        assert all(tuple(row) in rows for row in both.tolist())


def test_fewer_examples_of_all_classes():
    chapter = streams.digits("permuted", 1).fewer(50)[0]
    assert len(chapter.train[1]) == 50
    assert len(set(chapter.train[1].tolist())) == 10


def test_toy_tasks_lie_side_by_side():
    edges = [(c.train[0][:, 0].min().item(), c.train[0][:, 0].max().item()) for c in streams.toy(3)]
    assert all(edges[k][1] <= edges[k + 1][0] + 1e-6 for k in range(2))


X, Y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
WRONG = {
    "no task": ([], "at least one task"),
    "no triple": ([(X, Y)], "must be .name, train, test."),
    "other shapes": ([("a", (X, Y), (X, Y)), ("b", (X[:, :1], Y), (X[:, :1], Y))], "inputs of one shape.*'b'"),
    "other lengths": ([("a", (X, Y[:3]), (X, Y))], "task 0 .a.: X and y"),
}


@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG)
def test_what_is_no_stream_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        streams.of(given)


def test_a_task_that_is_not_there():
    with pytest.raises(IndexError, match="tasks 0 to 4, not 5"):
        streams.toy(5)[5]
    with pytest.raises(ValueError, match="from 1 to 5"):
        streams.toy(5).first(6)
