"""Several writers to one place: one at a time in a run's directory, and never half a file."""

import errno
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
import rivals
from networks import classes, mlp

import bayesrule as br
from bayesrule import files, locks
from bayesrule.training import Folder

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["bayesrule"])


def race(folders):
    """Two processes that fit into the same directories at the same times: the two outcomes for each."""
    start, pipes, processes = SERVER.Barrier(2), [], []
    for seed in (1, 2):
        here, there = SERVER.Pipe(duplex=False)
        process = SERVER.Process(target=rivals.fit_each, args=(folders, seed, start, there), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    try:
        return [tuple(pipe.recv() for pipe in pipes) for _ in folders]
    finally:
        for process in processes:
            process.join(60)


@pytest.mark.parametrize("times", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_of_two_fits_to_one_directory_one_runs_and_one_is_refused(tmp_path, times):
    folders = [tmp_path / f"run {index}" for index in range(times)]
    for folder, outcomes in zip(folders, race(folders), strict=True):
        assert sorted(kind for kind, _ in outcomes) == ["done", "refused"], outcomes
        (winner,) = (what for kind, what in outcomes if kind == "done")
        (said,) = (what for kind, what in outcomes if kind == "refused")
        assert "in use by another fit" in said or "holds another run" in said
        assert [path.name for path in folder.iterdir()] == ["posterior.safetensors"]
        assert rivals.digest(br.load(folder / "posterior.safetensors", mlp())) == winner


def test_two_threads_of_one_process_are_rivals_too(tmp_path):
    begun, end, outcome = threading.Event(), threading.Event(), []

    def wait(progress):
        begun.set()
        end.wait(60)

    def first():
        outcome.append(br.fit(mlp(), classes(), br.methods.MAP(), epochs=1, out=tmp_path, callbacks=[wait]))

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(60)
    try:
        with pytest.raises(FileExistsError, match=rf"another fit \(process {os.getpid()} on .*choose another"):
            br.fit(mlp(), classes(), br.methods.MAP(), epochs=1, out=tmp_path)
        with pytest.raises(FileExistsError, match="in use by another fit"):
            br.resume(tmp_path, mlp(), classes())
    finally:
        end.set()
        thread.join()
    assert len(outcome) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["posterior.safetensors"]


def test_one_folder_object_in_two_threads_is_held_by_one(tmp_path):
    folder, refused = Folder(tmp_path / "run"), []

    def other():
        try:
            with folder.held():
                pass
        except FileExistsError as error:
            refused.append(error)

    with folder.held(), folder.held():  # the same thread may ask again
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    assert not (tmp_path / "run").exists()


def test_a_lock_ends_with_its_process(tmp_path):
    here, there = SERVER.Pipe()
    process = SERVER.Process(target=rivals.hold, args=(tmp_path, there), daemon=True)
    process.start()
    assert here.recv() == "held"
    with pytest.raises(FileExistsError, match=f"process {process.pid}"), locks.held(tmp_path):
        pass
    process.kill()
    process.join()
    (tmp_path / "checkpoint.safetensors.01234567.partial").touch()  # as a killed fit leaves it
    with Folder(tmp_path).held():
        assert [path.name for path in tmp_path.iterdir()] == [locks.NAME]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    with locks.held(tmp_path):
        child = os.fork()
        if not child:  # it would hold the lock as long as it sleeps
            threading.Event().wait(30)
            os._exit(0)
    try:
        with locks.held(tmp_path):
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_lock_follows_no_symbolic_link(tmp_path):
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / locks.NAME).symlink_to(target)
    with pytest.raises(OSError, match=locks.NAME), locks.held(tmp_path / "run"):
        pass
    assert target.read_text() == "precious"


def test_a_file_is_never_seen_half_written(tmp_path):
    """Two writers and a reader of one path."""
    path, whole = tmp_path / "file", [letter * 400_000 for letter in (b"a", b"b")]
    files.write_atomically(path, whole[0])
    stop, errors = threading.Event(), []

    def write(content):
        try:
            while not stop.is_set():
                files.write_atomically(path, content)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in whole]
    for thread in threads:
        thread.start()
    try:
        for _ in range(150):
            assert path.read_bytes() in whole
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_temporary_name_that_is_taken_is_not_touched(tmp_path, monkeypatch):
    target, path = tmp_path / "precious", tmp_path / "file"
    target.write_text("precious")
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "0")
    for name in ("file.partial", "file.0.partial"):
        (tmp_path / name).symlink_to(target)
    with pytest.raises(FileExistsError, match="cannot write"):
        files.write_atomically(path, "new")
    assert target.read_text() == "precious"
    assert (tmp_path / "file.0.partial").is_symlink()
    assert not path.exists()


def full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "posterior.safetensors"
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match=rf"cannot write .*{path.name}: No space left on device") as caught:
        files.save(path, {"n": 3}, "posterior")
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_device_that_is_full_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.open", lambda path, mode, plain=open: plain("/dev/full", "wb"))
    with pytest.raises(OSError, match=r"cannot write .*file: No space left on device"):
        files.write_atomically(tmp_path / "file", b"x" * 100_000)


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="there is no /dev/null here")
def test_no_device_is_replaced_by_a_file(tmp_path):
    """Root may do so, and then it is gone."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"cannot write .*folder: there is something that is no file"):
        files.write_atomically(tmp_path / "folder", "text")
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    with pytest.raises(OSError, match="no file"):
        files.write_atomically(link, "text")
