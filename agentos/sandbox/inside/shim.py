"""PID 1 of a sandbox: starts the program, reaps whatever ends, forwards signals, and says at the end how it went.

It stands behind the same walls as the program, is not dumpable, so that nobody inside can look into it, and holds
nothing but a pipe for its last word: the program's wait status, four bytes. Its own exit status is the program's, or
128 + the signal that ended it: PID 1 can't die by a signal of its own making.
"""

import contextlib
import os
import signal
import socket
import struct
from typing import NoReturn

from agentos.sandbox import steps as s

from . import libc, messages, program, script

STOP_ALL, CONTINUE_ALL = signal.SIGRTMIN + 1, signal.SIGRTMIN + 2  # to PID 1: what to do with all others
_SENT_BY_KILL = 0  # SI_USER: unlike with a queued signal, nobody but the kernel says who sent it
_EVERY_SIGNAL = frozenset(map(int, signal.valid_signals()))  # numbers lie closer together in memory than names


def execute(step: s.Execute | s.RunScript, control: socket.socket, status: int, stdout: int, stderr: int) -> NoReturn:
    """Fork the program off and stay behind as PID 1. Errors before the fork are raised, later ones told."""
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # taking the identity would have cleared it
    libc.set_signal_mask(blocked=True)
    child = os.fork()
    if child == 0:
        _become_program(step, control, stdout, stderr)
    try:
        libc.close_range(0, status - 1)
        libc.close_range(status + 1)
        _serve(child, status)
    except BaseException as error:
        messages.say_failed(control, s.describe(step), error)
    finally:
        os._exit(messages.EX_SETUP)


def _become_program(step: s.Execute | s.RunScript, control: socket.socket, stdout: int, stderr: int) -> NoReturn:
    try:
        os.setsid()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != 1:
            raise messages.KernelGone
        program.become(step, control, stdout, stderr)
    except script.Ready:
        raise
    except messages.KernelGone:
        pass
    except BaseException as error:
        messages.say_failed(control, s.describe(step), error)
    os._exit(messages.EX_SETUP)


def _serve(child: int, status: int) -> NoReturn:
    while True:
        info = signal.sigwaitinfo(_EVERY_SIGNAL)
        if info.si_signo == signal.SIGCHLD:
            _reap(child, status)
        elif info.si_pid != 0 or info.si_code != _SENT_BY_KILL:
            pass  # from inside; only those outside, who have no number here, may ask for anything
        elif info.si_signo in (STOP_ALL, CONTINUE_ALL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP if info.si_signo == STOP_ALL else signal.SIGCONT)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, info.si_signo)


def _reap(child: int, status: int) -> None:
    """Wait for all that has ended; where it's the program, it is over, and the kernel ends whatever it left."""
    while True:
        pid, how = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid == child:
            os.write(status, struct.pack("=i", how))
            os._exit(os.WEXITSTATUS(how) if os.WIFEXITED(how) else 128 + os.WTERMSIG(how))
