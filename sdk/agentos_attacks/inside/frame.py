"""Shared by all checks: the definition of a check, its outcomes, and system calls that Python doesn't wrap."""

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

MIB = 1 << 20
Targets = Mapping[str, Any]
"""What was set up outside: paths, pids, ports, names."""

# The attacker's own table of call numbers, so that a mistake in the sandbox's isn't repeated here. From 424 on numbers
# are the same on all architectures.
_SINCE_424 = """
    pidfd_send_signal=424 io_uring_setup=425 io_uring_enter=426 io_uring_register=427 open_tree=428
    move_mount=429 fsopen=430 fsconfig=431 fsmount=432 fspick=433 pidfd_open=434 clone3=435 openat2=437
    pidfd_getfd=438 process_madvise=440 mount_setattr=442 quotactl_fd=443 landlock_create_ruleset=444
    landlock_add_rule=445 landlock_restrict_self=446 memfd_secret=447 process_mrelease=448 fchmodat2=452
    statmount=457 listmount=458 lsm_set_self_attr=460 open_tree_attr=467
"""
_X86_64 = """
    ptrace=101 process_vm_readv=310 process_vm_writev=311 name_to_handle_at=303 open_by_handle_at=304
    pivot_root=155 setns=308 unshare=272 clone=56 ioctl=16 init_module=175 finit_module=313 delete_module=176
    kexec_load=246 kexec_file_load=320 swapon=167 swapoff=168 reboot=169 iopl=172 ioperm=173 syslog=103
    keyctl=250 add_key=248 request_key=249 bpf=321 perf_event_open=298 userfaultfd=323 seccomp=317
    personality=135 quotactl=179 acct=163 fanotify_init=300 kcmp=312 modify_ldt=154 move_pages=279
    migrate_pages=256 adjtimex=159 settimeofday=164 clock_settime=227 vhangup=153 uselib=134
    lookup_dcookie=212 sched_setattr=314 ioprio_set=251 rt_sigqueueinfo=129 execveat=322 inotify_init1=294
    mq_open=240 timer_create=222 mount=165 umount2=166 clock_adjtime=305 getpid=39 mknodat=259 capset=126
    vmsplice=278
"""
_AARCH64 = """
    ptrace=117 process_vm_readv=270 process_vm_writev=271 name_to_handle_at=264 open_by_handle_at=265
    pivot_root=41 setns=268 unshare=97 clone=220 ioctl=29 init_module=105 finit_module=273 delete_module=106
    kexec_load=104 kexec_file_load=294 swapon=224 swapoff=225 reboot=142 syslog=116 keyctl=219 add_key=217
    request_key=218 bpf=280 perf_event_open=241 userfaultfd=282 seccomp=277 personality=92 quotactl=60 acct=89
    fanotify_init=262 kcmp=272 move_pages=239 migrate_pages=238 adjtimex=171 settimeofday=170
    clock_settime=112 vhangup=58 lookup_dcookie=18 sched_setattr=274 ioprio_set=30 rt_sigqueueinfo=138
    execveat=281 inotify_init1=26 mq_open=180 timer_create=107 mount=40 umount2=39 clock_adjtime=266
    getpid=172 mknodat=33 capset=91 vmsplice=75
"""


def _table(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (word.split("=") for word in text.split())}


NUMBERS: Mapping[str, Mapping[str, int]] = {
    "x86_64": _table(_SINCE_424 + _X86_64),
    "aarch64": _table(_SINCE_424 + _AARCH64),
}
NAMESPACES = _table(
    "mnt=131072 cgroup=33554432 uts=67108864 ipc=134217728 user=268435456 pid=536870912 net=1073741824"
)  # CLONE_NEW*
REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
"""Errors that a protection returns before it looks at the arguments; any other error means that it was passed."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


class Result(NamedTuple):
    """The result of an attempt: ``blocked``, ``escaped``, ``n/a``, or ``tried`` if only the outside can tell."""

    outcome: str
    detail: str


class Check(NamedTuple):
    """One attack: what it tries, and the protections that must stop it. ``area`` is of the host: file, proc, dos."""

    area: str
    attempt: Callable[[Targets], Result]
    tries: str
    wall: str

    @property
    def name(self) -> str:
        """Such as ``file.setuid_file``, by the function that tries it."""
        return f"{self.area}.{self.attempt.__name__}"


class NoSuchCall(Exception):
    """This architecture doesn't have the system call."""


