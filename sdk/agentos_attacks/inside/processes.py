"""Attacks on processes: seeing, signalling and outliving others."""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import stat
import struct
import subprocess
import time
from functools import partial

from .frame import (
    Check,
    Result,
    Targets,
    any_of,
    blocked,
    call,
    escaped,
    invoke,
    list_pids,
    none_reached,
    not_applicable,
    open_path,
    read_some,
    tried,
)

SETUID_PROGRAMS = ("su", "passwd", "mount", "umount", "chsh", "newgrp", "gpasswd", "sudo", "fusermount3", "pkexec")
TYPING = (0x5412, 0x541C, 0x5423)  # TIOCSTI TIOCLINUX TIOCSETD


def see_other_processes(targets: Targets) -> Result:
    word = f"victim-{targets['token']}".encode()  # built here, or our own command line would match

    def look(pid: int) -> str | None:
        return f"pid {pid}" if word in read_some(f"/proc/{pid}/cmdline") else None

    return any_of((str(pid), partial(look, pid)) for pid in list_pids())


def steal_environment(_: Targets) -> Result:
    own = [name for name, value in os.environ.items() if "canary-" in value]
    if own:
        return escaped(f"in its own environment: {own}")

    def look(pid: str) -> str | None:
        text = read_some(f"/proc/{pid}/environ", 1 << 16)
        return next((word.partition(b"=")[0].decode() for word in text.split(b"\0") if b"canary-" in word), None)

    return any_of((f"/proc/{pid}/environ", partial(look, pid)) for pid in (*map(str, list_pids()), "self"))


def signal_host_pid(targets: Targets) -> Result:
    """The pid may belong to another process in here: only the outside sees which one got the signal."""
    pid = targets["victim"]

    def by_pidfd() -> str:
        fd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(fd, signal.SIGUSR1)
        finally:
            os.close(fd)
        return "sent"

    info = struct.pack("=iii4xii", signal.SIGUSR1, 0, -1, os.getpid(), os.getuid()).ljust(128, b"\0")
    found = any_of(
        [
            ("kill", lambda: invoke(os.kill, pid, signal.SIGUSR1)),
            ("killpg", lambda: invoke(os.killpg, pid, signal.SIGUSR1)),
            ("rt_sigqueueinfo", lambda: invoke(call, "rt_sigqueueinfo", pid, int(signal.SIGUSR1), info)),
            ("pidfd", by_pidfd),
        ]
    )
    return tried(found.detail) if found.outcome == "escaped" else found


def ptrace_victim(targets: Targets) -> Result:
    def seize(pid: int) -> str:
        call("ptrace", 0x4206, pid, 0, 0)
        with contextlib.suppress(OSError):
            call("ptrace", 17, pid, 0, 0)  # PTRACE_DETACH
        return "seized"

    return any_of([("SEIZE", lambda: seize(targets["victim"]))])


