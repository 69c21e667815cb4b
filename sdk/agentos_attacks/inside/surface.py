"""Attacks on the kernel surface: parts of Linux that no agent needs and most exploits use."""

import ctypes
import mmap
import os
import platform
import signal
import struct
from functools import partial

from .frame import (
    Check,
    Result,
    Targets,
    any_of,
    by_number,
    call,
    escaped,
    invoke,
    libc,
    none_reached,
    not_applicable,
)


def bpf(_: Targets) -> Result:
    # union bpf_attr: BPF_MAP_TYPE_ARRAY, keys of 4 and values of 8 bytes, one entry
    return none_reached(
        [("BPF_MAP_CREATE", lambda: call("bpf", 0, struct.pack("=4I", 2, 4, 8, 1).ljust(128, b"\0"), 128))]
    )


def io_uring(_: Targets) -> Result:
    room = ctypes.create_string_buffer(120)
    return none_reached(
        [
            ("io_uring_setup", lambda: call("io_uring_setup", 1, room)),
            ("io_uring_enter", lambda: call("io_uring_enter", -1, 0, 0, 0, None, 0)),
            ("io_uring_register", lambda: call("io_uring_register", -1, 0, None, 0)),
        ]
    )


def perf_event_open(_: Targets) -> Result:
    # struct perf_event_attr: PERF_TYPE_SOFTWARE, 64 bytes; its own task clock, without kernel mode
    attributes = struct.pack("=IIQ", 1, 64, 1).ljust(40, b"\0") + struct.pack("=Q", 1 << 5 | 1 << 6)
    return none_reached(
        [("perf_event_open", lambda: call("perf_event_open", attributes.ljust(64, b"\0"), 0, -1, -1, 0))]
    )


def userfaultfd(_: Targets) -> Result:
    ways = [("user mode only", lambda: call("userfaultfd", os.O_CLOEXEC | 1)), ("all", lambda: call("userfaultfd", 0))]
    return none_reached(ways)


def keyctl(_: Targets) -> Result:
    return none_reached([("KEYCTL_GET_KEYRING_ID", lambda: call("keyctl", 0, -3, 0))])


def ptrace_own_child(_: Targets) -> Result:
    def attach() -> str:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        try:
            call("ptrace", 0x4206, pid, 0, 0)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return "attached"

    # TRACEME comes last: a traced process stops at its next signal.
    return any_of([("SEIZE", attach), ("TRACEME", lambda: call("ptrace", 0, 0, 0, 0))])


def new_mount_api(_: Targets) -> Result:
    return none_reached([("fsopen", lambda: call("fsopen", b"tmpfs", 0))])


def add_seccomp_listener(_: Targets) -> Result:
    allow = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000), 8)
    program = ctypes.create_string_buffer(struct.pack("@HP", 1, ctypes.addressof(allow)))
    return none_reached([("NEW_LISTENER", lambda: call("seccomp", 1, 8, program))])


def int80_32bit_calls(_: Targets) -> Result:
    """getpid by its 32-bit number, as machine code: mov eax, 20; int 0x80; ret."""
    if platform.machine() != "x86_64":
        return not_applicable("only x86_64 has them")
    flags, prot = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    code = mmap.mmap(-1, 4096, flags=flags, prot=prot)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    got = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    return escaped("getpid answered") if got == os.getpid() else Result("blocked", f"it answered {got}")


def personality(_: Targets) -> Result:
    values = {"ADDR_NO_RANDOMIZE": 0x40000, "READ_IMPLIES_EXEC": 0x400000, "MMAP_PAGE_ZERO": 0x100000, "PER_LINUX32": 8}
    ways = [(name, partial(call, "personality", value)) for name, value in values.items()]
    return any_of([*ways, ("with high bits", lambda: call("personality", 1 << 32 | 0x40000))])


