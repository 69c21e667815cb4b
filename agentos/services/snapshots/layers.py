"""Layers in overlayfs's format: several seen as one, copied into one, and recognized by a digest.

In a layer a character device 0:0 hides a name of the layers below, and a directory with ``user.overlay.opaque`` all
that is below it there. A sealed layer is one that nothing changes any more. Everything blocks.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, MutableMapping, Sequence

from msgspec import Struct

from . import beneath
from .beneath import Stamp, stamp_of

MAX_PATH = 4000  # bytes; Linux takes 4,095 for a path below a directory
_OPAQUE = "user.overlay.opaque"
_XATTRS = ("user.", "security.capability", "system.posix_acl_access", "system.posix_acl_default")
_FICLONE = 0x40049409  # of linux/fs.h
Digests = MutableMapping[tuple[int, Stamp], str]
"""The sha256 of files' contents, in hex, by device and stamp."""
_NOTHING_KNOWN: Mapping[tuple[int, Stamp], str] = {}
_NO_CLONE = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)


class Uncopied(OSError):
    """Something in a layer can't be copied; ``filename`` is its path in the workspace."""


class Seal(Struct, frozen=True):
    """What a sealed layer must be: the sha256 of all that is in it, and the uid that its top belongs to.

    ``bytes`` on disk, ``paths`` below the top.
    """

    digest: str
    uid: int
    bytes: int
    paths: int


class Merged(Struct, frozen=True):
    """A directory as the layers show it: by name the directory, open, of the layer on top that has the name.

    ``layers`` are those that show what is below, and ``hides`` says that nothing of the layers beneath them does.
    """

    names: Mapping[str, int]
    tops: Sequence[int]  # this directory in each of the layers that have it
    layers: Sequence[int]
    hides: bool


@contextlib.contextmanager
def open_merged(layers: Sequence[int], path: str) -> Iterator[Merged]:
    """Open a directory of layers, which are open and the newest first. ``OSError`` if the first that has it can't."""
    names: dict[str, int] = {}
    tops: list[int] = []
    hides, shown = False, 0
    with contextlib.ExitStack() as stack:
        for layer in layers:
            shown += 1
            try:
                here = stack.enter_context(beneath.open_directory(layer, path))
            except FileNotFoundError:
                continue
            except NotADirectoryError:  # hidden, or a file: what is below it isn't seen
                hides = True
                break
            tops.append(here)
            for name in os.listdir(here):
                names.setdefault(name, here)
            if is_opaque(here):
                hides = True
                break
        if not tops:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        yield Merged(names, tops, layers[:shown], hides)


@contextlib.contextmanager
def open_file(layers: Sequence[int], path: str) -> Iterator[int]:
    """The regular file at a path in the first layer that has it, for reading; as :func:`beneath.open_file`."""
    with contextlib.ExitStack() as stack:
        for number, layer in enumerate(layers, 1):
            try:
                fd = stack.enter_context(beneath.open_file(layer, path))
                break
            except FileNotFoundError:
                if number == len(layers):
                    raise
        yield fd


def is_opaque(directory: int) -> bool:
    try:
        return os.getxattr(directory, _OPAQUE) == b"y"
    except OSError:  # it has none, or the file system has no attributes
        return False


def is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def compute_seal(tree: int, known: Mapping[tuple[int, Stamp], str] = _NOTHING_KNOWN) -> Seal:
    """The seal of a layer. What can't be read counts by its size and mode, and what is ``known`` isn't read again."""
    digest, waiting, linked = hashlib.sha256(), [""], set[int]()
    size = paths = 0
    while waiting:
        path = waiting.pop()
        with beneath.open_directory(tree, path) as here:
            digest.update(f"{path!r} {is_opaque(here)}\n".encode(errors="surrogatepass"))
            for name in sorted(os.listdir(here)):
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
                paths += 1
                if found.st_ino not in linked:
                    size += found.st_blocks * 512
                    linked.add(found.st_ino)
                row = (name, found.st_mode, _describe_content(here, name, found, known))
                digest.update(f"{row!r}\n".encode(errors="surrogatepass"))
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(f"{path}/{name}".lstrip("/"))
    return Seal(digest.hexdigest(), os.fstat(tree).st_uid, size, paths)


