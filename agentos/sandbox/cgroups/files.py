"""Read, write and poll the files of a cgroup; kill processes and remove directories. Every function may block."""

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agentos.sandbox.files import proc_files

from .values import CgroupError

TIMEOUT = 5.0  # seconds for the kernel to freeze or kill a whole cgroup; it takes milliseconds
POLL_INTERVAL = 0.005  # seconds between two polls where the kernel sends no event
_REMOVED = (errno.ENOENT, errno.ENODEV, errno.ESRCH)  # ENODEV: between the opening of a file and its reading


def read_text(path: str) -> str:
    """The text of a file, stripped of white space."""
    try:
        return proc_files.read_file(path).strip()
    except OSError as error:
        raise CgroupError(f"{path}: {error.strerror}") from error


def read_optional(path: str) -> str | None:
    """The text of a file; ``None`` if this kernel doesn't have it."""
    try:
        return proc_files.read_file(path).strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CgroupError(f"{path}: {error.strerror}") from error


def write_value(path: str, value: object) -> None:
    """Write one value to an existing file; :class:`CgroupError` with the kernel's reason if the write fails."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise CgroupError(f"{path}: writing {value} failed: {error.strerror}") from error


def read_number(path: str) -> int | None:
    """The number in a file; ``None`` for ``max``, and if there is no such file."""
    text = read_optional(path)
    return None if text is None or text == "max" else int(text)


def read_counters(path: str) -> dict[str, int]:
    """Parse lines ``name value`` of a file; empty if there is no such file."""
    lines = (line.split() for line in (read_optional(path) or "").splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2}


def create_directory(directory: str) -> None:
    """Create a cgroup; it must not exist."""
    try:
        os.mkdir(directory, 0o755)
    except OSError as error:
        raise CgroupError(f"{directory}: can't be created: {error.strerror}") from error


def list_tree(directory: str) -> Sequence[str]:
    """A cgroup and all cgroups in it, innermost first; empty if it doesn't exist."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(directory).st_nlink == 2:  # one more for each directory in it
            return [directory]
    return [found for found, _, _ in os.walk(directory, topdown=False)]


def list_processes(directories: Iterable[str]) -> frozenset[int]:
    """The pids in these cgroups. 0 stands for a process that isn't visible in our PID namespace.

    A cgroup that doesn't exist has none, also when it is removed while it is read.
    """
    found: set[int] = set()
    for directory in directories:
        try:
            with open(f"{directory}/cgroup.procs") as file:
                found.update(map(int, file.read().split()))
        except OSError as error:
            if error.errno not in _REMOVED:
                raise
    return frozenset(found)


def wait_for_event(path: str, key: str, value: int) -> bool:
    """Wait until line ``key`` of a version 2 events file has ``value``; uses poll(2). False on timeout.

    :class:`CgroupError` if the file can't be read, also because its cgroup was removed meanwhile.
    """
    deadline = time.monotonic() + TIMEOUT
    try:
        with open(path) as file:
            poll = select.poll()
            poll.register(file, select.POLLPRI)
            while f"{key} {value}\n" not in file.read():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                poll.poll(left * 1000)
                file.seek(0)
    except OSError as error:
        raise CgroupError(f"{path}: {error.strerror}") from error
    return True


@contextlib.contextmanager
def kill_processes(directories: Iterable[str]) -> Iterator[Mapping[int, int]]:
    """Send SIGKILL to every process now in these cgroups; yields their pidfds by pid, and closes them afterwards.

    :class:`CgroupError` if we may not: a process of another user, or of a user namespace around ours.
    """
    directories = tuple(directories)
    fds: dict[int, int] = {}
    try:
        for pid in list_processes(directories):
            if pid == 0:
                raise CgroupError(f"{directories[-1]}: has a process that our PID namespace doesn't show")
            with contextlib.suppress(ProcessLookupError):
                fds[pid] = os.pidfd_open(pid)
        # A pid may have been reused before its pidfd was opened: signal only processes that are still in the cgroups.
        still_inside = list_processes(directories) & fds.keys()
        for pid in still_inside:
            try:
                signal.pidfd_send_signal(fds[pid], signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError as error:
                raise CgroupError(f"{directories[-1]}: process {pid} can't be killed: {error.strerror}") from error
        yield {pid: fds[pid] for pid in still_inside}
    finally:
        for fd in fds.values():
            os.close(fd)


def wait_for_exits(pidfds: Iterable[int], deadline: float) -> None:
    """Wait until all these processes have ended, or until the deadline on the monotonic clock."""
    for fd in pidfds:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)


def remove_empty_directories(directories: Iterable[str]) -> bool:
    """Remove cgroups that hold nothing, without waiting; False if one of them has processes or cgroups in it."""
    try:
        for directory in directories:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(directory)
    except OSError:
        return False
    return True


def remove_directories(directories: Iterable[str], timeout: float = TIMEOUT) -> None:
    """Remove cgroups, given innermost first; retries until ``timeout``. A missing cgroup is no error.

    A cgroup without processes may be busy (EBUSY) for a moment, while its last process exits.
    """
    deadline = time.monotonic() + TIMEOUT
    for directory in directories:
        while True:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise CgroupError(f"{directory}: can't be removed: {error.strerror}") from error
                time.sleep(POLL_INTERVAL)
