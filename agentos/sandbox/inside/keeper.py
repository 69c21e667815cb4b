"""Keeper: parent and subreaper of a program without a PID namespace, so that all its descendants can be killed.

A daemon can leave its session, its process group and its environment, but not its ancestry: an orphan becomes a child
of the nearest subreaper above, which is this process. So all descendants of the program are below the keeper until they
have ended. They are killed when the program ends, when the kernel says so, and when the kernel dies. At the end the
keeper writes the program's wait status, four bytes, as a sandbox's PID 1 does.

Limits: without root the keeper can't kill a process that changed its uid (set-uid programs such as sudo), and if a
program kills the keeper with a signal, its orphans go to the kernel. A cgroup, if there is one, also holds those.
"""

import contextlib
import os
import signal
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NoReturn

from agentos.sandbox import steps as s

from . import libc, messages
from .programs.shim import CONTINUE_ALL, STOP_ALL, become_program

NAME = "agentos-keeper"  # as shown by ps
KILL_DESCENDANTS = signal.SIGTERM  # from the kernel: kill all descendants
KILL_TIMEOUT = 5.0  # seconds before it gives up on processes that don't end
_POLL_INTERVAL = 0.005  # seconds between two looks for processes that were forked meanwhile
_SENT_BY_KILL = 0  # SI_USER: only Linux sets the sender's pid
_EVERY_SIGNAL = frozenset(map(int, signal.valid_signals()))


def execute(step: s.Execute, control: socket.socket, status: int, stdout: int, stderr: int) -> NoReturn:
    """Fork the program and stay as its keeper. Errors before the fork are raised, later ones are sent to the kernel."""
    kernel = os.getppid()
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(libc.PR_SET_PDEATHSIG, KILL_DESCENDANTS)
    libc.set_name(NAME)
    libc.set_signal_mask(blocked=True)
    own, child = os.getpid(), os.fork()
    if child == 0:
        become_program(step, control, stdout, stderr, own)
    try:
        libc.close_range(0, status - 1)
        libc.close_range(status + 1)
        _serve(child, kernel, status)
    except BaseException as error:
        messages.send_failure(control, s.describe(step), error)
    finally:
        os._exit(messages.EX_SETUP)


def _serve(child: int, kernel: int, status: int) -> NoReturn:
    wait_status: int | None = None
    while wait_status is None:
        info = signal.sigwaitinfo(_EVERY_SIGNAL)
        if os.getppid() != kernel:
            break
        if info.si_signo == signal.SIGCHLD:
            wait_status = _reap(child)
        elif info.si_pid != kernel or info.si_code != _SENT_BY_KILL:
            pass  # from a process below the keeper
        elif info.si_signo == KILL_DESCENDANTS:
            break
        elif info.si_signo in (STOP_ALL, CONTINUE_ALL):
            _signal_all(signal.SIGSTOP if info.si_signo == STOP_ALL else signal.SIGCONT)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, info.si_signo)
    found = _kill_all(child)
    wait_status = found if wait_status is None else wait_status
    if wait_status is not None:
        os.write(status, struct.pack("=i", wait_status))
    os._exit(0)


def _reap(child: int) -> int | None:
    """Reap all ended children; returns the program's wait status if it is among them."""
    wait_status = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            wait_status = found[1] if found[0] == child else wait_status
    return wait_status


def _kill_all(child: int) -> int | None:
    """Kill until there are no children, and so no descendants. Returns the program's wait status if reaped here.

    Each look finds only processes that exist at that moment: new forks are found by the next look.
    """
    deadline, wait_status = time.monotonic() + KILL_TIMEOUT, None
    while time.monotonic() < deadline:
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
                wait_status = found[1] if found[0] == child else wait_status
        except ChildProcessError:
            break
        kill_descendants(os.getpid())
        signal.sigtimedwait({signal.SIGCHLD}, _POLL_INTERVAL)
    return wait_status


def _signal_all(number: int) -> None:
    """Send a signal to all descendants, also to those that are forked meanwhile."""
    reached: set[int] = set()
    while new := set(list_descendants(os.getpid())) - reached:
        for pid in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        reached |= new


def kill_descendants_until_gone(top: int) -> None:
    """Kill all descendants from outside, if the keeper doesn't: they may stop it, but not the kernel. Blocks."""
    deadline = time.monotonic() + KILL_TIMEOUT
    while kill_descendants(top) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL)


def kill_descendants(top: int) -> bool:
    """Send SIGKILL to all descendants of a process; returns whether there were any."""
    found = list_descendants(top)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def list_descendants(top: int) -> Sequence[int]:
    """The pids of all living descendants of this process, parents first.

    Taken from Linux's lists of children, without which (CONFIG_PROC_CHILDREN) one pass over /proc finds them. A pass
    takes longer the more processes the host has, and a chain of processes that each fork one and go is ahead of it.
    """
    find = _list_children if os.path.exists(f"/proc/{top}/task/{top}/children") else _read_parents().__getitem__
    pids = [top]
    for pid in pids:
        pids += find(pid)
    return pids[1:]


def _list_children(parent: int) -> Sequence[int]:
    """The pids of the living children of a process; none if it has ended."""
    found = list[int]()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    return [pid for pid in found if _read_parent(pid) is not None]


def _read_parents() -> Mapping[int, Sequence[int]]:
    """The living children of each process."""
    children = defaultdict[int, list[int]](list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _read_parent(int(name))) is not None:
            children[parent].append(int(name))
    return children


def _read_parent(pid: int) -> int | None:
    """The parent of a process; None if it has ended, reaped or not."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        state, parent = file.read().rpartition(b")")[2].split()[:2]
        return None if state in (b"Z", b"X") else int(parent)
    return None
