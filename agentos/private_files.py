"""Private files: directories and files that only the kernel's uid can write to, checked and opened without symlinks.

A directory is held by a file descriptor, and its files are opened as ``/proc/self/fd/N/name``. This is relative to the
descriptor, also for SQLite, which accepts only paths. So a directory that is renamed while it is held stays in use, and
a directory put in its place is not used. :func:`display_path` gives the path for messages. Everything here blocks.

A failed check raises :class:`UnsafeFile`; errors from Linux remain ``OSError``.

Not protected: anything against the same uid or root. The owner of a parent directory can still rename it.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

_HELD_PATH = re.compile(r"/proc/self/fd/[0-9]+(?=/|\Z)")
_NOT_REGULAR = "is not a regular file: move it away"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_CHOOSE_ANOTHER = "choose another directory with --state-dir"


class UnsafeFile(OSError):
    """Other users can change or replace it. ``strerror`` says why and what to do, ``filename`` is the real path."""


def describe_error(error: OSError, path: Path) -> str:
    """The message for an error about ``path``, or about the file that the error names."""
    place = display_path(error.filename or path)
    return (
        f"{place}: {error.strerror}"
        if isinstance(error, UnsafeFile)
        else f"{place}: {error.strerror}: {_CHOOSE_ANOTHER}"
    )


def display_path(path: Path | str) -> str:
    """The real path for messages: where a held directory is now."""
    text = str(path)
    held = _HELD_PATH.match(text)
    return os.readlink(held[0]) + text[held.end() :] if held else text


@contextlib.contextmanager
def hold_directory(path: Path, remedy: str = _CHOOSE_ANOTHER) -> Iterator[Path]:
    """Create the directory with mode 0700 if needed, check it and hold it; yields the path to open its files by.

    ``remedy`` says in errors what to do instead of using this directory.

    Refused: a symlink, another owner than the effective uid, write permission for group or others, and a parent
    directory in which every uid may rename files (mode o+w without the sticky bit).
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise _unsafe(path, f"is a symlink to {os.path.realpath(path)}: name the directory itself") from None
        raise OSError(error.errno, error.strerror, display_path(path)) from None
    try:
        _check_directory(os.fstat(fd), path, remedy)
        check_parents(Path(os.readlink(f"/proc/self/fd/{fd}")))
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def check_parents(path: Path) -> None:
    """Refuse a path if every uid could replace one of its parent directories."""
    names = os.path.realpath(path.parent).rstrip("/").split("/")
    for count in range(len(names), 0, -1):
        parent = "/".join(names[:count]) or "/"
        try:
            mode = os.stat(parent).st_mode
        except FileNotFoundError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            why = f"can be replaced by every user, as {parent} has mode {mode & 0o7777:04o}: run `chmod o-w {parent}`"
            raise _unsafe(path, why)


def open_file(path: Path, flags: int) -> int:
    """Open a regular file in a held directory, or create it with mode 0600; a symlink is never followed.

    Refused: anything but a regular file of the effective uid with one name (no hard links). ``O_TRUNC`` takes effect
    only after the check.
    """
    extra = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # opening a FIFO must not wait for its other end
    try:
        fd = os.open(path, flags & ~os.O_TRUNC | extra, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _unsafe(path, "is a symlink: remove it") from None
        if error.errno in {errno.EISDIR, errno.ENXIO}:  # a directory; a socket, or a FIFO without a reader
            raise _unsafe(path, _NOT_REGULAR) from None
        raise OSError(error.errno, error.strerror, display_path(path)) from None
    try:
        _check_file(os.fstat(fd), path)
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
        return fd
    except BaseException:
        os.close(fd)
        raise


def check_file(path: Path) -> None:
    """Apply the same checks without opening the file; a missing file passes."""
    with contextlib.suppress(FileNotFoundError):
        _check_file(os.lstat(path), path)


def read_file(path: Path) -> str:
    """Read a private file. Raises ``FileNotFoundError`` if it doesn't exist."""
    with open(open_file(path, os.O_RDONLY), encoding="utf-8") as file:
        return file.read()


def replace_file(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Replace ``path`` atomically by a private file with this content, synced to disk unless ``sync`` is false.

    If writing raises ``OSError`` the former file is as it was, and nothing is left beside it.
    """
    temporary = path.with_name(path.name + ".new")
    with open(open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb", buffering=0) as file:
        try:
            append_whole(file.fileno(), content.encode() if isinstance(content, str) else content)
            if sync:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def append_whole(fd: int, data: bytes) -> None:
    """Write all of ``data`` to a file that is empty or opened with ``O_APPEND``; on ``OSError`` nothing is added."""
    size, rest = os.fstat(fd).st_size, memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
        raise


def _check_directory(status: os.stat_result, path: Path, remedy: str) -> None:
    mode = f"mode {status.st_mode & 0o7777:04o}"
    if status.st_uid != os.geteuid():
        why = f"belongs to uid {status.st_uid} ({mode}), and the kernel runs as uid {os.geteuid()}: {remedy}"
        raise _unsafe(path, why)
    if status.st_mode & _WRITABLE_BY_OTHERS:
        why = f"belongs to uid {status.st_uid}, but its {mode} lets other users write to it"
        raise _unsafe(path, f"{why}: run `chmod go-w {display_path(path)}`, or {remedy}")


def _check_file(status: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _unsafe(path, "is a symlink: remove it")
    if not stat.S_ISREG(status.st_mode):
        raise _unsafe(path, _NOT_REGULAR)
    if status.st_uid != os.geteuid():
        why = f"belongs to uid {status.st_uid}, and the kernel runs as uid {os.geteuid()}: move it away"
        raise _unsafe(path, why)
    if status.st_nlink > 1:
        raise _unsafe(path, f"has {status.st_nlink} names (hard links): remove the others")


def _unsafe(path: Path, why: str) -> UnsafeFile:
    return UnsafeFile(errno.EPERM, why, display_path(path))
