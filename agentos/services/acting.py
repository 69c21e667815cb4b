"""A thread that acts on files as somebody else: Linux keeps that for each thread by itself.

What it makes then belongs to that user and counts as his, and what he may not do it can't do either. Root, with all
that it may, would read what is not the agent's, use the blocks that are kept for emergencies, and have no user at all
(EOVERFLOW) in a file system of another user namespace.
"""

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence

from attrs import frozen

from agentos.sandbox.syscall_numbers import NUMBERS

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_SET_DUMPABLE = 4
_OURSELVES = struct.pack("=Ii", 0x2008_0522, 0)  # struct __user_cap_header_struct: version 3, the calling thread
_NOBODY = ctypes.c_uint(0xFFFF_FFFF)  # no id: changes nothing


@frozen
class Identity:
    """A user and a group, as the host numbers them."""

    uid: int
    gid: int


@contextlib.contextmanager
def acting_as(who: Identity | None) -> Iterator[None]:
    """Have this user, this group and no other, and no capability, until the end. ``None``: stay who we are.

    Nothing may be awaited meanwhile: it is the thread that changes.
    """
    if who is None:
        yield
        return
    groups, capabilities = os.getgroups(), _capabilities()
    try:
        _set_groups(())
        _become(who.uid, who.gid)
        _set_capabilities((0, *capabilities[1:3], 0, *capabilities[4:]))
        yield
    finally:
        _become(os.geteuid(), os.getegid())  # a thread may always be again who its process is
        _set_capabilities(capabilities)
        _set_groups(groups)


def _become(uid: int, gid: int) -> None:
    """These two give the former id and no error, so what came of it is looked at."""
    for call, number in ((_LIBC.setfsgid, gid), (_LIBC.setfsuid, uid)):
        call(ctypes.c_uint(number))
        if call(_NOBODY) != ctypes.c_int(number).value:
            raise OSError(errno.EPERM, f"this thread can't act as {number}")
    # Where fs.suid_dumpable is set, Linux has just made our memory readable for others of our user.
    _LIBC.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _set_groups(groups: Sequence[int]) -> None:
    number = NUMBERS[os.uname().machine]["setgroups"]  # the C library's function would change all threads
    array = (ctypes.c_uint * len(groups))(*groups)
    _checked(_LIBC.syscall(ctypes.c_long(number), ctypes.c_size_t(len(groups)), array), "setgroups")


def _capabilities() -> tuple[int, ...]:
    """Effective, permitted, inheritable: the lower 32 bits of each, then the higher ones."""
    found = ctypes.create_string_buffer(24)
    _checked(_LIBC.capget(_OURSELVES, found), "capget")
    return struct.unpack("=6I", found.raw)


def _set_capabilities(sets: Sequence[int]) -> None:
    _checked(_LIBC.capset(_OURSELVES, struct.pack("=6I", *sets)), "capset")


def _checked(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)
