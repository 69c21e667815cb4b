"""Opening by openat2(2): what is swapped on the way, at whatever moment, leads nobody out.

Through a library handle of its own, which gives up the interpreter's lock: a file system may take its time.
"""

import ctypes
import errno
import os
import struct

from .inside.libc import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS

__all__ = ["NO_CROSSING", "NO_LINKS", "NO_MAGIC", "WITHIN", "kind_of_file_system", "open_at"]

NO_CROSSING = 1  # RESOLVE_NO_XDEV: no way leads onto another mount
NO_MAGIC = RESOLVE_NO_MAGICLINKS  # /proc/PID/root and the like lead anywhere
NO_LINKS = RESOLVE_NO_SYMLINKS | NO_MAGIC
WITHIN = RESOLVE_BENEATH | NO_MAGIC

_OPENAT2 = 437  # the same everywhere
_ATTEMPTS = 32  # when what is on the way is renamed in that very moment
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_STATFS = 256  # bytes; struct statfs has 120, its type first


def open_at(directory: int, path: str, flags: int, resolve: int) -> int:
    """Open ``path`` from a directory; ``flags`` are O_*, ``resolve`` is one of the above or several.

    ``EXDEV``: it leads out of the directory; ``ELOOP``: over a link that it must not follow; ``EAGAIN``: the
    directories on the way don't stand still. ``ENOSYS`` before Linux 5.6 and where a filter forbids it.
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


def kind_of_file_system(fd: int) -> int:
    """Its magic number, as statfs(2) lists them."""
    found = ctypes.create_string_buffer(_STATFS)
    if _LIBC.fstatfs(fd, found) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(struct.unpack_from("=q", found.raw)[0])
