"""Actors: calls are answered in order, errors come home, and nothing is left running."""

import multiprocessing
import os

import pytest

from bayesrule.actors import Actors


def test_actors_keep_what_they_are_told_and_answer_in_order():
    before = set(multiprocessing.active_children())
    actors = Actors(list, ([0, 1, 2],), count=2)
    actors.tell("append", 3)
    assert actors.ask("index", [(3,), (0,), (2,), (1,), (3,)]) == [3, 0, 2, 1, 3]
    assert len(set(multiprocessing.active_children()) - before) == 2
    with pytest.raises(ValueError, match="7 is not in list"):
        actors.ask("index", [(0,), (7,)])
    assert set(multiprocessing.active_children()) <= before  # an error ends them
    with pytest.raises(ChildProcessError, match="one of 2 processes could not start or was ended from outside"):
        actors.tell("append", 4)


def test_what_another_process_cannot_know_is_refused():
    before = set(multiprocessing.active_children())
    with pytest.raises(TypeError, match=r"must be known by the name of a module, .* or use one process"):
        Actors(lambda: [], (), count=1)
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.slow
def test_actors_end_with_the_object_that_made_them():
    before = set(multiprocessing.active_children())
    actors = Actors(list, ([],), count=1)
    actors.tell("append", 3)
    del actors
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.slow
def test_an_actor_that_dies_is_told():
    with pytest.raises(ChildProcessError, match=r"in a script, guard the call by if __name__"):
        Actors(os._exit, (1,), count=1).tell("append", 3)
