"""Operations on names below a directory, by its descriptor: no symbolic link and no mount is passed on the way.

Paths are relative, with ``/``; ``""`` is the directory itself. Names that aren't UTF-8 have surrogates (PEP 383).
Everything blocks.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal

from msgspec import Struct

from agentos.sandbox.files import openat2
from agentos.services.files.regular_file import reopen
from agentos.threads import check_cancelled

Kind = Literal["file", "link", "directory", "other"]

_RESOLVE = openat2.WITHIN | openat2.NO_LINKS | openat2.NO_CROSSING
_NOREPLACE, _EXCHANGE = 1, 2  # RENAME_*
_LIBC = ctypes.CDLL(None, use_errno=True)
_CHUNK = 1 << 20  # bytes


class Stamp(Struct, frozen=True, array_like=True):
    """What identifies the state of an entry. Times are nanoseconds; no program can set ``ctime``."""

    inode: int
    mode: int
    size: int
    mtime: int
    ctime: int

    def is_same_renamed(self, other: "Stamp") -> bool:
        """Whether it is the same entry in the same state, which may have been renamed: that changes ``ctime``."""
        return (self.inode, self.mode, self.size, self.mtime) == (other.inode, other.mode, other.size, other.mtime)


def stamp_of(found: os.stat_result) -> Stamp:
    return Stamp(found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def has_bytes(path: str) -> bool:
    """Whether a path isn't UTF-8, and so no text that can be written in JSON."""
    return not path.isascii() and any("\udc80" <= letter <= "\udcff" for letter in path)


def kind_of(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "other"


def open_top(path: str) -> AbstractContextManager[int]:
    """A directory by its absolute path, in which no component may be a symbolic link."""
    return openat2.opened(-1, path, os.O_RDONLY | os.O_DIRECTORY, openat2.NO_LINKS)


def open_directory(top: int, path: str) -> AbstractContextManager[int]:
    """A directory below, to name entries of it and to list it."""
    return openat2.opened(top, path or ".", os.O_RDONLY | os.O_DIRECTORY, _RESOLVE)


@contextlib.contextmanager
def open_parent(top: int, path: str) -> Iterator[tuple[int, str]]:
    """The directory that an entry is in, and the entry's name in it."""
    above, _, name = path.rpartition("/")
    with openat2.opened(top, above or ".", os.O_PATH | os.O_DIRECTORY, _RESOLVE) as fd:
        yield fd, name


@contextlib.contextmanager
def open_file(top: int, path: str) -> Iterator[int]:
    """A regular file below, for reading; ``OSError`` for anything else, without having opened it."""
    with openat2.opened(top, path, os.O_PATH | os.O_NOFOLLOW, _RESOLVE) as looked_at:
        if not stat.S_ISREG(os.fstat(looked_at).st_mode):
            raise OSError(errno.EINVAL, "not a regular file any more", path)
        fd = reopen(looked_at, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def look(top: int, path: str) -> os.stat_result | None:
    """The entry at a path, or None if there is none that can be reached."""
    try:
        with open_parent(top, path) as (parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.ELOOP):  # a mount or a link is on the way
            return None
        raise


def copy(source: int, target: int | None = None) -> str:
    """Copy what is left of a file, if there is a target; returns the sha256 of it, in hex.

    Zeros become holes: a sparse file must not fill the disk. What others append meanwhile isn't copied: they may never
    stop. Raises ``trio.Cancelled`` where nothing waits for it any more: sparse files of an agent's may take days.
    """
    digest, size = hashlib.sha256(), 0
    most = os.fstat(source).st_size - os.lseek(source, 0, os.SEEK_CUR)
    while part := os.read(source, max(0, min(_CHUNK, most - size))):
        check_cancelled()
        digest.update(part)
        size += len(part)
        if target is not None and part.count(0) == len(part):
            os.lseek(target, len(part), os.SEEK_CUR)
        elif target is not None:
            write_all(target, part)
    if target is not None:
        os.ftruncate(target, size)
    return digest.hexdigest()


def copy_data(source: int, target: int) -> None:
    """Copy a file into an empty one as :func:`copy` does, without a digest: its holes aren't even read."""
    size, at = os.fstat(source).st_size, 0
    while (data := _find_data(source, at, size)) is not None:
        at, end = data
        while part := os.pread(source, min(_CHUNK, end - at), at):
            check_cancelled()
            if part.count(0) != len(part):
                os.lseek(target, at, os.SEEK_SET)
                write_all(target, part)
            at += len(part)
        if at < end:  # it has become shorter
            size = at
    os.ftruncate(target, size)


def _find_data(file: int, at: int, size: int) -> tuple[int, int] | None:
    """Where the next bytes of a file that aren't a hole begin and end; None if there are none before ``size``."""
    try:
        start = os.lseek(file, at, os.SEEK_DATA)
        return (start, min(os.lseek(file, start, os.SEEK_HOLE), size)) if start < size else None
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


def write_all(target: int, data: bytes) -> None:
    """Write all bytes where the file stands; Linux may take fewer at once. Raises ``OSError``."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]


def move(source: int, name: str, target: int, new: str) -> None:
    """Rename an entry to a name that must be free (``FileExistsError``)."""
    _rename(source, name, target, new, _NOREPLACE)


def exchange(source: int, name: str, target: int, other: str) -> None:
    """Exchange two entries in one step."""
    _rename(source, name, target, other, _EXCHANGE)


def _rename(source: int, name: str, target: int, new: str, flags: int) -> None:
    if _LIBC.renameat2(source, os.fsencode(name), target, os.fsencode(new), flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), new)


def sync(fd: int) -> None:
    """Write all that was changed in the file system of this descriptor to its disk."""
    if _LIBC.syncfs(fd) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def remove(parent: int, name: str, found: os.stat_result | None) -> None:
    """Remove an entry whose status is ``found``, if there is one; of a directory all that is in it."""
    if found is not None and stat.S_ISDIR(found.st_mode):
        remove_tree(parent, name)
    elif found is not None:
        os.unlink(name, dir_fd=parent)


def remove_tree(parent: int, name: str) -> None:
    """Remove a directory with all that is in it, of any depth; no link is followed. It may be absent.

    Directories of it are moved up one by one, and made ours to enter: an overlay leaves one without permissions.
    """
    with contextlib.suppress(FileNotFoundError):
        os.chmod(name, 0o700, dir_fd=parent)
        with open_directory(parent, name) as top:
            empty_tree(top)
        os.rmdir(name, dir_fd=parent)


def empty_tree(top: int) -> None:
    """Remove all that is in a directory, as :func:`remove_tree` does."""
    while names := os.listdir(top):
        for each in names:
            _flatten(top, each)


def _flatten(top: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, 0o700, dir_fd=top)
    with open_directory(top, name) as here:
        for each in os.listdir(here):
            if stat.S_ISDIR(os.stat(each, dir_fd=here, follow_symlinks=False).st_mode):
                os.chmod(each, 0o700, dir_fd=here)
                os.rename(each, secrets.token_hex(16), src_dir_fd=here, dst_dir_fd=top)
            else:
                os.unlink(each, dir_fd=here)
    os.rmdir(name, dir_fd=top)
