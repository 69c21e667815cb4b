"""Path and symlink resolution: a path is walked once with openat2; a file descriptor (O_PATH) holds the result.

The permission check uses the name of what was opened, and later operations use the descriptor, so a symlink swapped in
between has no effect (:mod:`agentos.sandbox.files.openat2`). Permissions are not decided here. Everything blocks.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import takewhile

from attrs import define
from msgspec import Struct

from agentos.sandbox.files import openat2
from agentos_sdk.errors import (
    BadRequest,
    Busy,
    CallError,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
)

from .as_user import Identity, acting_as
from .regular_file import KERNEL_FILE_SYSTEMS, check_file_system, check_regular_file, reopen

MAX_PATH_BYTES = 4095  # bytes of a path, Linux's limit
MAX_SYMLINKS = 40  # in one path, Linux's limit
DELETED_SUFFIX = " (deleted)"


@contextlib.contextmanager
def open_host_root() -> Iterator[int]:
    """Open the root directory of the host."""
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


class PathRequest(Struct, frozen=True):
    """A path to be resolved for a caller. ``given`` is the path as the caller wrote it, ``name`` its form in rules.

    ``path`` is relative to the directory that ``root`` opens. If ``top`` is set (``/workspace``), it is the name of
    that directory and the path can't leave it; without ``top`` the path is on the host. Access uses the uid and gid of
    ``identity``; ``None``: the kernel's own. New files belong to ``owner``, if set. With ``single_link``, a file with a
    second hard link is refused, because that link may be in a directory that the caller may not read. ``max_size`` is
    the largest size that a file may get. ``hidden`` are host directories with names that mean something else to the
    caller: paths that lead into them are refused.
    """

    given: str
    name: str
    path: str
    top: str = ""
    root: Callable[[], AbstractContextManager[int]] = open_host_root
    identity: Identity | None = None
    owner: Identity | None = None
    single_link: bool = False
    max_size: int | None = None
    hidden: tuple[str, ...] = ()

    @property
    def resolve_flags(self) -> int:
        """The openat2 resolve flags."""
        return openat2.WITHIN if self.top else openat2.NO_MAGIC


class Part(Struct, frozen=True):
    """Bytes of a file. ``size`` is that of the whole file; ``cut``: the file continues beyond the requested part."""

    data: bytes | bytearray
    size: int
    cut: bool


@define
class ResolvedPath:
    """A resolved path: ``real`` is the name to be checked against rules. To be closed.

    ``fd`` is the file for reading, and for writing the directory that contains ``last``. ``error``: why the file could
    not be opened or read; ``part``: what has been read of it. Neither must be shown to a caller that may not read this
    path. ``is_open``: ``fd`` is a regular file and was opened for reading; ``untouched``: that doesn't set its access
    time.
    """

    request: PathRequest
    real: str
    fd: int = -1
    last: str = ""
    size: int = 0  # of the file, when it was resolved
    error: CallError | None = None
    part: Part | None = None
    is_open: bool = False
    untouched: bool = False

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def require(self) -> int:
        """The descriptor; raises ``error`` if there is none."""
        if self.error is not None:
            raise self.error
        return self.fd

    def open(self) -> None:
        """Open the file that was found for reading, with this thread's uid. Raises ``CallError`` or ``OSError``."""
        if self.is_open:
            return
        check_regular_file(self.fd, self.request.given, self.request.single_link)
        try:
            fd, self.untouched = reopen(self.fd, os.O_RDONLY | os.O_NOATIME), True
        except PermissionError:  # only the owner may leave the access time as it is
            fd = reopen(self.fd, os.O_RDONLY)
        os.close(self.fd)
        self.fd, self.is_open = fd, True


