"""What the zygote does last: it ends and removes what a kernel that was killed has left behind.

Nothing but what it was told of: control groups with all that is in them, processes that carry a mark in the environment
they were started with, directories with the files in them. No symbolic link is followed. What can't be had stays for
the sweep of the next kernel.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

PATIENCE = 10.0  # seconds, for what takes some milliseconds
TICK = 0.005  # seconds between two tries


class Remains(NamedTuple):
    """``groups`` and ``directories`` are absolute paths; ``mark`` is ``NAME=value``, or empty for nobody's."""

    groups: Sequence[str] = ()
    directories: Sequence[str] = ()
    mark: str = ""


def has_gone(kernel: int) -> bool:
    """Whether our parent has ended: that its files are closed may be a moment earlier, or the end of a channel only."""
    deadline = time.monotonic() + PATIENCE
    while os.getppid() == kernel:
        if time.monotonic() > deadline:
            return False
        time.sleep(TICK)
    return True


def clean(remains: Remains) -> None:
    """Kill, then remove; whatever fails, the rest is done."""
    deadline = time.monotonic() + PATIENCE
    while _kill(remains) and time.monotonic() < deadline:
        time.sleep(TICK)
    for group in remains.groups:
        for directory in _groups_in(group):
            _remove_group(directory, deadline)
    for directory in remains.directories:
        _remove_tree(directory)


def _kill(remains: Remains) -> bool:
    """SIGKILL to everybody; whether somebody was there."""
    groups = [directory for group in remains.groups for directory in _groups_in(group)]
    for directory in groups:
        # Nobody is to be quicker than us, or to sleep through it; each kernel has some of these files.
        for name, value in (
            ("pids.max", "0"),
            ("cgroup.freeze", "0"),
            ("freezer.state", "THAWED"),
            ("cgroup.kill", "1"),
        ):
            _write(f"{directory}/{name}", value)
    found = {pid for directory in groups for pid in _processes_in(directory)}
    if remains.mark:
        found.update(_marked(os.fsencode(remains.mark)))
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _groups_in(group: str) -> Sequence[str]:
    """A control group and those in it, the innermost first."""
    return [directory for directory, _, _ in os.walk(group, topdown=False)]


def _processes_in(group: str) -> Sequence[int]:
    with contextlib.suppress(OSError), open(f"{group}/cgroup.procs", "rb") as file:
        return [pid for pid in map(int, file.read().split()) if pid > 0]  # 0: our PID namespace doesn't show it
    return []


def _marked(mark: bytes) -> Iterator[int]:
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
    """A group without processes may still be busy for a moment: the last one is on its way out."""
    while True:
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(TICK)
        else:
            return


def _remove_tree(top: str) -> None:
    if os.path.islink(top):
        return
    with contextlib.suppress(OSError):  # the next kernel may be at it, too
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
