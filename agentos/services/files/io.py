"""Reads, replaces and appends to files that were resolved by :mod:`agentos.services.files.resolve`.

The uid and gid of :attr:`Place.who` are used. Everything blocks and runs in a Trio thread; cancellation is checked
between two pieces.
"""

import contextlib
import errno
import os
import secrets
import stat

import trio
from attrs import frozen

from agentos.sandbox import openat2
from agentos_sdk.errors import BadRequest, Busy, CallError, PermissionDenied, QuotaExceeded

from .as_user import acting_as
from .resolve import Found, Place, check_file_system, check_sole, refusal, refusing

PIECE = 1 << 20  # bytes
NEW = 0o644  # mode of a new file, before the kernel's umask
HIDDEN = ".agentos-"  # prefix of the names of unfinished files
ATTEMPTS = 8  # if other processes create and remove the file at that moment
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@frozen
class Part:
    """Bytes of a file. ``size`` is that of the whole file; ``cut``: the file continues beyond ``limit``."""

    data: bytes | bytearray
    size: int
    cut: bool


def read(found: Found, offset: int, limit: int | None, most: int) -> Part:
    """Read a resolved file: all bytes from ``offset`` on, or at most ``limit``.

    ``BadRequest`` if that is more than ``most`` or if it is no regular file. A file that grows is read up to its size
    at the start.
    """
    place = found.place
    with refusing(place), acting_as(place.who):
        check(found.require(), place)
        fd = os.open(f"/proc/self/fd/{found.fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            there = max(0, size - offset)
            wanted = there if limit is None else min(limit, there)
            if wanted > most:
                raise BadRequest(
                    f"limit: {wanted} bytes of {place.asked} are more than the {most} that a reply holds: "
                    "read it in parts, by offset and limit"
                )
            data = bytearray()
            while len(data) < wanted:
                trio.from_thread.check_cancelled()
                piece = os.pread(fd, min(PIECE, wanted - len(data)), offset + len(data))
                if not piece:
                    break
                data += piece
            return Part(data, size, limit is not None and wanted < there)
        finally:
            os.close(fd)


def check(fd: int, place: Place) -> os.stat_result:
    """Raise unless this is a regular file in a normal file system, with one name only if :attr:`Place.sole` is set."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise BadRequest(f"{place.asked}: expected a file, and this is {what(status)}")
    check_file_system(fd, place)
    if place.sole:
        check_sole(status, place.asked)
    return status


def what(status: os.stat_result) -> str:
    return KINDS.get(stat.S_IFMT(status.st_mode), "something else")


def replace(found: Found, data: bytes) -> None:
    """Replace a file atomically by ``data``: readers see either the old or the new content, whole.

    The mode of the old file is kept, and on the host its owner. If cancelled or failed, nothing is left behind.
    """
    place, directory = found.place, found.require()
    with refusing(place), acting_as(place.who):
        former = _former(found)
        _check_size(len(data), place)
        hidden = f"{HIDDEN}{secrets.token_hex(8)}"
        fd = os.open(hidden, CREATE, NEW if former is None else 0o600, dir_fd=directory)
        try:
            try:
                for at in range(0, len(data), PIECE):
                    trio.from_thread.check_cancelled()
                    _write_out(fd, data[at : at + PIECE])
                _give(fd, place, former)
                os.fdatasync(fd)  # otherwise the file might be empty after a crash of the host
            finally:
                os.close(fd)
            trio.from_thread.check_cancelled()
            os.rename(hidden, found.last, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(hidden, dir_fd=directory)
            raise


def append(found: Found, data: bytes) -> None:
    """Append ``data`` to a file, created if missing."""
    place = found.place
    with refusing(place), acting_as(place.who):
        fd = _open_to_append(found)
        try:
            size = os.fstat(fd).st_size
            _check_size(size + len(data), place)
            try:
                _write_out(fd, data)
            except OSError as error:
                raise _half(error, os.fstat(fd).st_size - size, len(data), place) from None
        finally:
            os.close(fd)


def _former(found: Found) -> os.stat_result | None:
    """The status of the file to be replaced; ``None`` if there is none.

    A file that is a mount point is refused. That mount exists in the mount namespace of an agent, so it doesn't protect
    the file from us: a rename over it would remove the mount.
    """
    try:
        fd = openat2.open_at(found.fd, found.last, os.O_PATH | os.O_NOFOLLOW, openat2.NO_LINKS | openat2.NO_CROSSING)
    except FileNotFoundError:
        check_file_system(found.fd, found.place)
        return None
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise PermissionDenied(f"{found.place.asked}: is protected (mounted by itself), and not replaced") from None
    try:
        check_file_system(fd, found.place)
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(status.st_mode):
        raise BadRequest(f"{found.place.asked}: expected a file, and this is {what(status)}")
    return status


def _open_to_append(found: Found) -> int:
    directory, place = found.require(), found.place
    check_file_system(directory, place)
    for _ in range(ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return _open_existing(found)
        with contextlib.suppress(FileExistsError):
            fd = os.open(found.last, CREATE | os.O_APPEND, NEW, dir_fd=directory)
            try:
                _give(fd, place, None)
            except BaseException:
                os.close(fd)
                raise
            return fd
    raise Busy(f"{place.asked}: is made and removed all the time: try again")


def _open_existing(found: Found) -> int:
    """Open a file for appending; checked before, because opening a FIFO or a device can have side effects."""
    looked_at = openat2.open_at(found.fd, found.last, os.O_PATH | os.O_NOFOLLOW, openat2.NO_LINKS)
    try:
        check(looked_at, found.place)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{looked_at}", flags)
    finally:
        os.close(looked_at)


def _half(error: OSError, written: int, wanted: int, place: Place) -> CallError:
    """The error for a partial append. What was appended stays: other processes may have appended after it."""
    refused = refusal(error, place)
    return type(refused)(f"{refused}; {written} of {wanted} bytes were appended") if written > 0 else refused


def _give(fd: int, place: Place, former: os.stat_result | None) -> None:
    """Set owner and mode of a file."""
    if former is None:
        if place.owner is not None:
            os.fchown(fd, place.owner.uid, place.owner.gid)
        return
    if place.who is None:
        with contextlib.suppress(PermissionError):  # without root it is owned by us
            os.fchown(fd, former.st_uid, former.st_gid)
    os.fchmod(fd, stat.S_IMODE(former.st_mode) & 0o777)


def _check_size(size: int, place: Place) -> None:
    if place.most is not None and size > place.most:
        raise QuotaExceeded(f"{place.asked}: the file would have {size} bytes, and limits.file_size is {place.most}")


def _write_out(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left[:PIECE]) :]
