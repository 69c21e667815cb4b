"""Cleanup after the kernel was killed: the zygote's last task is to kill and remove what the kernel left.

Only what the kernel has named: cgroups with all processes in them, processes with a mark in the environment that they
were started with, directories with the files in them. Symbolic links aren't followed. Anything that can't be removed
stays until the next kernel removes it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

CLEANUP_TIMEOUT = 10.0  # seconds; usually it takes some milliseconds
POLL_INTERVAL = 0.005  # seconds between two tries


class Cleanup(NamedTuple):
    """``groups`` and ``directories`` are absolute paths; ``mark`` is ``NAME=value``, or empty for no process."""

    groups: Sequence[str] = ()
    directories: Sequence[str] = ()
    mark: str = ""


def wait_for_parent_exit(kernel: int) -> bool:
    """Whether the kernel, our parent, has ended. Its files may be closed a moment earlier, or only its channel."""
    deadline = time.monotonic() + CLEANUP_TIMEOUT
    while os.getppid() == kernel:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL)
    return True


def kill_and_remove(cleanup: Cleanup) -> None:
    """Kill, then remove; continues after each failure."""
    deadline = time.monotonic() + CLEANUP_TIMEOUT
    while _kill_processes(cleanup) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)
    for group in cleanup.groups:
        for directory in _list_cgroups(group):
            _remove_group(directory, deadline)
    for directory in cleanup.directories:
        _remove_tree(directory)


def _kill_processes(cleanup: Cleanup) -> bool:
    """Send SIGKILL to all processes; returns whether there were any."""
    groups = [directory for group in cleanup.groups for directory in _list_cgroups(group)]
    for directory in groups:
        # They must not fork meanwhile, nor be frozen; each kernel has some of these files.
        for name, value in (
            ("pids.max", "0"),
            ("cgroup.freeze", "0"),
            ("freezer.state", "THAWED"),
            ("cgroup.kill", "1"),
        ):
            _write(f"{directory}/{name}", value)
    found = {pid for directory in groups for pid in _list_processes(directory)}
    if cleanup.mark:
        found.update(_find_marked_processes(os.fsencode(cleanup.mark)))
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _list_cgroups(group: str) -> Sequence[str]:
    """A cgroup and all cgroups in it, innermost first."""
    return [directory for directory, _, _ in os.walk(group, topdown=False)]


def _list_processes(group: str) -> Sequence[int]:
    with contextlib.suppress(OSError), open(f"{group}/cgroup.procs", "rb") as file:
        return [pid for pid in map(int, file.read().split()) if pid > 0]  # 0: not visible in our PID namespace
    return []


def _find_marked_processes(mark: bytes) -> Iterator[int]:
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) != os.getpid():
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        yield int(name)


def _write(path: str, value: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


def _remove_group(directory: str, deadline: float) -> None:
    """Remove a cgroup. Without processes it may still be busy for a moment, while its last process exits."""
    while True:
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_INTERVAL)
        else:
            return


def _remove_tree(top: str) -> None:
    if os.path.islink(top):
        return
    with contextlib.suppress(OSError):  # the next kernel may be removing it too
        for _, directories, files, fd in os.fwalk(top, topdown=False, follow_symlinks=False):
            for name in (*files, *directories):
                _remove(name, fd)
        os.rmdir(top)


def _remove(name: str, directory: int) -> None:
    with contextlib.suppress(OSError):
        try:
            os.unlink(name, dir_fd=directory)
        except IsADirectoryError:
            os.rmdir(name, dir_fd=directory)
