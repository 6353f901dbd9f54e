"""The verb ``lifelong``: a table and files, the same again, and errors of one line."""

import json

import pytest

from bayesrule import lifelong
from bayesrule.cli import lifelong as verb

QUICK = ("lifelong", "toy", "--tasks", "2", "--epochs", "2", "--hidden", "8", "--methods", "finetune,replay")


def cells(folder):
    """What was learnt, without what a clock says."""
    found = json.loads((folder / "result.json").read_text())["cells"]
    for cell in found:
        del cell["seconds"], cell["summary"]["seconds"]
    return found


@pytest.fixture
def monthly(tmp_path):
    path = tmp_path / "sales.csv"
    lines = ["month,size,sold"]
    for row in range(60):
        lines.append(f"{1 + row % 2},{(row * 7) % 23},{'yes' if (row * 7) % 23 > 11 else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_benchmark_gives_a_table_and_files(bayesrule, tmp_path):
    code, out, err = bayesrule(*QUICK, "--seeds", "0,1", "--out", "life")
    assert code == 0, err
    for word in ("finetune", "replay", "±"):
        assert word in out
    assert "4/4 replay, seed 1" in err
    for name in ("result.json", "report.html", "curves.png", "matrices.png", "replay-1/memory.safetensors"):
        assert (tmp_path / "life" / name).is_file(), name
    plain = json.loads((tmp_path / "life" / "result.json").read_text())
    assert len(plain["cells"]) == 4
    assert plain["table"]["finetune"]["time"]["mean"] == pytest.approx(1.0)
    assert plain["command"].startswith("bayesrule lifelong toy")
    assert plain["table"]["replay"]["average"]["error"] is not None
    page = (tmp_path / "life" / "report.html").read_text()
    assert "What was kept" in page
    assert "http" not in page


def test_the_same_command_gives_the_same_file_and_more_methods_are_added(bayesrule, tmp_path, monkeypatch):
    assert bayesrule(*QUICK, "--out", "life")[0] == 0
    before = (tmp_path / "life" / "result.json").read_bytes()
    (tmp_path / "life" / "result.json").unlink()
    assert bayesrule(*QUICK, "--out", "life")[0] == 0
    assert (tmp_path / "life" / "result.json").read_bytes() == before
    code, _, err = bayesrule(*QUICK[:-1], "finetune,ewc", "--out", "life")
    assert code == 0
    assert "finetune, seed 0: task" not in err


def test_a_call_that_was_killed_goes_on_to_the_same_result(bayesrule, tmp_path, monkeypatch):
    assert bayesrule(*QUICK, "--out", "whole")[0] == 0

    def interrupt(line):
        if "replay" in line and "task 1/2" in line:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(verb, "say", interrupt)
        assert bayesrule(*QUICK, "--out", "cut")[0] == 130
    assert not (tmp_path / "cut" / "result.json").exists()
    code, _, err = bayesrule(*QUICK, "--out", "cut")
    assert code == 0
    assert "finetune, seed 0: task" not in err
    assert "replay, seed 0: task 1/2" not in err
    assert cells(tmp_path / "cut") == cells(tmp_path / "whole")


def test_a_table_by_a_column(bayesrule, monthly, as_json):
    line = ("lifelong", monthly, "--target", "sold", "--by", "month", "--epochs", "2", "--methods", "replay")
    found = as_json(*line, "--out", "life")
    assert found["cells"][0]["tasks"] == ["month 1", "month 2"]
    assert found["stream"] == "sales.csv"
    monthly.write_text(monthly.read_text() + "1,3,no\n")
    code, _, err = bayesrule(*line, "--out", "life")
    assert code == 2
    assert "holds runs with another content of the table" in err


def test_a_rule_chooses_what_is_kept_and_is_part_of_the_directory(bayesrule, tmp_path):
    assert bayesrule(*QUICK, "--rule", "k-centre", "--out", "life")[0] == 0
    cell = json.loads((tmp_path / "life" / "replay-0" / "result.json").read_text())
    assert cell["strategy"]["fields"]["rule"] == "k-centre"
    code, _, err = bayesrule(*QUICK, "--rule", "random", "--out", "life")
    assert code == 2
    assert "holds runs with rule 'k-centre', not 'random'" in err


def test_blocks_take_the_place_of_tasks_that_are_not_told(bayesrule, tmp_path):
    line = (*QUICK[:-1], "ewc", "--no-boundaries", "--block", "150", "--out", "life")
    code, out, err = bayesrule(*line)
    assert code == 0, err
    assert "epistemic" in out
    folder = tmp_path / "life" / "ewc-0"
    assert len(list(folder.glob("task-*"))) == 3  # of 400 examples: 150, 150 and 100
    assert json.loads((folder / "result.json").read_text())["tasks"] == ["stretch 1", "stretch 2"]


def test_no_stream_lists_them(bayesrule):
    code, out, _ = bayesrule("lifelong")
    assert code == 0
    assert "seq-mnist-class" in out


BAD = {
    "lifelong toyy": "unknown benchmark 'toyy': did you mean 'toy'",
    "lifelong toy --methods ewcc": "did you mean 'ewc'",
    "lifelong toy --methods ,": "--methods must name at least one method",
    "lifelong toy --by month": "--by is for .csv and .parquet files",
    "lifelong toy --target y": "--target is for .csv and .parquet files",
    "lifelong toy --no-boundaries --methods finetune,fromp": "fromp must be told where a task ends",
    "lifelong toy --methods finetune,frcl": "frcl is for streams with a head for each task, which toy is not",
    "lifelong seq-digits --methods generative": "generative is for streams with one head for all tasks",
    "lifelong TABLE --target size --kind reals --by month --methods generative": "generative is for classes",
    "lifelong toy --methods replay --points 999": "--points must be at most the 200 training examples",
    "lifelong toy --methods replay --rule relevence": "unknown --rule 'relevence': did you mean 'relevance'",
    "lifelong toy --methods ewc --rule random": "--rule is for methods that choose what they keep",
    "lifelong toy --block 50": "--block is for --no-boundaries",
    "lifelong toy --no-boundaries --methods ewc --block 0": "--block must be at least 1, got 0",
    "lifelong toy --epochs 0": "--epochs must be at least 1, got 0",
    "lifelong toy --tasks 0": "tasks must be at least 1",
    "lifelong seq-digits --tasks 9": "tasks must be from 1 to 5",
    "lifelong toy --jobs 0": "--jobs must be at least 1",
    "lifelong toy --seeds a": "must be whole numbers, as in 0,1,2",
    "lifelong perm-mnist": "no directory was given",
    "lifelong TABLE --target sold": "--by COLUMN, which orders the tasks",
    "lifelong TABLE --target sold --by month --full": "--full is for benchmarks",
    "lifelong TABLE --target sold --by size": "but size 0 has",
    "lifelong TABLE --target size --kind reals --by month --methods fromp": "fromp is for classes",
    "lifelong TABLE --target sold --by mont": "did you mean 'month'",
}


@pytest.mark.parametrize("line", BAD)
def test_what_a_user_gets_wrong_is_one_line(line, bayesrule, monthly, monkeypatch):
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    code, out, err = bayesrule(*[str(monthly) if word == "TABLE" else word for word in line.split()])
    assert code == 2
    assert out == ""
    assert BAD[line] in err.splitlines()[-1]


def test_a_directory_of_other_settings_is_refused(bayesrule):
    assert bayesrule(*QUICK, "--out", "life")[0] == 0
    code, _, err = bayesrule(*QUICK, "--batch-size", "99", "--out", "life")
    assert code == 2
    assert "holds runs with batch_size 16, not 99" in err


def test_a_label_that_was_not_announced_ends_the_call_and_keeps_what_was_learnt(bayesrule, tmp_path, monkeypatch):
    stream = lifelong.streams.toy(2)

    def make(index):
        chapter = stream[index]
        if index == 0:
            return chapter
        x, y = chapter.train
        return lifelong.Chapter(chapter.name, (x, y + 5), chapter.test, chapter.classes)

    bad = lifelong.Stream("bad", 2, make, 2)
    benchmark = lifelong.benchmarks.BENCHMARKS["toy"]
    changed = lifelong.benchmarks.Benchmark("bad", lambda data_dir, tasks: bad, benchmark.quick, benchmark.full)
    monkeypatch.setitem(lifelong.benchmarks.BENCHMARKS, "toy", changed)
    verb.opened.cache_clear()
    try:
        code, _, err = bayesrule(*QUICK, "--out", "life")
    finally:
        verb.opened.cache_clear()
    assert code == 2
    assert "has the label 6, but the stream announced classes 0 to 1" in err
    kept = json.loads((tmp_path / "life" / "finetune-0" / "result.json").read_text())
    assert len(kept["accuracy"]) == 1
