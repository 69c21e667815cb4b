"""Set a process's identity and limits: uid and gid maps, uid and gid, capabilities, hostname, cgroups, rlimits."""

import contextlib
import errno
import os
import resource
from collections.abc import Iterable

from agentos.sandbox import steps as s

from . import libc

# SECBIT_* NOROOT NO_SETUID_FIXUP NO_CAP_AMBIENT_RAISE with their locks, KEEP_CAPS locked while it is off.
_SECUREBITS = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80
_ROOT_SECUREBITS = 0x20 | 0x40 | 0x80  # uid 0 has capabilities, and another that it becomes has none
_MEMFD_NOEXEC = "/proc/sys/vm/memfd_noexec"


def write_maps(pid: int, step: s.Clone) -> None:
    """Write the uid and gid maps of another process's new user namespace; done from outside of it."""
    if step.deny_setgroups:
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/gid_map", step.gid_map)
    _write(f"/proc/{pid}/uid_map", step.uid_map)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)


def enter_cgroups(groups: Iterable[int]) -> None:
    """Move into these cgroups of version 1, given by their open files ``tasks``.

    A single-threaded process that moves itself doesn't have to wait until no process in the whole system is about to
    fork, which takes milliseconds.
    """
    for group in groups:
        try:
            os.write(group, b"0")
        except OSError as error:
            raise OSError(error.errno, error.strerror, "a control group") from None


def take(step: s.TakeIdentity) -> None:
    libc.prctl(libc.PR_SET_KEEPCAPS, 1)
    if step.drop_groups:
        os.setgroups([])
    os.setresgid(step.gid, step.gid, step.gid)
    os.setresuid(step.uid, step.uid, step.uid)
    libc.raise_capabilities()


def forbid_namespaces(_: s.ForbidNamespaces) -> None:
    """Forbid user namespaces, and limit inotify instances: they also count for the host uid, which has 128 in all."""
    _write("/proc/sys/user/max_user_namespaces", "0")
    with contextlib.suppress(FileNotFoundError):  # a Linux without inotify
        _write("/proc/sys/user/max_inotify_instances", "16")


def forbid_executable_memfds(_: s.ForbidExecutableMemfds) -> None:
    """Set vm.memfd_noexec to 2 and read it back: if Linux ignored the write, memfds would stay executable."""
    _write(_MEMFD_NOEXEC, "2")
    with open(_MEMFD_NOEXEC, encoding="ascii") as file:
        value = file.read().strip()
    if value != "2":
        raise OSError(errno.EPERM, f"it is {value} after 2 was written", _MEMFD_NOEXEC)


def set_hostname(step: s.Hostname) -> None:
    libc.set_hostname(step.name)


def set_limits(step: s.SetLimits) -> None:
    for name, value in step.limits:
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        except ValueError:  # raised by Python for EPERM
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), f"RLIMIT_{name}") from None


def drop_capabilities(step: s.DropCapabilities) -> None:
    """Clear all capability sets; the bounding set first, as that needs CAP_SETPCAP."""
    libc.empty_bounding_set(s.INSIDE_ROOT)
    drop_bounded_capabilities(step)


def drop_bounded_capabilities(step: s.DropCapabilities) -> None:
    """Clear the capability sets of a process whose bounding set has those of root inside at most."""
    for capability in range(32):
        if s.INSIDE_ROOT & ~step.keep & 1 << capability:
            libc.prctl(libc.PR_CAPBSET_DROP, capability)
    libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL)
    libc.prctl(libc.PR_SET_SECUREBITS, _ROOT_SECUREBITS if step.keep else _SECUREBITS)
    libc.drop_capabilities(step.keep)
