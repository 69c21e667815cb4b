"""Open files with openat2(2): no path or symlink leaves its directory, even if changed while it is resolved.

Uses its own library handle, which releases the interpreter's lock: a file system may be slow.
"""

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator

from agentos.sandbox.inside.libc import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS

__all__ = ["IN_ROOT", "NO_CROSSING", "NO_LINKS", "NO_MAGIC", "WITHIN", "kind_of_file_system", "open_at", "opened"]

NO_CROSSING = 1  # RESOLVE_NO_XDEV: don't cross mounts
NO_MAGIC = RESOLVE_NO_MAGICLINKS  # /proc/PID/root and similar links lead anywhere
NO_LINKS = RESOLVE_NO_SYMLINKS | NO_MAGIC
WITHIN = RESOLVE_BENEATH | NO_MAGIC
IN_ROOT = 16 | NO_MAGIC  # RESOLVE_IN_ROOT: absolute symlinks and ".." stay below the directory, as after chroot(2)

_OPENAT2 = 437  # on every architecture
_ATTEMPTS = 32  # on EAGAIN or EINTR, such as when a directory is renamed during the lookup
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_STATFS = 256  # bytes; struct statfs has 120 and begins with the type


def open_at(directory: int, path: str, flags: int, resolve: int) -> int:
    """Open ``path`` relative to a directory; ``flags`` are O_*, ``resolve`` is a combination of the above.

    ``EXDEV``: it leads out of the directory. ``ELOOP``: it contains a symlink that must not be followed. ``EAGAIN``:
    directories on the path keep changing. ``ENOSYS``: before Linux 5.6, or denied by a seccomp filter.
    """
    how = struct.pack("=3Q", flags | os.O_CLOEXEC, 0, resolve)
    arguments = (ctypes.c_long(_OPENAT2), directory, os.fsencode(path), how, ctypes.c_size_t(len(how)))
    for _ in range(_ATTEMPTS):
        fd = int(_LIBC.syscall(*arguments))
        if fd >= 0:
            return fd
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(error, os.strerror(error), path)


@contextlib.contextmanager
def opened(directory: int, path: str, flags: int, resolve: int) -> Iterator[int]:
    """As :func:`open_at`, for the time of the block."""
    fd = open_at(directory, path, flags, resolve)
    try:
        yield fd
    finally:
        os.close(fd)


def kind_of_file_system(fd: int) -> int:
    """Return the magic number of the file system, as listed in statfs(2)."""
    found = ctypes.create_string_buffer(_STATFS)
    if _LIBC.fstatfs(fd, found) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(struct.unpack_from("=q", found.raw)[0])
