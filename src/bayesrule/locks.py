"""One writer at a time in a directory: among the threads of this process, and among all processes of the machine.

The lock is the system's own on a file ``run.lock``, not the file's existence: it ends with the process, however that
ends, and a file that a killed process left behind hinders nobody.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = "run.lock"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_OWN: set[int] = set()
"""The open lock files of this process."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Within this block the directory is this caller's; a `FileExistsError` if it is somebody else's just now.

    A directory that was made for the block, and in which nothing was written, is removed again.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with held(folder), held(folder):
    ...     pass
    Traceback (most recent call last):
    FileExistsError: ...
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    file = _take(folder)
    try:
        yield
    finally:
        _give_back(file, folder / NAME)
        with suppress(OSError):  # not empty: what was written stays
            for path in new:
                path.rmdir()


def _take(folder: Path) -> int:
    """The lock file, open and locked, with a word about who has it."""
    path = folder / NAME
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # no symbolic link is followed: the file is written to
            file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except FileNotFoundError:  # somebody removed the directory, which was empty, this very moment
            continue
        try:
            if not _lock(file):
                raise FileExistsError(
                    f"{folder} is in use by another fit{_owner(file)}: wait until it has ended, or choose another "
                    "directory"
                )
            if _is_at(file, path):
                os.ftruncate(file, 0)
                os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
                _OWN.add(file)
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # whoever had it removed it before it was locked here: it is nobody's file, try again


def _give_back(file: int, path: Path) -> None:
    if file not in _OWN:  # a forked process does not have what its parent has
        return
    _OWN.remove(file)
    if os.name == "posix":  # while it is locked: afterwards it may be another one's
        with suppress(FileNotFoundError):
            path.unlink()
    _unlock(file)
    os.close(file)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _owner(file: int) -> str:
    """Who has a lock file, if it says so."""
    said = ""
    with suppress(OSError):
        said = os.read(file, 300).decode(errors="replace")
    return f" ({said})" if said else ""


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> bool:
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: int) -> bool:
        """Whether nobody else has the file; `flock` asks by open file, so that threads are told apart, too."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            warnings.warn(
                f"this file system has no locks ({error.strerror}): make sure that nobody else writes to the directory",
                stacklevel=6,
            )
        return True

    def _unlock(file: int) -> None:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(file, fcntl.LOCK_UN)

    def _forget() -> None:
        """A forked process, such as a loader's worker, must not keep a lock that outlives its parent."""
        while _OWN:
            os.close(_OWN.pop())

    os.register_at_fork(after_in_child=_forget)