def blocked(detail: str) -> Result:
    return Result("blocked", detail)


def escaped(detail: str) -> Result:
    return Result("escaped", detail)


def tried(detail: str) -> Result:
    return Result("tried", detail)


def not_applicable(detail: str) -> Result:
    """This host has nothing to try the attack on."""
    return Result("n/a", detail)


def call(name: str, *arguments: Any) -> int:
    """A system call by name; raises ``OSError`` if it fails, :class:`NoSuchCall` if it doesn't exist."""
    number = NUMBERS.get(os.uname().machine, {}).get(name)
    if number is None:
        raise NoSuchCall(name)
    return by_number(number, *arguments)


def by_number(number: int, *arguments: Any) -> int:
    """A system call by number. Integers are passed as whole registers, with all 64 bits."""
    ctypes.set_errno(0)
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(int(_LIBC.syscall(ctypes.c_long(number), *words)))


def libc(name: str, *arguments: Any) -> int:
    """Call a C library function that returns -1 on failure."""
    ctypes.set_errno(0)
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(int(getattr(_LIBC, name)(*words)))


def _checked(result: int) -> int:
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


Attempt = tuple[str, Callable[[], object]]


def any_of(attempts: Iterable[Attempt]) -> Result:
    """Escaped if any attempt returns a value other than ``None``; an error counts as refused."""
    got, errors = _all(attempts)
    return escaped("; ".join(got)) if got else blocked(_summary(errors))


def none_reached(attempts: Iterable[Attempt]) -> Result:
    """Escaped if any attempt gets past the protections, even if the call then fails for its arguments."""
    got, errors = _all(attempts)
    reached = [f"{name}: {_name(number)}" for name, number in errors.items() if number not in REFUSED]
    return escaped("reached: " + "; ".join([*got, *reached])) if got or reached else blocked(_summary(errors))


def _all(attempts: Iterable[Attempt]) -> tuple[list[str], dict[str, int]]:
    got, errors = [], {}
    for name, attempt in attempts:
        try:
            found = attempt()
        except NoSuchCall:
            errors[name] = errno.ENOSYS
        except OSError as error:
            errors[name] = error.errno or errno.EIO  # a timeout has none
        else:
            if found is not None:
                got.append(f"{name}: {found}"[:200])
    return got, errors


def _name(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def _summary(errors: Mapping[str, int]) -> str:
    names = sorted({_name(number) for number in errors.values()})
    return ", ".join(names) or "nothing there"


def repeat(most: int, attempt: Callable[[int], object]) -> tuple[int, str]:
    """How many attempts succeeded, and the error that stopped them."""
    for number in range(most):
        try:
            attempt(number)
        except (OSError, RuntimeError, MemoryError) as error:
            return number, str(error)
    return most, "nothing"


def invoke(function: Callable[..., object], *arguments: Any) -> str:
    """Call a function that returns nothing and raises on failure."""
    function(*arguments)
    return "done"


def read_some(path: str, size: int = 4096) -> bytes:
    """The beginning of a file, without blocking."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def read_canary(path: str) -> str | None:
    """Return ``path`` if its content is one of the canaries."""
    return path if b"canary-" in read_some(path) else None


def open_path(path: str, flags: int) -> str:
    """Open and close ``path`` with these flags; returns it."""
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    return path


def list_pids() -> list[int]:
    """The pids in /proc."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_status(field: str, pid: int | str = "self") -> str | None:
    """A field of /proc/PID/status."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith(f"{field}:")), None)
