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
from collections.abc import Sequence
from typing import NoReturn

from agentos.sandbox import steps as s

from . import libc, messages, program
from .shim import CONTINUE_ALL, STOP_ALL

NAME = "agentos-keeper"  # as shown by ps
END = signal.SIGTERM  # from the kernel: kill all descendants
PATIENCE = 5.0  # seconds before it gives up on processes that don't end
_TICK = 0.005  # seconds between two looks for processes that were forked meanwhile
_SENT_BY_KILL = 0  # SI_USER: only Linux sets the sender's pid
_EVERY_SIGNAL = frozenset(map(int, signal.valid_signals()))


def execute(step: s.Execute, control: socket.socket, status: int, stdout: int, stderr: int) -> NoReturn:
    """Fork the program and stay as its keeper. Errors before the fork are raised, later ones are sent to the kernel."""
    kernel = os.getppid()
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(libc.PR_SET_PDEATHSIG, END)
    libc.set_name(NAME)
    libc.set_signal_mask(blocked=True)
    own, child = os.getpid(), os.fork()
    if child == 0:
        _become_program(step, control, stdout, stderr, own)
    try:
        libc.close_range(0, status - 1)
        libc.close_range(status + 1)
        _serve(child, kernel, status)
    except BaseException as error:
        messages.say_failed(control, s.describe(step), error)
    finally:
        os._exit(messages.EX_SETUP)


def _become_program(step: s.Execute, control: socket.socket, stdout: int, stderr: int, keeper: int) -> NoReturn:
    try:
        os.setsid()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            raise messages.KernelGone
        program.become(step, control, stdout, stderr)
    except messages.KernelGone:
        pass
    except BaseException as error:
        messages.say_failed(control, s.describe(step), error)
    os._exit(messages.EX_SETUP)


def _serve(child: int, kernel: int, status: int) -> NoReturn:
    how: int | None = None
    while how is None:
        info = signal.sigwaitinfo(_EVERY_SIGNAL)
        if os.getppid() != kernel:
            break
        if info.si_signo == signal.SIGCHLD:
            how = _reap(child)
        elif info.si_pid != kernel or info.si_code != _SENT_BY_KILL:
            pass  # from a process below the keeper
        elif info.si_signo == END:
            break
        elif info.si_signo in (STOP_ALL, CONTINUE_ALL):
            _signal_all(signal.SIGSTOP if info.si_signo == STOP_ALL else signal.SIGCONT)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, info.si_signo)
    found = _end_all(child)
    how = found if how is None else how
    if how is not None:
        os.write(status, struct.pack("=i", how))
    os._exit(0)


def _reap(child: int) -> int | None:
    """Reap all ended children; returns the program's wait status if it is among them."""
    how = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            how = found[1] if found[0] == child else how
    return how


def _end_all(child: int) -> int | None:
    """Kill until there are no children, and so no descendants. Returns the program's wait status if reaped here.

    Each look finds only processes that exist at that moment: new forks are found by the next look.
    """
    deadline, how = time.monotonic() + PATIENCE, None
    while time.monotonic() < deadline:
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
                how = found[1] if found[0] == child else how
        except ChildProcessError:
            break
        kill_below(os.getpid())
        signal.sigtimedwait({signal.SIGCHLD}, _TICK)
    return how


def _signal_all(number: int) -> None:
    """Send a signal to all descendants, also to those that are forked meanwhile."""
    reached: set[int] = set()
    while new := set(below(os.getpid())) - reached:
        for pid in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        reached |= new


def end_below(top: int) -> None:
    """Kill all descendants from outside, if the keeper doesn't: they may stop it, but not the kernel. Blocks."""
    deadline = time.monotonic() + PATIENCE
    while kill_below(top) and time.monotonic() < deadline:
        time.sleep(_TICK)


def kill_below(top: int) -> bool:
    """Send SIGKILL to all descendants of a process; returns whether there were any."""
    found = below(top)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def below(top: int) -> Sequence[int]:
    """The pids of all living descendants of this process, as found by one pass over /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    children.setdefault(int(parent), []).append(int(name))
    line = [top]
    for pid in line:
        line += children.get(pid, ())
    return line[1:]