def memfd_exec(_: Targets) -> Result:
    def run() -> str:
        fd = os.memfd_create("program", os.MFD_CLOEXEC)
        with open("/bin/true", "rb") as program:
            os.write(fd, program.read())
        pid = os.fork()
        if pid == 0:
            try:
                os.execve(fd, ["program"], {})
            finally:
                os._exit(126)
        _, how = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(how) == 126:
            raise PermissionError(1, "not executed")
        return "it ran"

    return any_of([("a program from memory", run)])


def x32_calls(_: Targets) -> Result:
    """The filter kills the process that makes one: the check ends by SIGSYS."""
    if platform.machine() != "x86_64":
        return not_applicable("only x86_64 has them")
    numbers = {"getpid": 0x40000000 + 39, "ptrace": 0x40000000 + 521, "execve": 0x40000000 + 520}
    return none_reached((name, partial(by_number, number, 0, 0, 0)) for name, number in numbers.items())


def calls_that_came_later(_: Targets) -> Result:
    """Numbers of calls newer than the filter, and numbers that were never assigned."""
    numbers = (*range(475, 512, 6), 1000, 0x3FFF_FFFF, -1)
    return none_reached((str(number), partial(by_number, number, 0, 0, 0)) for number in numbers)


def rare_calls(_: Targets) -> Result:
    """With invalid arguments: an error about them means that the call was reached."""
    attempts = {
        "quotactl": (0, None, 0, None),
        "acct": (b"/no/such/file",),
        "quotactl_fd": (-1, 0, 0, None),
        "fanotify_init": (1 << 30, 0),
        "lookup_dcookie": (0, None, 0),
        "modify_ldt": (9, None, 0),
        "uselib": (b"/no/such/file",),
        "vhangup": (),
        "memfd_secret": (0,),
        "lsm_set_self_attr": (0, None, 0, 0),
        "settimeofday": (None, None),
        "clock_settime": (99, None),
        "adjtimex": (None,),
        "clock_adjtime": (99, None),
        "name_to_handle_at": (-1, b"", None, None, 0),
        "ioperm": (0, 0, 1),
        "openat2": (-1, b"", None, 0),
    }
    return none_reached((name, partial(call, name, *given)) for name, given in attempts.items())


def memory_descriptors(_: Targets) -> Result:
    """PR_SET_MM rewrites what /proc shows of a process: its command line, its program."""
    code = 35  # PR_SET_MM
    options = {"START_CODE": 1, "ARG_START": 8, "EXE_FILE": 13}
    return any_of((name, partial(invoke, libc, "prctl", code, value, 0, 0, 0)) for name, value in options.items())


CHECKS = (
    Check("surface", bpf, "bpf(BPF_MAP_CREATE)", "seccomp"),
    Check("surface", io_uring, "io_uring: its operations bypass seccomp filters", "seccomp"),
    Check("surface", perf_event_open, "perf events of itself", "seccomp"),
    Check("surface", userfaultfd, "userfaultfd", "seccomp"),
    Check("surface", keyctl, "keyctl", "seccomp"),
    Check("surface", ptrace_own_child, "ptrace its own child", "seccomp"),
    Check("surface", new_mount_api, "fsopen", "seccomp"),
    Check("surface", add_seccomp_listener, "a seccomp listener", "seccomp"),
    Check("surface", int80_32bit_calls, "int 0x80: numbers of another table", "the filter kills"),
    Check("surface", personality, "personality(ADDR_NO_RANDOMIZE)", "seccomp"),
    Check("surface", memfd_exec, "run a program from memory", "nothing: it may run any Python anyway"),
)
FURTHER = (
    Check("surface", x32_calls, "x32 numbers", "the filter kills"),
    Check("surface", calls_that_came_later, "numbers beyond the table", "seccomp: unknown is ENOSYS"),
    Check("surface", rare_calls, "quotactl, acct, fanotify, modify_ldt, clocks", "seccomp"),
    Check("surface", memory_descriptors, "PR_SET_MM", "no capability"),
)
