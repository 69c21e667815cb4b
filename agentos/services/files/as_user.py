"""File access under another uid/gid in a worker thread (fsuid, groups and capabilities are per thread on Linux).

A file made this way belongs to that user and counts towards its disk quota, and Linux checks access as for that user.
Acting as root would read files that the agent may not read and use the blocks reserved for emergencies. In a file
system of another user namespace root has no mapped uid (EOVERFLOW).
"""

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence

from msgspec import Struct

from agentos.sandbox.filters.syscall_numbers import NUMBERS

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_SET_DUMPABLE = 4
_THIS_THREAD = struct.pack("=Ii", 0x2008_0522, 0)  # struct __user_cap_header_struct: version 3, the calling thread
_INVALID_ID = ctypes.c_uint(0xFFFF_FFFF)  # an invalid id: the call changes nothing


class Identity(Struct, frozen=True):
    """A uid and a gid, as numbered on the host."""

    uid: int
    gid: int


@contextlib.contextmanager
def acting_as(identity: Identity | None) -> Iterator[None]:
    """Use this uid and gid, without other groups and capabilities, until the block ends. ``None``: change nothing.

    Do not await inside the block: the change applies to the thread.
    """
    if identity is None:
        yield
        return
    groups, found = os.getgroups(), ctypes.create_string_buffer(24)
    _raise_on_error(_LIBC.capget(_THIS_THREAD, found), "capget")
    # Effective, permitted, inheritable: the lower 32 bits of each, then the higher ones.
    capabilities = struct.unpack("=6I", found.raw)
    try:
        _set_groups(())
        _become(identity.uid, identity.gid)
        _set_capabilities((0, *capabilities[1:3], 0, *capabilities[4:]))
        yield
    finally:
        _become(os.geteuid(), os.getegid())  # always allowed: these are the ids of the process
        _set_capabilities(capabilities)
        _set_groups(groups)


def _become(uid: int, gid: int) -> None:
    """Set fsgid and fsuid; the syscalls report no error, so the result is read back. Raises ``OSError`` (EPERM)."""
    for call, number in ((_LIBC.setfsgid, gid), (_LIBC.setfsuid, uid)):
        call(ctypes.c_uint(number))
        if call(_INVALID_ID) != ctypes.c_int(number).value:
            raise OSError(errno.EPERM, f"this thread can't act as {number}")
    # With fs.suid_dumpable set, Linux has just made our memory readable for other processes of our uid.
    _LIBC.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _set_groups(groups: Sequence[int]) -> None:
    number = NUMBERS[os.uname().machine]["setgroups"]  # the C library's function would change all threads
    array = (ctypes.c_uint * len(groups))(*groups)
    _raise_on_error(_LIBC.syscall(ctypes.c_long(number), ctypes.c_size_t(len(groups)), array), "setgroups")


def _set_capabilities(sets: Sequence[int]) -> None:
    _raise_on_error(_LIBC.capset(_THIS_THREAD, struct.pack("=6I", *sets)), "capset")


def _raise_on_error(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)
