"""Owners, set-id bits and capabilities of an image's files, for those agents that are root of it.

All files of an image's tree belong to the kernel's user, so that an agent with one id owns them. What an image gives to
others, or lets run with more rights, is listed here by its path, and is in a second tree beside the first, ``owned``,
which root inside sees over it. On disk the ids of that tree are the store's, which no process ever has: a set-id bit
gives nothing on the host. Only root can give files to them. docs/decisions/0120. Everything blocks.
"""

import contextlib
import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from agentos.private_files import UnsafeFile, display_path, replace_file
from agentos.sandbox.host_ids import STORE_IDS
from agentos.services.snapshots import beneath, layers
from agentos.structs import learn, read_json

from .errors import BadStore

LIST, TREE = "owners.json", "owned"
MOST_ID = 65_535
SET_ID = stat.S_ISUID | stat.S_ISGID
CAPABILITY = "security.capability"
_SECOND, _THIRD, _REVISION = 0x0200_0000, 0x0300_0000, 0xFF00_0000  # VFS_CAP_REVISION_*; the third names a root
_WORDS = struct.Struct("<5I")  # of the second revision: revision and flags, then permitted and inheritable, twice


class Owner(Struct, frozen=True, array_like=True):
    """Of one path: its ids in the image, its set-id bits, and its capabilities as the second revision has them."""

    path: bytes
    uid: int
    gid: int
    bits: int = 0
    capability: bytes = b""


learn(list[Owner])


