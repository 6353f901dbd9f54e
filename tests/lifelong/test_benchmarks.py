"""Streams by name, and streams of tables."""

import numpy as np
import pandas as pd
import pytest
import torch

from bayesrule.lifelong import benchmarks, run, tables

EMBEDDED = ["perm-digits", "seq-digits", "seq-digits-class", "toy"]


def sales(months=3, rows=40):
    random = np.random.default_rng(0)
    month = np.repeat(np.arange(1, months + 1), rows)
    size = random.normal(100, 30, months * rows) + 20 * month
    city = random.choice(["Rome", "Oslo"], months * rows)
    frame = pd.DataFrame({"month": month, "size": size, "city": city, "price": 3 * size})
    frame["sold"] = np.where(np.arange(len(frame)) % 2, "yes", "no")
    return frame.sample(frac=1, random_state=0)  # rows need not be in order


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_benchmarks_load_and_are_of_the_length_they_say(name):
    stream, settings = benchmarks.load(name)
    assert len(stream) == settings.tasks == 5
    assert len(benchmarks.load(name, tasks=2).stream) == 2
    assert settings.points <= min(len(chapter.train[1]) for chapter in stream)


@pytest.mark.parametrize("name", benchmarks.BENCHMARKS)
def test_a_benchmark_without_its_files_says_where_they_were_looked_for(name, monkeypatch):
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    if name in EMBEDDED:
        return
    with pytest.raises(FileNotFoundError, match="BAYESRULE_DATA"):
        benchmarks.load(name)


def test_names_and_numbers_of_tasks_are_checked():
    with pytest.raises(ValueError, match="did you mean 'perm-mnist'"):
        benchmarks.load("perm-mnst")
    with pytest.raises(ValueError, match="from 1 to 5"):
        benchmarks.load("seq-digits", tasks=6)
    with pytest.raises(ValueError, match="tasks must be at least 1"):
        benchmarks.load("toy", tasks=0)


def test_full_settings_are_those_of_the_literature():
    full = {name: benchmark.full for name, benchmark in benchmarks.BENCHMARKS.items()}
    perm, split = full["perm-mnist"], full["seq-mnist"]
    assert (perm.hidden, perm.epochs, perm.batch_size, perm.points, perm.tasks) == ((100, 100), 10, 128, 200, 50)
    assert (split.hidden, split.epochs, split.points) == ((256, 256), 15, 40)
    assert full["seq-mnist-class"].points == 200


def test_points_are_for_strategies_that_keep_some():
    assert benchmarks.strategy("replay", 7).points == 7
    assert not benchmarks.keeps_points(benchmarks.strategy("ewc", 7))


def test_a_benchmark_may_have_settings_of_its_own_for_a_strategy():
    own = benchmarks.strategy("si", 7, "seq-mnist")
    assert own == benchmarks.BENCHMARKS["seq-mnist"].strategies["si"]
    assert own != benchmarks.strategy("si", 7, "perm-mnist") == benchmarks.strategy("si", 7)


def test_a_table_is_cut_by_a_column_in_its_order():
    found = tables.by_column(sales(months=11, rows=20), target="sold", by="month")
    assert [chapter.name for chapter in found.stream][-3:] == ["month 9", "month 10", "month 11"]
    assert "month" not in found.schema.names
    chapter = found.stream[0]
    assert (len(chapter.train[1]), len(chapter.test[1])) == (16, 4)


def test_nothing_of_later_tasks_is_in_the_inputs_of_the_first():
    """The first task's examples are the same whatever comes after it, categories and scales included."""
    frame = sales()
    later = frame["month"] > 1
    other = frame.copy()
    other.loc[later, "size"] *= 100
    other.loc[later, "city"] = "Lima"
    one, two = (tables.by_column(each, target="sold", by="month") for each in (frame, other))
    assert one.schema.columns == two.schema.columns
    assert torch.equal(one.stream[0].train[0], two.stream[0].train[0])
    assert one.stream[0].train[0].mean(0).abs().max() < 1e-5


def test_classes_are_those_of_all_tasks():
    frame = sales()
    frame.loc[frame["month"] == 1, "sold"] = "no"
    found = tables.by_column(frame, target="sold", by="month").stream
    assert found.classes == 2
    assert set(found[0].train[1].tolist()) == {0}


def test_reals_are_scaled_by_the_first_task():
    found = tables.by_column(sales(), target="price", by="month")
    y = found.stream[0].train[1]
    assert y.std(correction=0) == pytest.approx(1, abs=1e-5)
    assert any("standard deviation" in note for note in found.notes)
    assert run(found.stream, "finetune", epochs=1, hidden=(4,)).average < 0  # minus the RMSE


@pytest.mark.parametrize(
    ("change", "by", "error"),
    [
        (lambda f: f, "mont", "did you mean 'month'"),
        (lambda f: f, "sold", "by must not name the target"),
        (lambda f: f[(f["month"] < 3) | (f.groupby("month").cumcount() < 4)], "month", "but month 3 has 4"),
        (lambda f: f[f["month"] == 1], "month", "at least two different values"),
    ],
)
def test_a_table_that_is_no_stream_is_refused(change, by, error):
    with pytest.raises(ValueError, match=error):
        tables.by_column(change(sales()), target="sold", by=by)


def test_rows_that_belong_to_no_task_are_left_out_and_counted():
    frame = sales().astype({"month": float})
    frame.iloc[:3, 0] = np.nan
    found = tables.by_column(frame, target="sold", by="month")
    assert "3 of 120 rows left out: no value of 'month'" in found.notes


@pytest.mark.slow
@pytest.mark.parametrize("name", EMBEDDED)
def test_quick_settings_forget_less_with_a_memory(name):
    stream, settings = benchmarks.load(name)
    found = {}
    for method in ("finetune", "replay", "joint"):
        strategy = benchmarks.strategy(method, settings.points)
        options = {"epochs": settings.epochs, "batch_size": settings.batch_size, "hidden": settings.hidden}
        found[method] = run(stream, strategy, **options).average
    assert found["finetune"] < found["replay"]
    assert found["finetune"] < found["joint"]
