"""Opens what lies beneath a directory by file descriptors, without following a symbolic link.

An agent may have planted links, and directories without permissions. Of an ordinary user its directories have our uid:
we give ourselves the permissions again, by a descriptor.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_top(top: str, repair: bool = False) -> Iterator[int]:
    """A directory by its real path: a link that has since come into that path is refused with ``OSError``."""
    above, _, last = os.path.abspath(top).rpartition("/")
    with _descend(os.open("/", os.O_PATH | _DIRECTORY), above) as parent:
        if repair:
            make_readable(last or ".", parent)
        fd = os.open(last or ".", os.O_RDONLY | _DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_beneath(root: int, path: str) -> Iterator[int]:
    """The directory ``path`` beneath another one, which itself has the path ``""``."""
    with _descend(os.dup(root), path) as place:
        fd = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=place)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """The directory that a path is in, and its last part."""
    above, _, last = path.rpartition("/")
    with open_beneath(root, above) as fd:
        yield fd, last


def open_file(top: str, path: str) -> BufferedReader:
    """A file beneath a directory, for reading."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open_top(top) as root, open_parent(root, path) as (parent, last):
        return open(last, "rb", opener=lambda name, _: os.open(name, flags, dir_fd=parent))


def make_readable(name: str, parent: int) -> bool:
    """Let us list a directory of ours; returns whether its mode was changed."""
    fd = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=parent)
    try:
        return _add_permissions(fd, 0o500)
    finally:
        os.close(fd)


def make_writable(fd: int) -> bool:
    """Let us change what is in a directory of ours; returns whether its mode was changed."""
    return _add_permissions(fd, 0o700)


def empty_directory(top: int) -> None:
    """Remove all that is in a directory, however deep. Needs no more than a few descriptors at a time."""
    fd, below = os.dup(top), list[tuple[str, tuple[int, int]]]()
    try:
        while True:
            make_writable(fd)
            name = _remove_files(fd)
            if name is not None:
                make_readable(name, fd)
                next_fd = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=fd)
                below.append((name, _identity(fd)))
            elif below:
                next_fd = os.open("..", os.O_RDONLY | _DIRECTORY, dir_fd=fd)
            else:
                return
            os.close(fd)
            fd = next_fd
            if name is None:
                name, parent = below.pop()
                if _identity(fd) != parent:
                    raise OSError(errno.ESTALE, "a program has moved this directory meanwhile", name)
                os.rmdir(name, dir_fd=fd)
    finally:
        os.close(fd)


@contextmanager
def _descend(fd: int, path: str) -> Iterator[int]:
    """Open each directory of a path in turn; takes over ``fd``, in which the path begins."""
    try:
        for name in filter(None, path.split("/")):
            below = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _add_permissions(fd: int, needed: int) -> bool:
    found = os.fstat(fd)
    if os.geteuid() != found.st_uid or found.st_uid == 0 or found.st_mode & needed == needed:
        return False
    os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(found.st_mode) | 0o700)  # works with O_PATH, unlike fchmod
    return True


def _remove_files(fd: int) -> str | None:
    """Remove the files in a directory up to the first directory, whose name is returned."""
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                return entry.name
            with suppress(FileNotFoundError):
                os.unlink(entry.name, dir_fd=fd)
    return None


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
