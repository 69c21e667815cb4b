"""A strict reader of tar archives: files, directories and symbolic links with plain names, within bounds.

Archives come from anywhere, so each header is judged before anything is made of its entry, and what isn't needed here
is refused by name: hard links, devices, sparse files, PAX headers, names that leave the archive's top.
"""

import tarfile
from collections.abc import Iterator
from typing import IO, Final, Literal

from msgspec import Struct

BLOCK: Final = tarfile.BLOCKSIZE
MAX_ENTRIES: Final = 100_000
MAX_BYTES: Final = 1 << 30  # of all entries together
MAX_NAME: Final = 4096  # bytes
MAX_PARTS: Final = 100  # of a name, between slashes
_PIECE: Final = 1 << 20  # bytes

_KINDS: Final[dict[bytes, Literal["file", "directory", "link"]]] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "link",
}
_OTHERS: Final = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class BadArchive(Exception):
    """The archive can't be used; the text names the entry and says why."""


class Entry(Struct, frozen=True):
    """One entry: ``size`` bytes follow, of a file; ``target`` is a symbolic link's."""

    name: str
    kind: Literal["file", "directory", "link"]
    mode: int
    size: int
    target: str


class Reader:
    """Reads one archive from its beginning. Everything blocks."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = 0  # bytes of the present entry that weren't read

    def __iter__(self) -> Iterator[Entry]:
        count = total = 0
        name, target = "", ""
        while (info := self._read_header(count)) is not None:
            if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):  # of the entry that comes next
                text = self._read_long(info, count)
                name, target = (text, target) if info.type == tarfile.GNUTYPE_LONGNAME else (name, text)
                continue
            entry = _judge(info, (name or info.name).rstrip("/"), target or info.linkname)
            name, target, count, total = "", "", count + 1, total + entry.size
            if count > MAX_ENTRIES:
                raise BadArchive(f"{entry.name}: more than {MAX_ENTRIES} entries")
            if total > MAX_BYTES:
                raise BadArchive(f"{entry.name}: with it there are more than {MAX_BYTES} bytes")
            self._left = entry.size
            yield entry
            for _ in self.read_pieces(entry.name):
                pass
            self._read_exactly(-entry.size % BLOCK, entry.name)

    def read_pieces(self, name: str) -> Iterator[bytes]:
        """What is left of the present entry, which is called ``name``."""
        while self._left:
            piece = self._read_exactly(min(self._left, _PIECE), name)
            self._left -= len(piece)
            yield piece

    def _read_header(self, count: int) -> tarfile.TarInfo | None:
        block = self._read_exactly(BLOCK, f"entry {count + 1}")
        if not any(block):
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError):
            raise BadArchive(f"entry {count + 1}: no header of a tar archive") from None

    def _read_long(self, info: tarfile.TarInfo, count: int) -> str:
        if not 0 <= info.size <= MAX_NAME:
            raise BadArchive(f"entry {count + 1}: its name has more than {MAX_NAME} bytes")
        text = self._read_exactly(info.size + -info.size % BLOCK, f"entry {count + 1}")[: info.size]
        return text.rstrip(b"\0").decode("utf-8", "surrogateescape")

    def _read_exactly(self, size: int, name: str) -> bytes:
        found = self._file.read(size)
        if len(found) != size:
            raise BadArchive(f"{name}: the archive is cut there")
        return found


def find_fault(name: str) -> str | None:
    """Why an entry can't have this name; None if it can."""
    parts = name.split("/")
    if not name or name.startswith("/") or {"", ".", ".."} & {*parts} or "\0" in name or len(parts) > MAX_PARTS:
        return f"expected a relative path without . and .. and at most {MAX_PARTS} parts"
    if len(name.encode("utf-8", "surrogateescape")) >= MAX_NAME:
        return f"its name has more than {MAX_NAME - 1} bytes"
    return None


def _judge(info: tarfile.TarInfo, name: str, target: str) -> Entry:
    kind = _KINDS.get(info.type)
    shown = ascii(name[:200])
    if kind is None:
        raise BadArchive(f"{shown}: {_OTHERS.get(info.type, 'a kind of entry')} that isn't taken")
    if (why := find_fault(name)) is not None:
        raise BadArchive(f"{shown}: {why}")
    if "\0" in target or (kind == "link" and not target):
        raise BadArchive(f"{shown}: its target can't be used")
    size = info.size if kind == "file" else 0
    if size < 0 or (kind != "file" and info.size):
        raise BadArchive(f"{shown}: its size can't be")
    return Entry(name, kind, info.mode & 0o777, size, target if kind == "link" else "")
