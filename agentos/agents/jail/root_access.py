"""Access to a running jail's files from outside: opens its root directory as a file descriptor."""

import contextlib
import os
from collections.abc import Iterator

from agentos.sandbox.files import openat2
from agentos.sandbox.sandbox import Sandbox


class Ended(Exception):
    """The program has ended, and its jail with it."""


@contextlib.contextmanager
def root_of(program: Sandbox) -> Iterator[int]:
    """The root directory of a program (O_PATH), to open files beneath it. Blocks. Raises :class:`Ended`."""
    if program.status is not None:
        raise Ended
    proc = f"/proc/{program.program}"
    try:
        root = os.open(f"{proc}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Ended from None
    try:
        # Checked after opening: the program may have ended and its pid may have been reused.
        if _mount_namespace(proc) != program.observed.namespaces["mnt"]:
            raise Ended
        yield root
    finally:
        os.close(root)


def _mount_namespace(proc: str) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(f"{proc}/ns/mnt").st_ino
    return None


@contextlib.contextmanager
def directory_of(program: Sandbox, path: str) -> Iterator[int]:
    """A directory beneath that root, such as ``workspace``, to open files beneath it."""
    with root_of(program) as root:
        fd = openat2.open_at(root, path, os.O_PATH | os.O_DIRECTORY, openat2.WITHIN | openat2.NO_LINKS)
    try:
        yield fd
    finally:
        os.close(fd)