def resolve_file(
    request: PathRequest, read: Callable[[ResolvedPath], None] | None = None, *, for_writing: bool = False
) -> ResolvedPath:
    """Resolve a path to a file of any kind, or to the name of a missing one; ``for_writing`` to its directory.

    ``read`` opens the file, if the caller may read what has this name. It is called if the path has led to no other
    name. A file that rules may deny isn't opened: closing one of the kernel's own would release its locks.
    """
    if len(os.fsencode(request.path)) > MAX_PATH_BYTES:
        raise BadRequest(f"path: expected at most {MAX_PATH_BYTES} bytes")
    try:
        with request.root() as root, acting_as(request.identity):
            resolved = _open_directory(root, request) if for_writing else _open_file(root, request)
            if any(f"{resolved.real}/".startswith(f"{hidden}/") for hidden in request.hidden):
                resolved.close()
                raise PermissionDenied(
                    f"{request.given}: leads to a host directory that has the name of one of your own"
                )
            try:
                resolved.real.encode()
            except UnicodeEncodeError:
                resolved.close()
                error = BadRequest(f"{request.given}: leads to a name that isn't UTF-8")
                return ResolvedPath(request, request.name, error=error)
            if read is not None and resolved.error is None and resolved.real == request.name:
                try:
                    read(resolved)
                except OSError as unreadable:
                    resolved.error = call_error(unreadable, request)
                except CallError as refused:
                    resolved.error = refused
            return resolved
    except OSError as failure:
        raise call_error(failure, request) from None


resolve_for_writing = partial(resolve_file, for_writing=True)
"""The directory and the name in it, whether the file exists or not."""


def _open_file(root: int, request: PathRequest) -> ResolvedPath:
    try:
        fd = openat2.open_at(root, request.path, os.O_PATH, request.resolve_flags)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.ENOSYS):
            raise
        with _deepest_directory(root, request) as (directory, rest):
            return ResolvedPath(
                request, _join(_name_of(root, directory, request), rest), error=call_error(error, request)
            )
    try:
        return ResolvedPath(request, _name_of(root, fd, request), fd, size=os.fstat(fd).st_size)
    except BaseException:
        os.close(fd)
        raise


def _open_directory(root: int, request: PathRequest) -> ResolvedPath:
    with _deepest_directory(root, request) as (directory, rest):
        above = _name_of(root, directory, request)
        real = _join(above, rest)
        try:
            check_file_system(directory, request.given)
        except PermissionDenied as error:
            return ResolvedPath(request, real, error=error)
        if len(rest) > 1:
            return ResolvedPath(
                request, real, error=NotFound(f"{request.given}: there is no directory {_join(above, rest[:1])}")
            )
        if not rest or request.path.endswith("/"):
            return ResolvedPath(request, real, error=BadRequest(f"{request.given}: is a directory"))
        return ResolvedPath(request, real, os.dup(directory), rest[0])


@contextlib.contextmanager
def _deepest_directory(root: int, request: PathRequest) -> Iterator[tuple[int, list[str]]]:
    """Open the deepest existing directory of a path, last component excluded; yields it and the other components.

    Symlinks on the way are followed, so the first of the other components isn't one.
    """
    path = request.path
    for _ in range(MAX_SYMLINKS):
        parts = [part for part in path.split("/") if part not in ("", ".")]
        start = "/" if path.startswith("/") else ""
        directory, depth = _open_deepest(root, start, parts, request)
        target = _link_target(directory, parts[depth]) if depth < len(parts) else None
        if target is None:
            try:
                yield directory, parts[depth:]
            finally:
                os.close(directory)
            return
        os.close(directory)
        if request.top and target.startswith("/"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        path = "/".join([target, *parts[depth + 1 :]])
        if not target.startswith("/"):
            path = start + "/".join([*parts[:depth], path])
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _link_target(directory: int, name: str) -> str | None:
    """The target of a symlink; ``None`` in /proc and similar file systems: their links can't be followed by name."""
    if openat2.kind_of_file_system(directory) in KERNEL_FILE_SYSTEMS:
        return None
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:  # no symlink, or it doesn't exist
        return None


def _open_deepest(root: int, start: str, parts: list[str], request: PathRequest) -> tuple[int, int]:
    most = len(parts) if parts[-1:] == [".."] else len(parts) - 1
    for depth in range(most, 0, -1):
        path = start + "/".join(parts[:depth])
        try:
            return openat2.open_at(root, path, os.O_PATH | os.O_DIRECTORY, request.resolve_flags), depth
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.ENOSYS, errno.EMFILE, errno.ENFILE, errno.EAGAIN):
                raise
    return os.dup(root), 0


