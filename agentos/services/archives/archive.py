"""The archive of an agent: a tar with a manifest, and a digest of each entry at its end.

::

    manifest.json          format, name, declaration, and what was left out
    state.json             private keys
    mailbox.json           unread messages
    program/NAME           the script
    workspace/...          files, directories and symbolic links
    digests.json           sha256 by entry; of a link that of its target

Files are unpacked below a directory that only the kernel uses, and no link is followed on the way. Everything blocks.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from typing import IO, Final

from attrs import define, field

from agentos.services.snapshots import beneath
from agentos_sdk.values import HostIds

from .tar import MAX_BYTES, MAX_ENTRIES, BadArchive, Entry, Reader, find_fault

MANIFEST, STATE, MAILBOX, DIGESTS = "manifest.json", "state.json", "mailbox.json", "digests.json"
PARTS: Final[Mapping[str, int]] = {MANIFEST: 1 << 20, STATE: 96 << 20, MAILBOX: 32 << 20, DIGESTS: 32 << 20}  # bytes
PROGRAM, WORKSPACE = "program", "workspace"
MAX_SCRIPT = 4 << 20  # bytes


class TooLarge(Exception):
    """An agent has more than an archive takes; the text says what."""


class Writer:
    """Writes an archive that :func:`unpack` takes, or raises :class:`TooLarge`.

    ``skipped`` counts sockets, FIFOs, devices and mounts, which no archive has; ``files`` and ``bytes`` are of the
    workspace.
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._archive = tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115 - see finish
        self._digests: dict[str, str] = {}
        self._bytes = 0
        self.skipped = self.files = self.bytes = 0

    def add(self, name: str, data: bytes) -> None:
        if len(data) > PARTS.get(name, MAX_SCRIPT):
            raise TooLarge(f"{name!a}: it would have {len(data)} bytes, and may have {PARTS.get(name, MAX_SCRIPT)}")
        info = self._begin(name, tarfile.REGTYPE, 0o600, len(data))
        self._archive.addfile(info, io.BytesIO(data))
        self._digests[name] = hashlib.sha256(data).hexdigest()

    def add_tree(self, top: int) -> None:
        """Add all that is below a directory, given by its descriptor, as the workspace."""
        waiting = [""]
        while waiting:
            path = waiting.pop()
            with self._skipping_mounts(), beneath.open_directory(top, path) as here:
                self._add_directory(f"{WORKSPACE}/{path}".rstrip("/"), os.fstat(here).st_mode)
                for name in sorted(os.listdir(here)):
                    inside = f"{path}/{name}" if path else name
                    if self._add_entry(top, here, name, inside):
                        waiting.append(inside)

    def finish(self) -> None:
        self.add(DIGESTS, json.dumps(self._digests).encode())
        self._archive.close()

    def _add_entry(self, top: int, here: int, name: str, inside: str) -> bool:
        """Add one entry, unless it is a directory: then the answer is True."""
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
        whole = f"{WORKSPACE}/{inside}"
        if stat.S_ISDIR(found.st_mode):
            return True
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(name, dir_fd=here)
            info = self._begin(whole, tarfile.SYMTYPE, 0o777, 0)
            info.linkname = target
            self._archive.addfile(info)
            self._digests[whole] = hashlib.sha256(os.fsencode(target)).hexdigest()
        elif stat.S_ISREG(found.st_mode):
            with self._skipping_mounts():
                self._add_file(top, inside, whole)
        else:
            self.skipped += 1
        return False

    @contextlib.contextmanager
    def _skipping_mounts(self) -> Iterator[None]:
        """What can't be opened without crossing a mount, such as a protected name, is skipped."""
        try:
            yield
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self.skipped += 1

    def _add_file(self, top: int, inside: str, whole: str) -> None:
        with beneath.open_file(top, inside) as fd, open(fd, "rb", closefd=False) as file:
            found = os.fstat(fd)
            info = self._begin(whole, tarfile.REGTYPE, found.st_mode, found.st_size)
            hashed = _Hashed(file)
            self._archive.addfile(info, hashed)  # type: ignore[arg-type] # OSError if the file is shorter by now
            self._digests[whole] = hashed.digest.hexdigest()

    def _add_directory(self, whole: str, mode: int) -> None:
        self._archive.addfile(self._begin(whole, tarfile.DIRTYPE, mode, 0))
        self._digests[whole] = ""

    def _begin(self, name: str, kind: bytes, mode: int, size: int) -> tarfile.TarInfo:
        self._bytes += size
        if len(self._digests) >= MAX_ENTRIES or self._bytes > MAX_BYTES:
            raise TooLarge(f"{name!a}: an archive has at most {MAX_ENTRIES} entries and {MAX_BYTES} bytes")
        if (why := find_fault(name)) is not None:
            raise TooLarge(f"{name[:200]!a}: {why}")
        if name == WORKSPACE or name.startswith(f"{WORKSPACE}/"):
            self.files, self.bytes = self.files + 1, self.bytes + size
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.size = kind, mode & 0o777, size
        return info


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        found = self._file.read(size)
        self.digest.update(found)
        return found


@define
class Unpacked:
    """What an archive had: the JSON parts by name, and the script. Its workspace is on disk."""

    parts: dict[str, bytes] = field(factory=dict)
    script: tuple[str, bytes] | None = None
    files: int = 0  # entries of the workspace
    bytes: int = 0  # of these


