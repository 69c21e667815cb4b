"""Reading, writing and waiting for the files of a control group. All of it blocks, for as long as it says."""

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agentos.sandbox import virtual_files
from agentos.sandbox.cgroup_values import CgroupError

TIMEOUT = 5.0  # seconds for the kernel to freeze or kill a whole group; it takes milliseconds
TICK = 0.005  # seconds between two looks where there is nothing to wait for


def read(path: str) -> str:
    """The text of a file, without the white space around it."""
    try:
        return virtual_files.read(path).strip()
    except OSError as error:
        raise CgroupError(f"{path}: {error.strerror}") from error


def read_if_there(path: str) -> str | None:
    """The text of a file, or ``None`` where this kernel hasn't got it."""
    try:
        return virtual_files.read(path).strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CgroupError(f"{path}: {error.strerror}") from error


def write(path: str, value: object) -> None:
    """Write one value to a file that exists; :class:`CgroupError` with the kernel's reason when it refuses."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise CgroupError(f"{path}: {value} refused: {error.strerror}") from error


def number(path: str) -> int | None:
    """The number in a file; ``None`` for ``max``, and where there's no such file."""
    text = read_if_there(path)
    return None if text is None or text == "max" else int(text)


def counters(path: str) -> dict[str, int]:
    """The lines ``name value`` of a file; nothing where there's no such file."""
    lines = (line.split() for line in (read_if_there(path) or "").splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2}


def make(directory: str) -> None:
    """Make a group; there must be none of that name."""
    try:
        os.mkdir(directory, 0o755)
    except OSError as error:
        raise CgroupError(f"{directory}: can't be made: {error.strerror}") from error


def tree(directory: str) -> Sequence[str]:
    """A group and all groups in it, the innermost first; nothing if it isn't there."""
    return [found for found, _, _ in os.walk(directory, topdown=False)]


def processes(directories: Iterable[str]) -> frozenset[int]:
    """The processes in these groups. 0 stands for any that our PID namespace doesn't show."""
    found: set[int] = set()
    for directory in directories:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"{directory}/cgroup.procs") as file:
            found.update(map(int, file.read().split()))
    return frozenset(found)


def wait_for(path: str, key: str, value: int, timeout: float = TIMEOUT) -> bool:
    """Until the line ``key`` of an events file of version 2 has ``value``; the kernel wakes us when it changes."""
    deadline = time.monotonic() + timeout
    with open(path) as file:
        poll = select.poll()
        poll.register(file, select.POLLPRI)
        while f"{key} {value}\n" not in file.read():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            poll.poll(left * 1000)
            file.seek(0)
    return True


@contextlib.contextmanager
def killed(directories: Iterable[str]) -> Iterator[Mapping[int, int]]:
    """SIGKILL to every process that is in these groups now; gives their pidfds by pid, closed afterwards."""
    directories = tuple(directories)
    fds: dict[int, int] = {}
    try:
        for pid in processes(directories):
            if pid == 0:
                raise CgroupError(f"{directories[-1]}: has a process that our PID namespace doesn't show")
            with contextlib.suppress(ProcessLookupError):
                fds[pid] = os.pidfd_open(pid)
        # A pid may have been given to another process before its pidfd was opened: only who is still in is meant.
        meant = processes(directories) & fds.keys()
        for pid in meant:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fds[pid], signal.SIGKILL)
        yield {pid: fds[pid] for pid in meant}
    finally:
        for fd in fds.values():
            os.close(fd)


def wait_ended(pidfds: Iterable[int], deadline: float) -> None:
    """Until all of these processes have ended, or the deadline by the monotonic clock."""
    for fd in pidfds:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)


def remove(directories: Iterable[str], timeout: float = TIMEOUT) -> None:
    """Remove groups, innermost first, tried again until ``timeout``; who is gone already is no error.

    A group without processes may still be busy for a moment: the last one is on its way out.
    """
    deadline = time.monotonic() + timeout
    for directory in directories:
        while True:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise CgroupError(f"{directory}: can't be removed: {error.strerror}") from error
                time.sleep(TICK)