def setuid_binary(_: Targets) -> Result:
    """A program that runs set-uid ignores LD_SHOW_AUXV."""
    if os.geteuid() == 0:
        return not_applicable("it is root already")

    def start(path: str) -> str | None:
        ran = subprocess.run(
            [path, "--help"],
            env={"LD_SHOW_AUXV": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
        )
        return None if b"AT_EUID" in ran.stdout else "it became its owner"

    paths = [path for path in (f"/usr/bin/{name}" for name in SETUID_PROGRAMS) if _is_setuid(path)]
    if not paths:
        return not_applicable("no set-uid program is here")
    found = any_of((path, partial(start, path)) for path in paths[:3])
    return found if found.outcome == "escaped" else blocked(f"{', '.join(paths[:3])} don't change the uid")


def _is_setuid(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & stat.S_ISUID)
    except OSError:
        return False


def daemon_outlives_sandbox(_: Targets) -> Result:
    """Runs for five minutes unless it is killed."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(300)
        os._exit(0)
    os.wait()
    return tried("a daemon that ignores signals stays behind")


def zombies_reaped(_: Targets) -> Result:
    orphans = []
    for _round in range(2):
        read, write = os.pipe()
        if os.fork() == 0:
            for _child in range(24):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.write(write, struct.pack("=i", pid))
            os._exit(0)
        os.close(write)
        os.wait()
        with open(read, "rb") as pids:
            orphans += [pid for (pid,) in struct.iter_unpack("=i", pids.read())]
    for _look in range(100):
        left = [pid for pid in orphans if os.path.exists(f"/proc/{pid}")]
        if not left:
            return blocked(f"all {len(orphans)} orphans are gone")
        time.sleep(0.05)
    return escaped(f"{len(left)} of {len(orphans)} orphans stay as zombies")


def realtime_priority(_: Targets) -> Result:
    # struct sched_attr, 48 bytes: SCHED_DEADLINE, 10 ms of each 100 ms
    deadline = struct.pack("=IIQiIQQQ", 48, 6, 0, 0, 0, 10_000_000, 100_000_000, 100_000_000)

    def less_killable() -> str:
        with open("/proc/self/oom_score_adj", "r+") as file:
            now = int(file.read())
            file.seek(0)
            file.write(str(now - 1))
        return f"{now} - 1"

    return any_of(
        [
            ("nice", lambda: os.nice(-10)),
            ("SCHED_RR", lambda: invoke(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1))),
            ("SCHED_FIFO", lambda: invoke(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))),
            ("SCHED_DEADLINE", lambda: invoke(call, "sched_setattr", 0, deadline, 0)),
            ("real-time input and output", lambda: invoke(call, "ioprio_set", 1, 0, 1 << 13)),
            ("oom_score_adj", less_killable),
        ]
    )


def terminal_injection(_: Targets) -> Result:
    """Linux looks only at the lower 32 bits of a request; a filter that compares all 64 would let this pass."""

    def type_into(fd: int, request: int) -> str:
        call("ioctl", fd, request, ctypes.create_string_buffer(b"x"))
        return "typed"

    requests = [*TYPING, *(1 << 32 | request for request in TYPING)]
    found = any_of(
        (f"fd {fd}, {request:#x}", partial(type_into, fd, request)) for fd in (0, 1, 2) for request in requests
    )
    if found.outcome == "escaped":
        return found
    return any_of([("/dev/tty", lambda: open_path("/dev/tty", os.O_RDWR)), ("fd 0", lambda: os.isatty(0) or None)])


def requests_with_high_bits(_: Targets) -> Result:
    return none_reached(
        (f"{request:#x}", partial(call, "ioctl", 0, request, ctypes.create_string_buffer(b"x")))
        for request in (1 << 32 | 0x5412, -1 << 32 | 0x5412, 1 << 63 | 0x541C, 1 << 33 | 0x5423)
    )


def kill_everything(_: Targets) -> Result:
    """SIGKILL to all processes that it may signal, including itself."""
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)
    return tried("SIGKILL to all")


def core_dump(_: Targets) -> Result:
    before = set(os.listdir("."))
    pid = os.fork()
    if pid == 0:
        os.abort()
    how = os.waitpid(pid, 0)[1]
    new = {name for name in set(os.listdir(".")) - before if "core" in name}
    return escaped(f"left {new}") if os.WCOREDUMP(how) or new else blocked("no core was written")


def raise_own_limits(_: Targets) -> Result:
    def higher(number: int) -> str | None:
        _, hard = resource.getrlimit(number)
        if hard == resource.RLIM_INFINITY:
            return None
        try:
            resource.setrlimit(number, (hard + 1, hard + 1))
        except ValueError:  # Python reports EPERM as this
            raise PermissionError(errno.EPERM, "higher than the hard limit") from None
        return f"{hard} + 1"

    names = ("NOFILE", "FSIZE", "NPROC", "CORE", "AS", "DATA", "RTPRIO", "NICE", "MEMLOCK", "MSGQUEUE", "SIGPENDING")
    return any_of((name, partial(higher, getattr(resource, f"RLIMIT_{name}"))) for name in names)


def lock_memory(_: Targets) -> Result:
    """Locked memory can't be swapped out, at the expense of the whole host."""
    import mmap

    room = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    from .frame import libc

    return any_of(
        [
            ("mlock of 8 MiB", lambda: f"{libc('mlock', address, 8 << 20)}"),
            ("mlockall", lambda: f"{libc('mlockall', 3)}"),
        ]
    )


CHECKS = (
    Check("proc", see_other_processes, "find another program in /proc", "PID namespace and a /proc of its own"),
    Check(
        "proc",
        steal_environment,
        "secrets in its own, PID 1's, any environment",
        "explicit environment; shim not dumpable",
    ),
    Check("proc", signal_host_pid, "signal another program by the host's pid", "PID namespace; Landlock scope"),
    Check("proc", ptrace_victim, "PTRACE_SEIZE another program", "PID and user namespace; seccomp"),
    Check("proc", setuid_binary, "run su, passwd, mount: which uid do they get?", "no_new_privs; nosuid"),
    Check("proc", daemon_outlives_sandbox, "a daemon that survives", "the PID namespace dies with PID 1"),
    Check("proc", zombies_reaped, "orphans that pile up as zombies", "a PID 1 that reaps"),
    Check("proc", realtime_priority, "nice, SCHED_RR, DEADLINE, oom_score_adj", "no capability; RLIMIT_RTPRIO, NICE"),
    Check("proc", terminal_injection, "type into the kernel's terminal", "a session of its own; seccomp"),
)
FURTHER = (
    Check("proc", requests_with_high_bits, "TIOCSTI with bits above the lower 32", "seccomp"),
    Check("proc", core_dump, "a core file", "RLIMIT_CORE"),
    Check("proc", raise_own_limits, "raise its own hard limits", "no capability"),
    Check("proc", lock_memory, "lock 8 MiB of memory", "RLIMIT_MEMLOCK"),
    Check("proc", kill_everything, "SIGKILL to all processes", "PID namespace"),
)