def read_manifest(file: IO[bytes]) -> bytes:
    """The first entry of an archive, which is the manifest. Raises :class:`BadArchive`."""
    reader = Reader(file)
    for entry in reader:
        _check_part(entry, {}, first=True)
        return b"".join(reader.read_pieces(entry.name))
    raise BadArchive("manifest.json: the archive is empty")


def unpack(file: IO[bytes], top: int, owner: HostIds | None) -> Unpacked:
    """Read a whole archive; its workspace is unpacked into an empty directory, for ``owner``.

    Raises :class:`BadArchive`, which names the entry, or ``OSError``; then what was unpacked is of no use.
    """
    reader, found = Reader(file), Unpacked()
    digests: dict[str, str] = {}
    modes: list[tuple[str, int]] = []
    for entry in reader:
        name = entry.name
        if name in digests:
            raise BadArchive(f"{name!a}: it is there twice")
        head, _, rest = name.partition("/")
        if DIGESTS in found.parts:
            raise BadArchive(f"{name!a}: it comes after {DIGESTS}, which is the last")
        if name == WORKSPACE or (head == WORKSPACE and found.parts):
            found.files, found.bytes = found.files + 1, found.bytes + entry.size
            digests[name] = _put(reader, entry, top, rest, owner)
            if entry.kind == "directory":
                modes.append((rest, entry.mode))
        elif head == PROGRAM and found.parts:
            found.script = rest, _read_script(reader, entry, rest, found.script)
            digests[name] = hashlib.sha256(found.script[1]).hexdigest()
        else:
            _check_part(entry, found.parts, first=not found.parts)
            found.parts[name] = b"".join(reader.read_pieces(name))
            digests[name] = hashlib.sha256(found.parts[name]).hexdigest()
    _check_digests(found.parts, digests)
    for path, mode in reversed(modes):
        with beneath.open_directory(top, path) as here:
            os.fchmod(here, mode)
    beneath.sync(top)
    return found


def _check_part(entry: Entry, parts: Mapping[str, bytes], *, first: bool) -> None:
    name = entry.name
    if first and name != MANIFEST:
        raise BadArchive(f"{name!a}: expected {MANIFEST} as the first entry of an agent's archive")
    if name not in PARTS or name in parts or entry.kind != "file":
        raise BadArchive(f"{name!a}: no entry of an agent's archive")
    if entry.size > PARTS[name]:
        raise BadArchive(f"{name}: it has more than {PARTS[name]} bytes")


def _read_script(reader: Reader, entry: Entry, name: str, former: object) -> bytes:
    if entry.kind != "file" or not name or "/" in name or former is not None or entry.size > MAX_SCRIPT:
        raise BadArchive(f"{entry.name!a}: expected one script of at most {MAX_SCRIPT} bytes")
    return b"".join(reader.read_pieces(entry.name))


def _put(reader: Reader, entry: Entry, top: int, path: str, owner: HostIds | None) -> str:
    """Make one entry of the workspace; its digest."""
    try:
        if not path:
            if entry.kind != "directory":
                raise BadArchive(f"{entry.name}: expected a directory")
            if owner is not None:
                os.fchown(top, owner.uid, owner.gid)
            return ""
        with beneath.open_parent(top, path) as (parent, leaf):
            return _make(reader, entry, parent, leaf, owner)
    except FileExistsError:
        raise BadArchive(f"{entry.name!a}: it is there twice") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EXDEV, errno.ENOENT, errno.ENOTDIR):
            why = "the way to it is a link, or no directory of the archive"
            raise BadArchive(f"{entry.name!a}: {why}") from None
        if error.errno in (errno.ENAMETOOLONG, errno.EINVAL):
            raise BadArchive(f"{entry.name!a}: {error.strerror}") from None
        raise


def _make(reader: Reader, entry: Entry, parent: int, leaf: str, owner: HostIds | None) -> str:
    digest = ""
    if entry.kind == "directory":
        os.mkdir(leaf, 0o700, dir_fd=parent)
    elif entry.kind == "link":
        os.symlink(entry.target, leaf, dir_fd=parent)
        digest = hashlib.sha256(os.fsencode(entry.target)).hexdigest()
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(leaf, flags, 0o600, dir_fd=parent), "wb") as file:
            hashed = hashlib.sha256()
            for piece in reader.read_pieces(entry.name):
                hashed.update(piece)
                file.write(piece)
            os.fchmod(file.fileno(), entry.mode)
        digest = hashed.hexdigest()
    if owner is not None:
        os.chown(leaf, owner.uid, owner.gid, dir_fd=parent, follow_symlinks=False)
    return digest


def _check_digests(parts: Mapping[str, bytes], found: dict[str, str]) -> None:
    if DIGESTS not in parts:
        raise BadArchive(f"{DIGESTS}: it is missing, so the archive is cut")
    del found[DIGESTS]
    try:
        told = json.loads(parts[DIGESTS])
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise BadArchive(f"{DIGESTS}: expected an object")
    for name in sorted(told.keys() | found.keys()):
        if told.get(name) != found.get(name):
            raise BadArchive(f"{name!a}: its digest doesn't match, or it is missing")
