"""Reads, replaces and appends to files that were resolved by :mod:`agentos.services.files.resolve`.

The uid and gid of :attr:`PathRequest.identity` are used. Everything blocks and runs in a Trio thread; cancellation is
checked between two pieces.
"""

import contextlib
import errno
import os
import secrets
import stat

from agentos.sandbox.files import openat2
from agentos.threads import check_cancelled
from agentos_sdk.errors import BadRequest, Busy, CallError, PermissionDenied, QuotaExceeded

from .as_user import acting_as
from .regular_file import check_file_system, check_regular_file, describe_type, reopen
from .resolve import Part, PathRequest, ResolvedPath, call_error, call_errors

CHUNK_BYTES = 1 << 20  # bytes per read() or write()
MAX_EARLY_BYTES = 64 << 10  # bytes that are read before the decision, and held until the call is answered
NEW_FILE_MODE = 0o644  # mode of a new file, before the kernel's umask
TEMPORARY_PREFIX = ".agentos-"  # prefix of the names of unfinished files
MAX_ATTEMPTS = 8  # if other processes create and remove the file at that moment
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_early(resolved: ResolvedPath, offset: int, limit: int | None, max_bytes: int) -> None:
    """Open a file for :func:`resolve_file`, and read the requested part, if it is small, into ``resolved.part``.

    Not if that would set the access time: the call may yet be refused. The file is closed where its part has been read.
    """
    resolved.open()
    size, wanted = _measure(resolved, offset, limit)
    if resolved.untouched and wanted <= min(max_bytes, MAX_EARLY_BYTES):
        data = os.pread(resolved.fd, wanted, offset) if wanted else b""
        if len(data) == wanted:  # otherwise it shrinks at this moment
            resolved.part = Part(data, size, offset + wanted < size)
            resolved.close()


def read(resolved: ResolvedPath, offset: int, limit: int | None, max_bytes: int) -> Part:
    """Read a resolved file: all bytes from ``offset`` on, or at most ``limit``.

    ``BadRequest`` if that is more than ``max_bytes`` or if it is no regular file. A file that grows is read up to its
    size at the start.
    """
    request = resolved.request
    resolved.require()
    with call_errors(request), acting_as(request.identity):
        resolved.open()
        size, wanted = _measure(resolved, offset, limit)
        if wanted > max_bytes:
            raise BadRequest(
                f"limit: {wanted} bytes of {request.given} are more than the {max_bytes} that a reply holds: "
                "read it in parts, by offset and limit"
            )
        data = bytearray()
        while len(data) < wanted:
            check_cancelled()
            piece = os.pread(resolved.fd, min(CHUNK_BYTES, wanted - len(data)), offset + len(data))
            if not piece:
                break
            data += piece
        return Part(data, size, offset + wanted < size)


def _measure(resolved: ResolvedPath, offset: int, limit: int | None) -> tuple[int, int]:
    """The size of a file, and how many bytes of it are requested."""
    size = os.fstat(resolved.fd).st_size
    there = max(0, size - offset)
    return size, there if limit is None else min(limit, there)


def replace(resolved: ResolvedPath, data: bytes) -> None:
    """Replace a file atomically by ``data``: readers see either the old or the new content, whole.

    The mode of the old file is kept, and on the host its owner. If cancelled or failed, nothing is left behind.
    """
    request, directory = resolved.request, resolved.require()
    with call_errors(request), acting_as(request.identity):
        former = _stat_replaced(resolved)
        _check_size(len(data), request)
        temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        fd = os.open(temporary, CREATE_FLAGS, NEW_FILE_MODE if former is None else 0o600, dir_fd=directory)
        try:
            try:
                for at in range(0, len(data), CHUNK_BYTES):
                    check_cancelled()
                    _write_out(fd, data[at : at + CHUNK_BYTES])
                _set_owner_and_mode(fd, request, former)
                os.fdatasync(fd)  # otherwise the file might be empty after a crash of the host
            finally:
                os.close(fd)
            check_cancelled()
            os.rename(temporary, resolved.last, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise


def append(resolved: ResolvedPath, data: bytes) -> None:
    """Append ``data`` to a file, created if missing."""
    request = resolved.request
    with call_errors(request), acting_as(request.identity):
        fd = _open_to_append(resolved)
        try:
            size = os.fstat(fd).st_size
            _check_size(size + len(data), request)
            try:
                _write_out(fd, data)
            except OSError as error:
                raise _partial_append_error(error, os.fstat(fd).st_size - size, len(data), request) from None
        finally:
            os.close(fd)


def _stat_replaced(resolved: ResolvedPath) -> os.stat_result | None:
    """The status of the file to be replaced; ``None`` if there is none.

    A file that is a mount point is refused. That mount exists in the mount namespace of an agent, so it doesn't protect
    the file from us: a rename over it would remove the mount.
    """
    try:
        fd = openat2.open_at(
            resolved.fd, resolved.last, os.O_PATH | os.O_NOFOLLOW, openat2.NO_LINKS | openat2.NO_CROSSING
        )
    except FileNotFoundError:
        check_file_system(resolved.fd, resolved.request.given)
        return None
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise PermissionDenied(
            f"{resolved.request.given}: is protected (mounted by itself), and not replaced"
        ) from None
    try:
        check_file_system(fd, resolved.request.given)
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(status.st_mode):
        raise BadRequest(f"{resolved.request.given}: expected a file, and this is {describe_type(status)}")
    return status


def _open_to_append(resolved: ResolvedPath) -> int:
    directory, request = resolved.require(), resolved.request
    check_file_system(directory, request.given)
    for _ in range(MAX_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return _open_existing(resolved)
        with contextlib.suppress(FileExistsError):
            fd = os.open(resolved.last, CREATE_FLAGS | os.O_APPEND, NEW_FILE_MODE, dir_fd=directory)
            try:
                _set_owner_and_mode(fd, request, None)
            except BaseException:
                os.close(fd)
                raise
            return fd
    raise Busy(f"{request.given}: is made and removed all the time: try again")


def _open_existing(resolved: ResolvedPath) -> int:
    """Open a file for appending."""
    with openat2.opened(resolved.fd, resolved.last, os.O_PATH | os.O_NOFOLLOW, openat2.NO_LINKS) as looked_at:
        check_regular_file(looked_at, resolved.request.given, resolved.request.single_link)
        return reopen(looked_at, os.O_WRONLY | os.O_APPEND)


def _partial_append_error(error: OSError, written: int, wanted: int, request: PathRequest) -> CallError:
    """The error for a partial append. What was appended stays: other processes may have appended after it."""
    refused = call_error(error, request)
    return type(refused)(f"{refused}; {written} of {wanted} bytes were appended") if written > 0 else refused


def _set_owner_and_mode(fd: int, request: PathRequest, former: os.stat_result | None) -> None:
    """Set owner and mode of a file."""
    if former is None:
        if request.owner is not None:
            os.fchown(fd, request.owner.uid, request.owner.gid)
        return
    if request.identity is None:
        with contextlib.suppress(PermissionError):  # without root it is owned by us
            os.fchown(fd, former.st_uid, former.st_gid)
    os.fchmod(fd, stat.S_IMODE(former.st_mode) & 0o777)


def _check_size(size: int, request: PathRequest) -> None:
    if request.max_size is not None and size > request.max_size:
        raise QuotaExceeded(
            f"{request.given}: the file would have {size} bytes, and limits.file_size is {request.max_size}"
        )


def _write_out(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left[:CHUNK_BYTES]) :]