def _join(directory: str, rest: list[str]) -> str:
    """The path that a missing file would have; stops at "..", which can't be followed from a missing directory."""
    return "/".join([directory.rstrip("/"), *takewhile(lambda part: part != "..", rest)]) or "/"


def _name_of(root: int, fd: int, request: PathRequest) -> str:
    """The current path of a descriptor; below ``top``, if that is set."""
    name = os.readlink(f"/proc/self/fd/{fd}")
    top = os.readlink(f"/proc/self/fd/{root}") if request.top else "/"
    inside = top if top.endswith("/") else f"{top}/"
    if name != top and not name.startswith(inside):
        raise FileNotFoundError(errno.ENOENT, "moved away meanwhile")
    rest = name[len(inside) :]
    if name.endswith(DELETED_SUFFIX) and not _has_name(root, rest, fd):
        raise FileNotFoundError(errno.ENOENT, "removed meanwhile")
    return f"{request.top}/{rest}".rstrip("/") or "/"


def _has_name(root: int, name: str, fd: int) -> bool:
    try:
        with openat2.opened(root, name, os.O_PATH | os.O_NOFOLLOW, openat2.NO_LINKS) as other:
            return os.path.samestat(os.fstat(other), os.fstat(fd))
    except OSError:
        return False


@contextlib.contextmanager
def call_errors(request: PathRequest) -> Iterator[None]:
    """Convert an ``OSError`` to the ``CallError`` for the caller."""
    try:
        yield
    except OSError as error:
        raise call_error(error, request) from None


def call_error(error: OSError, request: PathRequest) -> CallError:
    kind, sentence = CALL_ERRORS.get(error.errno or 0, (Unavailable, (error.strerror or str(error)).lower()))
    return kind(f"{request.given}: {sentence.format(top=request.top)}")


CALL_ERRORS: dict[int, tuple[type[CallError], str]] = {
    errno.ENOENT: (NotFound, "there is no such file"),
    errno.ENOTDIR: (NotFound, "there is no such file: something on the way is no directory"),
    errno.EXDEV: (PermissionDenied, "leads out of {top}, and beyond that nothing is reached by this name"),
    errno.ELOOP: (PermissionDenied, "leads in circles, or over a link of /proc's, which isn't followed"),
    errno.EACCES: (PermissionDenied, "the mode of the file or of a directory doesn't allow it"),
    errno.EPERM: (PermissionDenied, "the file or its directory doesn't allow it"),
    errno.EROFS: (PermissionDenied, "is read-only"),
    errno.ENAMETOOLONG: (BadRequest, "a name in it is too long"),
    errno.EISDIR: (BadRequest, "is a directory"),
    errno.EINVAL: (BadRequest, "the file system takes no such name, or no such offset"),
    errno.EOVERFLOW: (BadRequest, "is beyond what the file system can count"),
    errno.ENOSPC: (QuotaExceeded, "there is no space left"),
    errno.EDQUOT: (QuotaExceeded, "there is no space left of what the quota grants"),
    errno.EFBIG: (QuotaExceeded, "the file would be larger than it may be"),
    errno.EBUSY: (Busy, "is in use: try again later"),
    errno.ETXTBSY: (Busy, "is a program that runs: try again when it has ended"),
    errno.EAGAIN: (Busy, "can't be opened at the moment: try again"),
    errno.EMFILE: (Busy, "the kernel has no file descriptor left: try again later"),
    errno.ENFILE: (Busy, "the host has no file descriptor left: try again later"),
    errno.ENOMEM: (Busy, "there is no memory left: try again later"),
    errno.ENOSYS: (Unavailable, "needs openat2, which this host hasn't got (Linux 5.6) or forbids"),
}