def _describe_content(here: int, name: str, found: os.stat_result, known: Mapping[tuple[int, Stamp], str]) -> str:
    if stat.S_ISLNK(found.st_mode):
        return os.readlink(name, dir_fd=here)
    if not stat.S_ISREG(found.st_mode):
        return str(found.st_rdev)
    try:
        with beneath.open_file(here, name) as file:
            content = known.get((found.st_dev, stamp_of(found))) or beneath.copy(file)
            return f"{found.st_mtime_ns} {content}"
    except PermissionError:  # without root the agent may have closed it to its user, and so to us
        return f"{found.st_mtime_ns} {found.st_size}"


def copy_layers(layers: Sequence[int], target: int) -> None:
    """Make one layer of several, the newest first, in an empty directory: over any directory it shows the same.

    Owners (with root), modes, times, extended attributes and hard links stay as they are. :class:`Uncopied`
    names what can't be copied.
    """
    waiting: list[tuple[str, Sequence[int]]] = [("", layers)]
    made: list[tuple[str, os.stat_result, dict[str, bytes]]] = []
    links: dict[tuple[int, int], str] = {}
    while waiting:
        path, shown = waiting.pop()
        if len(os.fsencode(path)) > MAX_PATH:
            raise Uncopied(errno.ENAMETOOLONG, "too deep to be copied", path[:200])
        with _naming(path), open_merged(shown, path) as merged, beneath.open_directory(target, path) as there:
            attributes = _read_xattrs(merged.tops[0])
            if merged.hides:
                attributes[_OPAQUE] = b"y"
            made.append((path, os.fstat(merged.tops[0]), attributes))
            for name, here in merged.names.items():
                found, inner = os.stat(name, dir_fd=here, follow_symlinks=False), f"{path}/{name}".lstrip("/")
                if stat.S_ISDIR(found.st_mode):
                    os.mkdir(name, 0o700, dir_fd=there)
                    waiting.append((inner, merged.layers))
                elif (former := links.get((found.st_dev, found.st_ino))) is not None:
                    os.link(former, name, src_dir_fd=target, dst_dir_fd=there, follow_symlinks=False)
                else:
                    with _naming(inner):
                        _copy_entry(here, there, name, found)
                    if found.st_nlink > 1 and not is_whiteout(found):  # overlayfs links its whiteouts to each other
                        links[found.st_dev, found.st_ino] = inner
    for path, found, attributes in reversed(made):  # what is in a directory comes before its own time and mode
        with beneath.open_directory(target, path) as there:
            _finish(there, found, attributes)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Have errors name the path in the workspace, and nothing of the host's."""
    try:
        yield
    except Uncopied:
        raise
    except OSError as error:
        raise Uncopied(error.errno, error.strerror, path) from None


def _copy_entry(here: int, there: int, name: str, found: os.stat_result) -> None:
    mode = found.st_mode
    if stat.S_ISREG(mode):
        _copy_file(here, there, name, found)
        return
    if is_whiteout(found):
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=there)
        return
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
    elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        os.mknod(name, mode, dir_fd=there)
        os.chmod(name, stat.S_IMODE(mode), dir_fd=there)
    else:
        raise OSError(errno.EINVAL, "a device can't be copied", name)
    if os.geteuid() == 0:
        os.chown(name, found.st_uid, found.st_gid, dir_fd=there, follow_symlinks=False)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=there, follow_symlinks=False)


def _copy_file(here: int, there: int, name: str, found: os.stat_result) -> None:
    target = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=there)
    try:
        with beneath.open_file(here, name) as source:
            copy_content(source, target)
            _finish(target, found, _read_xattrs(source))
    finally:
        os.close(target)


def copy_content(source: int, target: int) -> None:
    """Copy a file into an empty one; on a file system with reflinks they share their blocks."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
        beneath.copy_data(source, target)


def _read_xattrs(fd: int) -> dict[str, bytes]:
    return {name: os.getxattr(fd, name) for name in os.listxattr(fd) if name.startswith(_XATTRS)}


def _finish(fd: int, found: os.stat_result, attributes: Mapping[str, bytes]) -> None:
    """Give a copy its owner, mode, attributes and times."""
    if os.geteuid() == 0:
        os.fchown(fd, found.st_uid, found.st_gid)
    for name, value in attributes.items():
        os.setxattr(fd, name, value)
    os.fchmod(fd, stat.S_IMODE(found.st_mode))
    os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))
