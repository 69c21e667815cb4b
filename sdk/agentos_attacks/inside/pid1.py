"""Attacks on PID 1 of the sandbox: reading it, stopping it, sending it commands."""

import contextlib
import ctypes
import fcntl
import os
import re
import resource
import signal
import socket
import struct
import time
from collections.abc import Iterator
from functools import partial

from .frame import (
    Attempt,
    Check,
    Result,
    Targets,
    any_of,
    blocked,
    call,
    escaped,
    none_reached,
    open_path,
    read_some,
    read_status,
)

STOP_ALL, GO_ON = signal.SIGRTMIN + 1, signal.SIGRTMIN + 2  # signals that our PID 1 obeys if they come from outside


def read_memory_of_pid1_or_parent(_: Targets) -> Result:
    def ways(pid: int) -> Iterator[Attempt]:
        for name in ("mem", "environ", "auxv", "maps"):
            yield f"{pid}/{name}", partial(open_path, f"/proc/{pid}/{name}", os.O_RDONLY)
        for name in ("exe", "cwd", "root"):
            yield f"{pid}/{name}", partial(os.readlink, f"/proc/{pid}/{name}")
        yield f"{pid}/fd", lambda: os.listdir(f"/proc/{pid}/fd")
        yield f"{pid}/exe for writing", lambda: open_path(f"/proc/{pid}/exe", os.O_WRONLY)
        yield f"{pid}/mem for writing", lambda: open_path(f"/proc/{pid}/mem", os.O_RDWR)

    pids = {1, os.getppid()} if os.getppid() != _attacker() else {1}
    return any_of(way for pid in pids if pid > 0 for way in ways(pid))


def _attacker() -> int:
    """The attacker's process: each check runs in its child, and that parent is no target."""
    return os.getsid(0) if os.getpgid(0) == os.getpid() else os.getppid()


def pidfd_getfd_parent(_: Targets) -> Result:
    def steal(number: int) -> str:
        fd = os.pidfd_open(1)
        try:
            os.close(call("pidfd_getfd", fd, number, 0))
        finally:
            os.close(fd)
        return "got it"

    return any_of((f"fd {number}", partial(steal, number)) for number in range(12))


def memory_of_pid1_by_call(_: Targets) -> Result:
    room = ctypes.create_string_buffer(8)
    vector = struct.pack("=QQ", ctypes.addressof(room), 8)

    def madvise() -> int:
        return call("process_madvise", os.pidfd_open(1), vector, 1, 21, 0)

    return none_reached(
        [
            ("process_vm_readv", lambda: call("process_vm_readv", 1, vector, 1, vector, 1, 0)),
            ("process_vm_writev", lambda: call("process_vm_writev", 1, vector, 1, vector, 1, 0)),
            ("process_madvise", madvise),
            ("process_mrelease", lambda: call("process_mrelease", os.pidfd_open(1), 0)),
            ("kcmp", lambda: call("kcmp", os.getpid(), 1, 0, 0, 0)),
            ("move_pages", lambda: call("move_pages", 1, 0, None, None, None, 0)),
            ("migrate_pages", lambda: call("migrate_pages", 1, 8, vector, vector)),
            ("PTRACE_SEIZE", lambda: call("ptrace", 0x4206, 1, 0, 0)),
        ]
    )


def stop_pid1(_: Targets) -> Result:
    """By signals, including forged ones that claim to come from outside, from a file or from a child."""

    def forge(code: int, number: int) -> None:
        info = struct.pack("=iii4xii", number, 0, code, 0, 0).ljust(128, b"\0")
        call("rt_sigqueueinfo", 1, number, info)
        call("pidfd_send_signal", os.pidfd_open(1), number, info, 0)

    def by_file(number: int) -> None:
        ours, other = socket.socketpair()
        fcntl.fcntl(ours, fcntl.F_SETOWN, 1)
        fcntl.fcntl(ours, 10, number)  # F_SETSIG
        fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        other.send(b"x")

    for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, STOP_ALL, STOP_ALL + 1, signal.SIGCHLD):
        with contextlib.suppress(OSError):
            os.kill(1, number)
        for code in (0, -1, -2, -6, 0x80, 1):
            with contextlib.suppress(OSError):
                forge(code, int(number))
        with contextlib.suppress(OSError):
            by_file(int(number))
    time.sleep(0.1)
    state = read_status("State", 1) or "?"
    return blocked(f"it goes on: {state}") if state[0] in "RS" else escaped(f"PID 1 is {state}")


def give_orders_to_pid1(_: Targets) -> Result:
    """If no signal can be queued any more, Linux delivers a real-time signal without its sender.

    Then it looks like one from outside. The command sent is the one to continue all processes.
    """
    stopped = os.fork()
    if stopped == 0:
        signal.pause()
    os.kill(stopped, signal.SIGSTOP)
    os.waitpid(stopped, os.WUNTRACED)
    try:
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(1, resource.RLIMIT_SIGPENDING, (0, 0))
        _fill_queue()
        with contextlib.suppress(OSError):
            os.kill(1, GO_ON)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(os.pidfd_open(1), GO_ON)
        time.sleep(0.2)
        state = read_status("State", stopped) or "?"
    finally:
        os.kill(stopped, signal.SIGKILL)
        os.waitpid(stopped, 0)
    return blocked("it stays stopped") if state[0] == "T" else escaped(f"PID 1 let a stopped process go on: {state}")


def _fill_queue() -> None:
    number = int(signal.SIGRTMIN) + 20
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    info = struct.pack("=iii4xii", number, 0, -1, os.getpid(), os.getuid()).ljust(128, b"\0")
    with contextlib.suppress(OSError):
        for _signal in range(20000):
            call("rt_sigqueueinfo", os.getpid(), number, info)


def command_line_of_pid1(_: Targets) -> Result:
    text = read_some("/proc/1/cmdline")
    told = re.findall(rb"/|\d+", text)
    return escaped(f"it tells {told}") if told else blocked("it names no path and no process of the host")


CHECKS = (
    Check("proc", read_memory_of_pid1_or_parent, "/proc/1/mem, fd, exe: take over the shim", "shim not dumpable"),
    Check("proc", pidfd_getfd_parent, "steal PID 1's descriptors", "shim not dumpable; seccomp"),
)
FURTHER = (
    Check("proc", memory_of_pid1_by_call, "process_vm_writev, kcmp, move_pages on PID 1", "seccomp; shim not dumpable"),
    Check("proc", stop_pid1, "stop or kill PID 1 by forged signals", "PID 1 takes orders from outside only"),
    Check("proc", give_orders_to_pid1, "orders to PID 1 from a sender that isn't named", "seccomp: no such signal"),
    Check("proc", command_line_of_pid1, "the host's paths in /proc/1/cmdline", "PID 1 takes another title"),
)
