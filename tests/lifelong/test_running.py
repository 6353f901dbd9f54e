"""Runs: the numbers, resuming to the bit, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from short_strategies import small

import bayesrule as br
from bayesrule import lifelong
from bayesrule.lifelong import fits as fits_module
from bayesrule.lifelong.scores import Result

STREAM = lifelong.streams.toy(3, examples=40)
SETTINGS = {"hidden": (8,), "epochs": 4, "batch_size": 8, "samples": 4}


def timeless(result):
    return {name: value for name, value in result.__dict__.items() if name != "seconds"}


def test_numbers_of_a_matrix_by_hand():
    accuracy = [[0.9, 0.3], [0.8, 1.0, 0.5], [0.6, 0.7, 0.8]]
    result = Result("s", {}, 0, ["a", "b", "c"], accuracy, first=[0.0, 0.2, 0.1])
    assert result.average == pytest.approx(0.7)
    assert result.averages == pytest.approx([0.9, 0.9, 0.7])
    assert result.backward_transfer == pytest.approx(((0.6 - 0.9) + (0.7 - 1.0)) / 2)
    assert result.forgetting == pytest.approx(((0.9 - 0.6) + (1.0 - 0.7)) / 2)
    assert result.forward_transfer == pytest.approx(((0.3 - 0.2) + (0.5 - 0.1)) / 2)


def test_the_last_task_is_judged_as_evaluate_does(tmp_path):
    result = lifelong.run(STREAM, "finetune", out=tmp_path, **SETTINGS)
    model = lifelong.running._network(STREAM, STREAM[0], (8,), 0)
    posterior = br.load(tmp_path / "task-03" / "fit-1" / "posterior.safetensors", model)
    scores = br.evaluate(posterior, STREAM[1].test, samples=4)
    assert result.accuracy[2][1] == scores["accuracy"]
    assert result.nll[2][1] == pytest.approx(scores["nll"])


RESUMED = {
    "kfac-laplace": small("kfac-laplace"),
    "si": small("si"),
    "fromp": small("fromp"),
    "a past that counts five times": replace(small("ivon"), strength=5.0),
}
LONG = ("ewc", "vcl", "vcl-coreset", "replay", "ivon", "vogn", "joint", "memory-only", "ewc-functions")
RESUMED_SLOWLY = {name: small(name) for name in LONG} | {
    "coresets and a past that counts three times": replace(small("vcl-coreset"), strength=3.0, temperature=0.1)
}
CASES = [pytest.param(strategy, id=name) for name, strategy in RESUMED.items()]
CASES += [pytest.param(strategy, id=name, marks=pytest.mark.slow) for name, strategy in RESUMED_SLOWLY.items()]


@pytest.mark.parametrize("strategy", CASES)
def test_a_run_that_was_killed_goes_on_to_the_bit(strategy, tmp_path, monkeypatch):
    settings = SETTINGS | {"epochs": 40}
    whole = lifelong.run(STREAM, strategy, **settings)

    calls, learn = [0], br.training.loop.Loop._learn

    def killed(loop, batch, epoch):
        calls[0] += 1
        if calls[0] == 237:  # in the midst of the second task
            raise KeyboardInterrupt
        return learn(loop, batch, epoch)

    monkeypatch.setattr(fits_module, "INTERVAL", 0.0)
    monkeypatch.setattr(br.training.loop.Loop, "_learn", killed)
    with pytest.raises(KeyboardInterrupt):
        lifelong.run(STREAM, strategy, out=tmp_path, **settings)
    monkeypatch.setattr(br.training.loop.Loop, "_learn", learn)
    left = tmp_path / "result.json"
    assert not left.exists() or not json.loads(left.read_text())["finished"]
    resumed = lifelong.run(STREAM, strategy, out=tmp_path, **settings)
    assert timeless(resumed) == timeless(whole)
    again = lifelong.run(STREAM, strategy, out=tmp_path, **settings)  # which is over: it is read
    assert again == resumed


def test_another_run_is_not_written_over(tmp_path):
    lifelong.run(STREAM.first(1), "finetune", out=tmp_path, **SETTINGS)
    with pytest.raises(FileExistsError, match="holds another run"):
        lifelong.run(STREAM.first(1), "finetune", out=tmp_path, seed=1, **SETTINGS)


def test_labels_that_were_not_announced_are_refused_and_finished_tasks_kept(tmp_path):
    def make(index):
        chapter = STREAM[index]
        x, y = chapter.train
        return lifelong.Chapter(chapter.name, (x, y + index), chapter.test)

    stream = lifelong.Stream("odd", 2, make, classes=2)
    with pytest.raises(
        ValueError, match="train of 'stretch 2' has the label 2, but the stream announced classes 0 to 1"
    ):
        lifelong.run(stream, "finetune", out=tmp_path, **SETTINGS)
    assert len(json.loads((tmp_path / "result.json").read_text())["tasks"]) == 1


def odd(change):
    """A stream of two tasks, the second of them changed."""

    def make(index):
        return change(STREAM[1]) if index else STREAM[0]

    return lifelong.Stream("odd", 2, make, classes=2)


def narrow(chapter):
    (x, y), (other, labels) = chapter.train, chapter.test
    return lifelong.Chapter(chapter.name, (x[:, :1], y), (other[:, :1], labels))


def narrow_test(chapter):
    x, y = chapter.test
    return lifelong.Chapter(chapter.name, chapter.train, (x[:, :1], y))


def other_labels(chapter):
    x, y = chapter.test
    return lifelong.Chapter(chapter.name, chapter.train, (x, y + 1))


def short(chapter):
    x, y = chapter.train
    return lifelong.Chapter(chapter.name, (x[:4], y[:4]), chapter.test)


def gone(chapter):
    raise StopIteration("no more months")


TROUBLE = {
    "inputs of another shape": (narrow, "inputs of one shape, but train of 'stretch 2' has .*1.* and the first"),
    "test inputs of another shape": (narrow_test, "inputs of one shape, but test of 'stretch 2'"),
    "labels that were not announced": (other_labels, "test of 'stretch 2' has the label 2, but the stream announced"),
    "fewer examples than are kept": (short, "from 1 to all 4 examples of a task, not 6"),
    "the stream ends early": (gone, "task 2 of 2 of odd cannot be had .StopIteration: no more months"),
}


@pytest.mark.parametrize(("change", "message"), TROUBLE.values(), ids=TROUBLE)
def test_what_is_wrong_with_a_task_is_said_and_finished_tasks_are_kept(change, message, tmp_path):
    strategy = small("replay")
    with pytest.raises(ValueError, match=message):
        lifelong.run(odd(change), strategy, out=tmp_path, **SETTINGS)
    kept = json.loads((tmp_path / "result.json").read_text())
    assert kept["tasks"] == ["stretch 1"]
    assert not kept["finished"]
    if change is short:  # of which a fit is there already, and other data would not be those it was made of
        return
    mended = lifelong.run(odd(lambda chapter: chapter), strategy, out=tmp_path, **SETTINGS)  # goes on from there
    assert timeless(mended) == timeless(lifelong.run(odd(lambda chapter: chapter), strategy, **SETTINGS))


def triples(count=3):
    return [(chapter.name, chapter.train, chapter.test) for chapter in STREAM.first(count)]


def test_a_generator_is_learnt_as_a_list_is():
    listed = lifelong.run(triples(), "finetune", **SETTINGS)
    told = []
    read = lifelong.run(iter(triples()), "finetune", tell=told.append, **SETTINGS)
    assert read.accuracy == listed.accuracy
    assert told[2].startswith("task 3, stretch 3")


def test_a_generator_that_fails_midway_costs_no_task_that_was_learnt(tmp_path):
    def tasks():
        yield from triples(2)
        raise OSError("the disk is gone")

    with pytest.raises(ValueError, match=r"task 3 of stream cannot be had .OSError: the disk is gone"):
        lifelong.run(tasks(), "finetune", out=tmp_path, **SETTINGS)
    kept = json.loads((tmp_path / "result.json").read_text())
    assert kept["tasks"] == ["stretch 1", "stretch 2"]
    assert not kept["finished"]
    mended = lifelong.run(iter(triples()), "finetune", out=tmp_path, **SETTINGS)
    assert timeless(mended) == timeless(lifelong.run(iter(triples()), "finetune", **SETTINGS))


def test_a_list_whose_second_task_has_another_shape_keeps_the_first(tmp_path):
    (name, train, test), (other, (x, y), _) = triples(2)
    with pytest.raises(ValueError, match="inputs of one shape, but train of 'stretch 2'"):
        lifelong.run([(name, train, test), (other, (x[:, :1], y), (x[:, :1], y))], out=tmp_path, **SETTINGS)
    assert json.loads((tmp_path / "result.json").read_text())["tasks"] == ["stretch 1"]


def test_later_classes_of_a_generator_have_to_be_announced():
    def tasks():
        for k, (name, (x, y), test) in enumerate(triples(2)):
            yield name, (x, y + k), test

    with pytest.raises(ValueError, match=r"has the label 2, but .* classes 0 to 1: .*streams.of\(tasks, classes=3\)"):
        lifelong.run(tasks(), "finetune", **SETTINGS)
    assert lifelong.run(lifelong.streams.of(tasks(), classes=3), "finetune", **SETTINGS).finished


def test_heads_of_ones_own_tasks():
    stream = lifelong.streams.of(triples(), heads="many")
    assert lifelong.run(stream, "ewc", **SETTINGS).finished
    with pytest.raises(ValueError, match="must say how many tasks it has, since each has a head"):
        lifelong.run(lifelong.streams.of(iter(triples()), heads="many"), "ewc", **SETTINGS)


@pytest.mark.parametrize("name", ["ewc", pytest.param("kfac-laplace", marks=pytest.mark.slow), "ivon"])
def test_without_boundaries_it_does_not_matter_where_the_tasks_are_cut(name):
    x, y = (torch.cat(parts) for parts in zip(*(chapter.train for chapter in STREAM), strict=True))
    test = STREAM[0].test
    last = []
    for cuts in ((40, 40, 40), (10, 60, 50), (120,)):
        parts = zip(x.split(cuts), y.split(cuts), strict=True)
        tasks = [(f"part {k}", part, test) for k, part in enumerate(parts)]
        stream = br.lifelong.Stream("quiet", len(tasks), lifelong.streams.of(tasks).make, 2, boundaries=False, block=50)
        last.append(lifelong.run(stream, small(name), **SETTINGS))
    assert [row[0] for row in (r.nll[-1] for r in last)] == [last[0].nll[-1][0]] * 3
    told = lifelong.run(lifelong.streams.of([("all", (x, y), test)]), small(name), **SETTINGS)
    assert told.nll[-1][0] != last[0].nll[-1][0]  # blocks of 50, 50 and 20 are something else


def test_before_the_first_block_is_full_the_network_knows_nothing():
    stream = br.lifelong.Stream("quiet", 2, STREAM.make, 2, boundaries=False, block=60)
    result = lifelong.run(stream, "finetune", **SETTINGS)
    assert result.bytes[0] == 0
    assert result.accuracy[0][1] == result.first[1]


def test_a_stream_that_does_not_tell_its_tasks():
    hidden = lifelong.Stream("quiet", 2, STREAM.make, 2, boundaries=False)
    assert lifelong.run(hidden, "ivon", **SETTINGS).finished
    with pytest.raises(ValueError, match="quiet does not tell where a task ends, which functions has to know"):
        lifelong.run(hidden, "fromp", **SETTINGS)


def test_reals():
    tasks = []
    for k in range(2):
        x = torch.linspace(k, k + 1, 40)[:, None]
        tasks.append((f"piece {k}", (x, (3 * x[:, 0]).sin()), (x, (3 * x[:, 0]).sin())))
    result = lifelong.run(tasks, lifelong.Replay(points=10, lr=1e-2), **SETTINGS)
    assert all(value <= 0 for row in result.accuracy for value in row)  # minus the RMSE
