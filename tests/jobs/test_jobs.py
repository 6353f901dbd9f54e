"""Jobs: every answer is there once, from wherever it comes, and nothing is left running."""

import multiprocessing
import os
import time
from dataclasses import dataclass

import pytest
import torch

import bayesrule
from bayesrule import jobs


@dataclass(frozen=True)
class Number:
    value: float
    title: str = ""


def squared(question, calls=None):
    if calls is not None:
        calls.append(question.value)
    return {"square": question.value**2, "pair": (1, 2)}


def test_an_answer_is_the_same_whether_it_was_kept_or_not(tmp_path):
    asked, calls = [Number(2.0), Number(3.0)], []
    found = jobs.run(squared, asked, (calls,), cache=tmp_path)
    assert found == jobs.run(squared, asked, (calls,), cache=tmp_path) == jobs.run(squared, asked)
    assert calls == [2.0, 3.0]


def test_what_the_key_leaves_out_is_no_other_question(tmp_path):
    calls = []
    for title in ("one", "two"):
        jobs.run(
            squared, [Number(2.0, title)], (calls,), cache=tmp_path, key=lambda question: {"value": question.value}
        )
    assert calls == [2.0]


def test_another_version_asks_again(tmp_path, monkeypatch):
    calls = []
    jobs.run(squared, [Number(2.0)], (calls,), cache=tmp_path)
    monkeypatch.setattr(jobs, "__version__", bayesrule.__version__ + ".1")
    jobs.run(squared, [Number(2.0)], (calls,), cache=tmp_path)
    assert calls == [2.0, 2.0]


def test_what_was_done_before_an_interruption_is_not_asked_again(tmp_path):
    class Interrupting(list):
        def append(self, value):
            super().append(value)
            if value == 3.0:
                raise KeyboardInterrupt

    asked, calls, told = [Number(2.0), Number(3.0)], Interrupting(), []
    with pytest.raises(KeyboardInterrupt):
        jobs.run(squared, asked, (calls,), cache=tmp_path)
    jobs.run(squared, asked, ([],), cache=tmp_path, tell=told.append)
    assert calls == [2.0, 3.0]
    assert told == ["2/2 value 3.0, title "]


def test_the_time_that_is_left_is_told(monkeypatch):
    clock = iter(range(0, 1000, 100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    told = []
    jobs.run(squared, [Number(1.0), Number(2.0), Number(3.0)], tell=told.append, say=lambda asked, answer: "done")
    assert told == ["1/3 done, 3 min left", "2/3 done, 100 s left", "3/3 done"]


def test_jobs_compute_on_one_thread_and_leave_torch_as_it_was():
    before = torch.get_num_threads()
    assert list(jobs.finished(torch.get_num_threads, [()], count=before + 1)) == [(0, before + 1)]
    assert torch.get_num_threads() == before


def test_an_error_in_another_process_ends_them_all():
    with pytest.raises(OSError, match="No such file"):
        list(jobs.finished(os.stat, [("/nowhere",), ("/nowhere",)], 2))
    assert multiprocessing.active_children() == []


def test_a_process_that_is_killed_is_an_error_with_advice():
    with pytest.raises(ChildProcessError, match="out of memory"):
        list(jobs.finished(os._exit, [(9,), (9,)], 2))
