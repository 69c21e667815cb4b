"""Access to a running jail's files from outside: opens its root directory as a file descriptor."""

import contextlib
import os
from collections.abc import Iterator

from agentos.sandbox.files import openat2
from agentos.sandbox.sandbox import Sandbox
from agentos_sdk.errors import Unavailable


class Ended(Unavailable):
    """The program of ``owner`` has ended, and its jail with it."""

    def __init__(self, owner: str = "the program") -> None:
        super().__init__(f"{owner} has ended, and its files with it")


@contextlib.contextmanager
def root_of(program: Sandbox, owner: str = "the program") -> Iterator[int]:
    """The root directory of a program (O_PATH), to open files beneath it. Blocks. Raises :class:`Ended`."""
    if program.status is not None:
        raise Ended(owner)
    proc = f"/proc/{program.program}"
    try:
        root = os.open(f"{proc}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Ended(owner) from None
    try:
        try:  # checked after opening: the program may have ended and its pid may have been reused
            namespace = os.stat(f"{proc}/ns/mnt").st_ino
        except FileNotFoundError:
            raise Ended(owner) from None
        if namespace != program.observed.namespaces["mnt"]:
            raise Ended(owner)
        yield root
    finally:
        os.close(root)


@contextlib.contextmanager
def directory_of(program: Sandbox, path: str, owner: str = "the program") -> Iterator[int]:
    """A directory beneath that root, such as ``workspace``, to open files beneath it."""
    flags, resolve = os.O_PATH | os.O_DIRECTORY, openat2.WITHIN | openat2.NO_LINKS
    with root_of(program, owner) as root, openat2.opened(root, path, flags, resolve) as fd:
        yield fd
