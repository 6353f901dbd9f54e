"""Streams: what each task holds, and what is refused."""

import pytest
import torch

import bayesrule as br
from bayesrule import lifelong
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
    "other lengths": ([("a", (X, Y[:3]), (X, Y))], "task 0 .a.: X and y"),
}


@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG)
def test_what_is_no_stream_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        streams.of(given)


def test_a_task_is_read_when_its_turn_comes_and_once():
    read = []

    def tasks():
        for k in range(3):
            read.append(k)
            yield f"day {k}", (X + k, Y), (X + k, Y)

    stream = streams.of(tasks())
    assert read == [0]
    assert stream[1].name == "day 1"
    assert read == [0, 1]
    assert [chapter.name for chapter in stream] == ["day 0", "day 1", "day 2"]
    assert read == [0, 1, 2]
    with pytest.raises(streams.End, match="there are 3 tasks"):
        stream[3]
    with pytest.raises(TypeError, match="nobody knows how many tasks stream has"):
        len(stream)


def test_what_a_generator_has_raised_is_no_end():
    def tasks():
        yield "one", (X, Y), (X, Y)
        raise RuntimeError("no more months")

    stream = streams.of(tasks())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no more months"):
            stream[1]


def test_classes_of_a_list_are_those_of_all_its_tasks_and_of_a_generator_as_announced():
    tasks = [("a", (X, Y), (X, Y)), ("b", (X, Y + 2), (X, Y + 2))]
    assert streams.of(tasks).classes == 4
    assert streams.of(iter(tasks)).classes == 2
    assert streams.of(iter(tasks), classes=4).classes == 4


def test_a_head_for_each_task_of_ones_own():
    tasks = [("a", (X, Y), (X, Y)), ("b", (X, Y), (X, Y))]
    stream = streams.of(tasks, heads="many", boundaries=False)
    assert (stream.heads, stream.boundaries, stream.classes) == ("many", False, 2)
    (x, task), _ = stream[1].train
    assert torch.equal(x, X)
    assert task.tolist() == [1] * 4
    with pytest.raises(ValueError, match="heads must be 'one' or 'many', not 'two'"):
        streams.of(tasks, heads="two")
    with pytest.raises(TypeError, match="X must be one array or tensor where each task has a head, got tuple"):
        streams.of([("a", ((X, X), Y), ((X, X), Y))], heads="many")


def test_a_block_has_an_example():
    with pytest.raises(ValueError, match="block must be at least 1 example, not 0"):
        lifelong.Stream("s", 1, lambda index: None, 2, block=0)


def test_a_task_that_is_not_there():
    with pytest.raises(IndexError, match="tasks 0 to 4, not 5"):
        streams.toy(5)[5]
    with pytest.raises(ValueError, match="from 1 to 5"):
        streams.toy(5).first(6)
