"""PID 1 of a sandbox: reaps children, forwards signals, and reports the program's exit status.

In a sandbox of its own it is the process that was cloned. It forks at once, leaves the plan to its child, and does only
those steps itself that confine it. In a sandbox that it has joined, it starts the program at the end of the plan.

It isn't dumpable, so no process inside can access it, and holds only a pipe, to which it writes the program's wait
status, four bytes, at the end. Its own exit status is the program's, or 128 + the signal that killed it: PID 1 can't
kill itself by a signal.
"""

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from agentos.sandbox import steps as s
from agentos.sandbox.encoded_steps import decode
from agentos.sandbox.inside import filters, identity, libc, messages

from . import program, script

NAME = "agentos-init"  # as shown by ps, for PID 1 and processes on the way to it
STOP_ALL, CONTINUE_ALL = signal.SIGRTMIN + 1, signal.SIGRTMIN + 2  # to PID 1: stop or continue all others
_SENT_BY_KILL = 0  # SI_USER: unlike with a queued signal, only Linux sets the sender's pid
_MAX_STEPS_BYTES = 1 << 17  # a filter has some kilobytes
STEPS: Mapping[type, Callable[[Any], None]] = {  # that PID 1 and the program each do
    s.TakeIdentity: identity.take,
    s.SetLimits: identity.set_limits,  # Linux counts signals, and allows priorities, by the limits of their receiver
    s.DropCapabilities: identity.drop_bounded_capabilities,  # see leave()
    s.NoNewPrivileges: filters.no_new_privileges,
    s.Seccomp: filters.seccomp,
}
_EVERY_SIGNAL = frozenset(map(int, signal.valid_signals()))  # ints are closer together in memory than Signals members


def leave(control: socket.socket) -> socket.socket:
    """Fork, and return in the child, with a socket to PID 1. The calling process stays as PID 1 and never returns.

    PID 1 waits for a packet: steps to do, see :func:`select_steps`, and descriptors: the pipe for the program's status,
    and cgroups, which it enters before. Then it answers. The bounding set of both has what root inside may have: no
    step needs more, and to empty it takes a call for each capability.
    """
    libc.set_signal_mask(blocked=True)
    libc.empty_bounding_set(s.INSIDE_ROOT)
    init, program_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        init.close()
        return program_end
    current: s.Step | None = None
    try:
        program_end.close()
        data, (status, *groups) = messages.receive_packet(init, _MAX_STEPS_BYTES)
        libc.set_title(NAME, NAME)
        identity.enter_cgroups(groups)
        for current in decode(data):
            STEPS[type(current)](current)
        _become_init()
        libc.keep_only(control.fileno(), init.fileno(), status)
        control.close()  # closed everywhere, it tells the kernel that the program runs
        init.send(b"confined")
        _stay(status, child)
    except messages.KernelGone:  # or the child has failed, and reported it
        pass
    except BaseException as error:
        messages.send_failure(control, s.describe(current) if current is not None else "Clone", error)
    os._exit(messages.EX_SETUP)


def select_steps(plan: Sequence[s.Step]) -> Sequence[s.Step]:
    """Return the steps of a plan that PID 1 does too. It opens no file: the others would forbid it nothing."""
    return [_for_init(step) for step in plan if type(step) in STEPS]


def _for_init(step: s.Step) -> s.Step:
    """The step as PID 1 does it: with root inside it is a user of its own."""
    if isinstance(step, s.TakeIdentity) and step.init is not None:
        return step._replace(uid=step.init, gid=step.init)
    if isinstance(step, s.DropCapabilities):
        return step._replace(keep=step.keep & s.KILL)
    return step


def execute(step: s.Execute | s.RunScript, control: socket.socket, status: int, stdout: int, stderr: int) -> NoReturn:
    """Fork the program and stay as PID 1. Errors before the fork are raised, later ones are sent to the kernel."""
    _become_init()
    child = os.fork()
    if child == 0:
        become_program(step, control, stdout, stderr)
    _stay(status, child)


def spawn(step: s.Execute, control: socket.socket, status: int, stdout: int, stderr: int) -> NoReturn:
    """As :func:`execute`, but PID 1 is inspected in the program's place, and then starts it without a fork.

    A program that enters a sandbox has no record of its own, and a fork would copy PID 1's memory. One that gets a
    terminal is forked all the same: between its setsid and its exec it must take the terminal, which no spawn can do.
    """
    _become_init()
    stdin = program.open_stdin(step)
    libc.keep_only(control.fileno(), status, stdin, stdout, stderr)
    os.chdir(step.directory)
    messages.send(control, messages.CONFINED)
    messages.wait_for_go(control)
    child = program.spawn(step, stdin, stdout, stderr)
    os.chdir("/")
    _stay(status, child)


def _become_init() -> None:
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # taking the identity cleared it
    libc.set_signal_mask(blocked=True)


def _stay(status: int, child: int) -> NoReturn:
    try:
        libc.close_range(0, status - 1)
        libc.close_range(status + 1)
        _serve(child, status)
    finally:
        os._exit(messages.EX_SETUP)


def become_program(
    step: s.Execute | s.RunScript, control: socket.socket, stdout: int, stderr: int, parent: int = 1
) -> NoReturn:
    """Become the program, in a session of its own, in a child of PID 1 or of a keeper, whose pid is ``parent``."""
    try:
        os.setsid()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise messages.KernelGone
        program.exec_program(step, control, stdout, stderr)
    except script.Ready:
        raise
    except messages.KernelGone:
        pass
    except BaseException as error:
        messages.send_failure(control, s.describe(step), error)
    os._exit(messages.EX_SETUP)


def _serve(child: int, status: int) -> NoReturn:
    while True:
        info = signal.sigwaitinfo(_EVERY_SIGNAL)
        if info.si_signo == signal.SIGCHLD:
            _reap(child, status)
        elif info.si_pid != 0 or info.si_code != _SENT_BY_KILL:
            pass  # from inside; only processes outside, with pid 0 here, may signal PID 1
        elif info.si_signo in (STOP_ALL, CONTINUE_ALL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP if info.si_signo == STOP_ALL else signal.SIGCONT)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, info.si_signo)


def _reap(child: int, status: int) -> None:
    """Reap all ended children. If the program has ended, write its status and exit; Linux then kills the rest."""
    while True:
        pid, wait_status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid == child:
            os.write(status, struct.pack("=i", wait_status))
            os._exit(os.WEXITSTATUS(wait_status) if os.WIFEXITED(wait_status) else 128 + os.WTERMSIG(wait_status))
