"""Where there is no PID namespace: the parent that a program's orphans come to, so that all of them can be found.

A daemon can leave its session, its process group and its environment behind, but not the line that it descends from:
whoever loses its parent gets the nearest subreaper above, and that is this process. So all that the program started, at
whatever remove, is below us until it has ended. The program's end, the kernel's word and the kernel's death end them
all; the last word is the program's wait status, four bytes, as a sandbox's PID 1 has it.

What is not promised: whoever became another user (set-uid programs such as sudo) can't be killed by us without root,
and a program that kills us with a signal has its orphans go to the kernel. A control group, where there is one, holds
those as well.
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

NAME = "agentos-keeper"  # what ps calls it
END = signal.SIGTERM  # from the kernel: end them all
PATIENCE = 5.0  # seconds until those are left that don't go
_TICK = 0.005  # seconds between two looks for whoever was born meanwhile
_SENT_BY_KILL = 0  # SI_USER: nobody but Linux says who sent it
_EVERY_SIGNAL = frozenset(map(int, signal.valid_signals()))


def execute(step: s.Execute, control: socket.socket, status: int, stdout: int, stderr: int) -> NoReturn:
    """Fork the program off and stay behind. Errors before the fork are raised, later ones told."""
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
            pass  # from those whom we keep
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
    """Wait for all that has ended; the program's wait status where it is among them."""
    how = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            how = found[1] if found[0] == child else how
    return how


def _end_all(child: int) -> int | None:
    """Kill until we have no child any more: then there is nobody below. The program's wait status, if that was left.

    Each look finds only those who were there when it came by: who forks all the time is found by one of the next.
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
    """To everybody, and to those that were born meanwhile."""
    reached: set[int] = set()
    while new := set(below(os.getpid())) - reached:
        for pid in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        reached |= new


def end_below(top: int) -> None:
    """The same from outside, where the keeper does nothing: they may stop it, but not us. Blocks."""
    deadline = time.monotonic() + PATIENCE
    while kill_below(top) and time.monotonic() < deadline:
        time.sleep(_TICK)


def kill_below(top: int) -> bool:
    """SIGKILL to all that descend from a process; whether somebody was there."""
    found = below(top)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def below(top: int) -> Sequence[int]:
    """The pids of all living processes that descend from this one, as far as one look at /proc tells."""
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
