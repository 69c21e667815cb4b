"""Who a process is and what it may: id maps, user and group, capabilities, resource limits."""

import errno
import fcntl
import os
import resource
import socket
import struct

from agentos.sandbox import steps as s

from . import libc

# SECBIT_* NOROOT NO_SETUID_FIXUP NO_CAP_AMBIENT_RAISE with their locks, KEEP_CAPS locked while it is off.
_SECUREBITS = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def write_maps(pid: int, step: s.Clone) -> None:
    """Give another process's new user namespace its user and group; done from outside of it."""
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


def take(step: s.TakeIdentity) -> None:
    libc.prctl(libc.PR_SET_KEEPCAPS, 1)
    if step.drop_groups:
        os.setgroups([])
    os.setresgid(step.gid, step.gid, step.gid)
    os.setresuid(step.uid, step.uid, step.uid)
    _, permitted, _ = libc.capget()
    libc.capset(permitted, permitted, 0)


def forbid_namespaces() -> None:
    _write("/proc/sys/user/max_user_namespaces", "0")


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        found = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sh22x", b"lo", 0))
        flags = struct.unpack("16sh22x", found)[1] | _IFF_UP
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags))


def set_limits(step: s.SetLimits) -> None:
    for name, value in step.limits:
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        except ValueError:  # Python's name for EPERM here
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), f"RLIMIT_{name}") from None


def drop_capabilities() -> None:
    """Out of all sets; the bounding set first, while we still have the one that it takes."""
    libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        try:
            libc.prctl(libc.PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            break  # this kernel has no more of them
    libc.prctl(libc.PR_SET_SECUREBITS, _SECUREBITS)
    libc.capset(0, 0, 0)
