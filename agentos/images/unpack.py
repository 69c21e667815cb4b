"""Unpack the layers of an image, one over the other, into one directory.

Every path is opened below the directory without following a link, so nothing outside is reached, whatever an archive
holds. All that is unpacked belongs to this process's user, without set-id bits and attributes that give rights: what
the archive says of them is noted. Where a layer says so (``.wh.NAME``, ``.wh..wh..opq``), what the layers below it have
is removed. Everything blocks.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from agentos.services.snapshots import beneath

from .errors import BadArchive
from .owners import Owners
from .streams import MAX_READ, Stream
from .tar import Entry, clean_path, read_entries

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Bounds(Struct, frozen=True):
    """What an image may be: ``size`` is bytes of all contents in all layers, ``entries`` counts those of all layers."""

    size: int = 20 << 30
    entries: int = 1_000_000


class Amount(Struct):
    """What was counted towards bounds."""

    size: int = 0
    entries: int = 0


class Unpacking:
    """Unpacks into the directory ``top``, an open descriptor. :meth:`close` in the end.

    ``owners`` are those of a tree in which ``top`` is the directory at the path ``place``. ``amount`` is what counts
    towards the bounds already.
    """

    def __init__(self, top: int, bounds: Bounds, owners: Owners, place: str = "", amount: Amount | None = None) -> None:
        self._top, self._bounds, self._owners, self._place = top, bounds, owners, place
        self._amount = amount if amount is not None else Amount()
        self._directories: dict[str, tuple[int, int]] = {}  # mode and time, set in the end
        self._layer: set[str] = set()  # paths of this layer, and those above them
        self._cleared: set[str] = set()  # its directories that have nothing of the layers below
        self._parent: tuple[str, int] | None = None

    def add_layer(self, stream: Stream) -> None:
        """Unpack a layer over those before; the stream is read to its end. Raises :class:`BadArchive`."""
        self._layer, self._cleared = set(), set()
        for entry in read_entries(stream):
            self._count(entry.path, entry.size, stream.name)
            if entry.path:
                with _naming(entry, stream):
                    self._add(entry, stream)
        stream.drain()

    def _count(self, path: str, size: int, where: str) -> None:
        self._amount.entries += 1
        self._amount.size += size
        if self._amount.entries > self._bounds.entries:
            raise BadArchive(f"{where}: {path} is one of more than {self._bounds.entries} entries")
        if self._amount.size > self._bounds.size:
            raise BadArchive(f"{where}: with {path} it has more than {self._bounds.size} bytes: see --max-size")

    def finish(self) -> None:
        """Give the directories their modes and times."""
        self.close()
        for path in sorted(self._directories, key=lambda path: path.count("/"), reverse=True):
            mode, mtime = self._directories[path]
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                beneath.open_directory(self._top, path) as here,
            ):
                os.fchmod(here, mode)
                os.utime(here, (mtime, mtime))

    def close(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def _add(self, entry: Entry, stream: Stream) -> None:
        above, _, name = entry.path.rpartition("/")
        parent = self._open_parent(above, stream.name)
        if name.startswith(WHITEOUT):
            self._hide(above, parent, name)
            return
        found = _look(parent, name)
        self._note(entry.path)
        self._directories.pop(entry.path, None)
        if entry.kind == "directory":
            if found is None or not stat.S_ISDIR(found.st_mode):
                beneath.remove(parent, name, found)
                os.mkdir(name, 0o700, dir_fd=parent)
            self._directories[entry.path] = (entry.mode & 0o1777, entry.mtime)
            self._owners.note(self._inside(entry.path), entry.uid, entry.gid, entry.mode)
            return
        if entry.kind == "hard link":
            self._link(entry, stream, parent, name, found)
            return
        beneath.remove(parent, name, found)
        bits = entry.mode if entry.kind == "file" else 0
        self._owners.note(self._inside(entry.path), entry.uid, entry.gid, bits, entry.capability)
        if entry.kind == "link":
            if not entry.target:
                raise BadArchive(f"{stream.name}: {entry.path} is a link that leads to nothing")
            os.symlink(entry.target, name, dir_fd=parent)
            os.utime(name, (entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)
            return
        _write(entry, stream, parent, name)

    def _link(self, entry: Entry, stream: Stream, parent: int, name: str, found: os.stat_result | None) -> None:
        target = clean_path(entry.target, stream.name)
        try:
            with beneath.open_parent(self._top, target) as (there, other):
                is_there = _look(there, other)
                if is_there is None or not (stat.S_ISREG(is_there.st_mode) or stat.S_ISLNK(is_there.st_mode)):
                    raise FileNotFoundError
                if found is not None and os.path.samestat(found, is_there):
                    return
                beneath.remove(parent, name, found)
                os.link(other, name, src_dir_fd=there, dst_dir_fd=parent, follow_symlinks=False)
                self._owners.link(self._inside(entry.path), self._inside(target))
        except (FileNotFoundError, NotADirectoryError):
            raise BadArchive(f"{stream.name}: {entry.path} is a link to {target}, which is no file before it") from None

    def _inside(self, path: str) -> str:
        return f"{self._place}/{path}".lstrip("/")

    def _open_parent(self, path: str, where: str) -> int:
        """The directory of an entry; one that no entry names is made. It stays open until the next."""
        if self._parent is not None and self._parent[0] == path:
            return self._parent[1]
        self.close()
        try:
            fd = _open_fd(self._top, path)
        except FileNotFoundError:
            self._make_missing(path, where)
            fd = _open_fd(self._top, path)
        self._parent = (path, fd)
        return fd

    def _make_missing(self, path: str, where: str) -> None:
        parts = path.split("/")
        for path in ("/".join(parts[:count]) for count in range(1, len(parts) + 1)):
            with beneath.open_parent(self._top, path) as (above, name):
                if _look(above, name) is None:
                    self._count(path, 0, where)
                    os.mkdir(name, 0o700, dir_fd=above)
                    self._directories[path] = (0o755, 0)
                    self._owners.note(self._inside(path), 0, 0)
                    self._note(path)

    def _note(self, path: str) -> None:
        while path and path not in self._layer:
            self._layer.add(path)
            path = path.rpartition("/")[0]

    def _hide(self, above: str, parent: int, whiteout: str) -> None:
        """Remove what the layers below have of a name, or of all names in a directory."""
        if whiteout == OPAQUE:
            names = os.listdir(parent) if above not in self._cleared else []
            self._cleared.add(above)
        elif whiteout.startswith(f"{WHITEOUT}{WHITEOUT}"):
            return  # what aufs keeps for itself
        else:
            names = [whiteout.removeprefix(WHITEOUT)]
            if names[0] in ("", ".", ".."):
                raise BadArchive(f"{above}/{whiteout} hides a name that can't be")
        self.close()
        waiting = [f"{above}/{name}".lstrip("/") for name in names]
        while waiting:
            path = waiting.pop()
            with beneath.open_parent(self._top, path) as (here, name):
                found = _look(here, name)
                if path not in self._layer:
                    beneath.remove(here, name, found)
                elif found is not None and stat.S_ISDIR(found.st_mode) and path not in self._cleared:
                    self._cleared.add(path)
                    with beneath.open_directory(self._top, path) as inner:
                        waiting += [f"{path}/{each}" for each in os.listdir(inner)]


def _look(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _open_fd(top: int, path: str) -> int:
    with beneath.open_directory(top, path) as fd:
        return os.dup(fd)


def _write(entry: Entry, stream: Stream, parent: int, name: str) -> None:
    file = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
    try:
        left = entry.size
        while left:
            data = stream.read(min(left, MAX_READ))
            if not data:
                raise BadArchive(f"{stream.name}: it is cut within {entry.path}")
            left -= len(data)
            beneath.write_all(file, data)
        os.fchmod(file, entry.mode & 0o777)
        os.utime(file, (entry.mtime, entry.mtime))
    finally:
        os.close(file)


@contextlib.contextmanager
def _naming(entry: Entry, stream: Stream) -> Iterator[None]:
    """Have errors of Linux name the entry."""
    try:
        yield
    except OSError as error:
        why = str(error.strerror)
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EXDEV):
            why = "a directory on its path is a link or a file"
        raise BadArchive(f"{stream.name}: {entry.path} can't be unpacked: {why}") from None
