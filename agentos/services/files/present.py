"""The file that a path leads to now, for a person who must approve a READ or WRITE of it. Everything blocks."""

import os
from hashlib import sha256

from msgspec import Struct

from agentos.sandbox.files import openat2
from agentos_sdk.errors import CallError

from .as_user import acting_as
from .regular_file import check_regular_file, reopen
from .resolve import ResolvedPath

MAX_READ_BYTES = 16 << 20  # bytes of a file that are read; of a larger one the change time stands for its content


class Present(Struct, frozen=True):
    """``identity`` differs if it is another file, or has other content. ``content`` is None if there is no file.

    ``problem``: why its content isn't known.
    """

    identity: bytes
    content: bytes | None = None
    size: int = 0
    problem: str = ""


def identify(fd: int) -> bytes:
    """The device and inode of an open file; empty for none."""
    if fd < 0:
        return b""
    status = os.fstat(fd)
    return b"%d:%d" % (status.st_dev, status.st_ino)


def look_at(resolved: ResolvedPath) -> Present:
    """Look at the file that a path resolved for writing leads to, with the uid and gid that would write it."""
    directory = identify(resolved.fd)
    if resolved.error is not None:
        return Present(directory, problem=str(resolved.error))
    try:
        with (
            acting_as(resolved.request.identity),
            openat2.opened(resolved.fd, resolved.last, os.O_PATH | os.O_NOFOLLOW, openat2.NO_LINKS) as fd,
        ):
            check_regular_file(fd, resolved.request.given, resolved.request.single_link)
            return _read(directory, fd)
    except FileNotFoundError:
        return Present(directory + b", missing")
    except (OSError, CallError) as error:
        problem = str(error) if isinstance(error, CallError) else error.strerror or str(error)
        return Present(directory + b", " + problem.encode(errors="replace"), problem=problem)


def _read(directory: bytes, fd: int) -> Present:
    status, content, problem = os.fstat(fd), b"", ""
    state = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}".encode()
    try:
        readable = reopen(fd, os.O_RDONLY)
    except OSError as error:
        problem = error.strerror or str(error)
    else:
        with open(readable, "rb") as file:
            content = file.read(MAX_READ_BYTES + 1)
        if len(content) > MAX_READ_BYTES:
            problem = f"it has more than {MAX_READ_BYTES >> 20} MiB"
    state = state if problem else sha256(content).hexdigest().encode()
    found = b", ".join([directory, identify(fd), state])
    return Present(found, None if problem else content, status.st_size, problem)