class Owners:
    """What isn't simply root's in one tree. A path is noted or given whenever it is made there."""

    def __init__(self) -> None:
        self._found: dict[str, Owner] = {}
        self.beyond = 0  # entries whose ids are none that root inside has: they are root's

    def __len__(self) -> int:
        return len(self._found)

    def find(self, path: str) -> Owner:
        """Of a path without links."""
        return self._found.get(path, Owner(os.fsencode(path), 0, 0))

    def note(self, path: str, uid: int, gid: int, mode: int = 0, capability: bytes = b"") -> None:
        """Say whose a new entry is; ``capability`` is the value of its attribute."""
        if not (0 <= uid <= MOST_ID and 0 <= gid <= MOST_ID):
            self.beyond += 1
            uid = gid = 0
        owner = Owner(os.fsencode(path), uid, gid, mode & SET_ID, _second_revision(capability))
        if owner == Owner(owner.path, 0, 0):
            self._found.pop(path, None)
        else:
            self._found[path] = owner

    def link(self, path: str, other: str) -> None:
        """Say that a new entry is another one's file."""
        owner = self._found.get(other, Owner(b"", 0, 0))
        self.note(path, owner.uid, owner.gid, owner.bits)
        if owner.capability:
            self._found[path] = msgspec.structs.replace(owner, path=os.fsencode(path))

    def change(self, path: str) -> None:
        """Say that the content of a file has changed: its owner stays."""
        if (owner := self._found.get(path)) is not None:
            self.note(path, owner.uid, owner.gid)

    def become(self, other: "Owners") -> None:
        self._found, self.beyond = dict(other._found), other.beyond

    def prune(self, top: int) -> None:
        """Forget what isn't in the tree any more."""
        for path in [path for path in self._found if beneath.look(top, path) is None]:
            del self._found[path]

    def digest(self) -> str:
        return hashlib.sha256(self._encode()).hexdigest() if self._found else ""

    def save(self, place: Path) -> None:
        """Write the list into the directory that the tree is in."""
        if self._found:
            replace_file(place / LIST, self._encode())

    def lay_over(self, top: int, place: Path) -> None:
        """Make the second tree anew, in the directory that the first one, ``top``, is in."""
        with beneath.open_top(display_path(place)) as here:
            beneath.remove_tree(here, TREE)
            if self._found:
                os.mkdir(TREE, 0o700, dir_fd=here)
                with beneath.open_directory(here, TREE) as over:
                    self._fill(top, over)

    def _encode(self) -> bytes:
        return msgspec.json.encode([self._found[path] for path in sorted(self._found)])

    def _fill(self, top: int, over: int) -> None:
        made = {"": os.fstat(top)}
        links: dict[tuple[int, int], str] = {}
        for path in sorted(self._found):
            if (found := beneath.look(top, path)) is None:
                continue
            for each in _steps_to(path if stat.S_ISDIR(found.st_mode) else path.rpartition("/")[0]):
                if each not in made and (status := beneath.look(top, each)) is not None:
                    with beneath.open_parent(over, each) as (there, name):
                        os.mkdir(name, 0o700, dir_fd=there)
                    made[each] = status
            former = links.get((found.st_dev, found.st_ino))
            if former is not None:
                with beneath.open_parent(over, former) as (here, name), beneath.open_parent(over, path) as (there, new):
                    os.link(name, new, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
            elif not stat.S_ISDIR(found.st_mode):
                _copy(top, over, self._found[path], found)
                links[found.st_dev, found.st_ino] = path
        for path, status in reversed(made.items()):
            owner = self._found.get(path, Owner(b"", 0, 0))
            with beneath.open_directory(over, path) as there:
                _give(there, owner, status)


def read_owners(place: Path) -> Owners:
    """Those of the tree in this directory; an image of an earlier release has none. Raises :class:`BadStore`."""
    owners = Owners()
    with contextlib.suppress(FileNotFoundError):
        try:
            found = read_json(place / LIST, list[Owner])
        except (msgspec.MsgspecError, UnsafeFile) as error:
            raise BadStore(f"{place}/{LIST} is damaged ({error}): import the image again") from None
        owners._found = {os.fsdecode(one.path): one for one in found}
    return owners


def can_hold() -> bool:
    """Whether this process can give files to the ids of the store."""
    first, count = STORE_IDS
    return os.geteuid() == 0 and all(_is_mapped(f"/proc/self/{name}", first, count) for name in ("uid_map", "gid_map"))


def _is_mapped(path: str, first: int, count: int) -> bool:
    with open(path, encoding="ascii") as file:
        lines = [tuple(map(int, line.split())) for line in file]
    return any(begin <= first and first + count <= begin + size for begin, _, size in lines)


def _steps_to(path: str) -> Iterator[str]:
    parts = path.split("/") if path else []
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _copy(top: int, over: int, owner: Owner, found: os.stat_result) -> None:
    path = os.fsdecode(owner.path)
    with beneath.open_parent(top, path) as (here, name), beneath.open_parent(over, path) as (there, _):
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
            ids = STORE_IDS[0] + owner.uid, STORE_IDS[0] + owner.gid
            os.chown(name, *ids, dir_fd=there, follow_symlinks=False)
            os.utime(name, ns=(found.st_mtime_ns,) * 2, dir_fd=there, follow_symlinks=False)
            return
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        target = os.open(name, flags, 0o600, dir_fd=there)
        try:
            with beneath.open_file(here, name) as source:
                layers.copy_content(source, target)
            _give(target, owner, found)
        finally:
            os.close(target)


def _give(fd: int, owner: Owner, status: os.stat_result) -> None:
    """Give a file or directory to the store's ids, and its bits only then: they must never be the host's."""
    os.fchown(fd, STORE_IDS[0] + owner.uid, STORE_IDS[0] + owner.gid)
    if owner.capability:
        first, *words = _WORDS.unpack(owner.capability)
        value = struct.pack("<6I", first & ~_REVISION | _THIRD, *words, STORE_IDS[0])
        os.setxattr(fd, CAPABILITY, value)
    os.fchmod(fd, status.st_mode & 0o1777 | owner.bits)
    os.utime(fd, ns=(status.st_mtime_ns,) * 2)


def _second_revision(value: bytes) -> bytes:
    """The value of the attribute without the id of a root; empty for one that no Linux has."""
    if len(value) not in (_WORDS.size, _WORDS.size + 4):
        return b""
    first, *words = _WORDS.unpack_from(value)
    return _WORDS.pack(first & ~_REVISION | _SECOND, *words) if first & _REVISION in (_SECOND, _THIRD) else b""
