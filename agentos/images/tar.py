"""Tar archives as a sequence of entries: ustar, pax and GNU's long names, read forward only.

OFFSET  SIZE  FIELD of a header, which has 512 bytes
0       100   name
100     8     mode, octal, as all numbers: or binary, if the first bit is set
108     8     uid
116     8     gid
124     12    size in bytes of the content, which follows, filled up to 512
136     12    mtime, seconds
148     8     sum of all bytes of the header, taken with spaces here
156     1     type
157     100   target of a link
257     6     "ustar"
345     155   what stands before the name, if it is ustar's

Python's tarfile isn't used: it reads headers of any size into memory, and takes a damaged header for the end.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from .errors import BadArchive
from .streams import MAX_READ, Stream

BLOCK = 512
MAX_PATH = 4000  # bytes; Linux takes 4,095 for a path below a directory
MAX_NAME = 255  # bytes
_KINDS: dict[bytes, Literal["file", "directory", "link", "hard link"]] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hard link",
    b"2": "link",
    b"5": "directory",
}
_REFUSED = {b"3": "a device", b"4": "a device", b"6": "a FIFO", b"S": "a sparse file"}
_MAX_NUMBER = 1 << 62
_CAPABILITY = "SCHILY.xattr.security.capability"  # a file's capabilities
_TAKEN = ("path", "linkpath", "size", "mtime", "uid", "gid", _CAPABILITY)  # of a pax header
_SPARSE = "GNU.sparse."  # what the names of others begin with


class Entry(NamedTuple):
    """An entry. ``path`` is relative, without ``.`` and ``..``, and empty for the top; ``target`` is a link's.

    The content of a file follows in the stream; what of it isn't read is left out. ``capability`` is the value of its
    attribute of that name.
    """

    path: str
    kind: Literal["file", "directory", "link", "hard link"]
    mode: int
    size: int
    mtime: int
    target: str
    uid: int
    gid: int
    capability: bytes


def read_entries(stream: Stream) -> Iterator[Entry]:
    """The entries of an archive. Raises :class:`BadArchive`, also if the archive has no end."""
    common: dict[str, str] = {}
    special: dict[str, str] = {}
    while True:
        header = stream.read(BLOCK)
        if len(header) < BLOCK:
            raise BadArchive(f"{stream.name}: it is cut: it has no end")
        if not any(header):
            return
        check_sum(header, stream)
        kind, size = header[156:157], _read_number(header[124:136], stream)
        if kind in b"xgLK" and kind:
            found = _read_special(stream, kind, size)
            (common if kind == b"g" else special).update(found)
            continue
        entry = _make_entry(stream, header, kind, size, {**common, **special})
        special = {}
        end = stream.position + (-(-entry.size // BLOCK) * BLOCK if entry.kind == "file" else 0)
        yield entry
        stream.skip(end - stream.position)


def _make_entry(stream: Stream, header: bytes, kind: bytes, size: int, special: dict[str, str]) -> Entry:
    name = _text(header[:100])
    if header[257:263] == b"ustar\0" and header[345]:
        name = f"{_text(header[345:500])}/{name}"
    name = special.get("path", name)
    shown = _show(name)
    if _SPARSE in special:
        kind = b"S"
    if kind in _REFUSED:
        raise BadArchive(f"{stream.name}: {shown} is {_REFUSED[kind]}, which no image may have: leave it out")
    if kind not in _KINDS:
        raise BadArchive(f"{stream.name}: {shown} is of an unknown kind ({kind!r})")
    if "size" in special:
        size = int(special["size"]) if special["size"].isdecimal() and len(special["size"]) < 20 else -1
    if not 0 <= size <= _MAX_NUMBER:
        raise BadArchive(f"{stream.name}: {shown} has a size that can't be ({size})")
    is_directory = kind == b"5" or (kind in (b"0", b"\0") and name.endswith("/"))
    target = special.get("linkpath", _text(header[157:257]))
    if "\0" in target or len(target) > MAX_PATH:
        raise BadArchive(f"{stream.name}: {shown} leads to a path that can't be: it has a NUL or is too long")
    return Entry(
        clean_path(name, stream.name),
        "directory" if is_directory else _KINDS[kind],
        _read_number(header[100:108], stream) & 0o7777,
        0 if is_directory else size,
        _read_time(special.get("mtime", ""), header, stream),
        target,
        _read_id(special.get("uid", ""), header[108:116], stream),
        _read_id(special.get("gid", ""), header[116:124], stream),
        special.get(_CAPABILITY, "").encode(errors="surrogateescape"),
    )


def clean_path(name: str, where: str) -> str:
    """A name in an archive as a path below the image's root. Raises :class:`BadArchive`."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise BadArchive(f"{where}: {_show(name)} has {'..' if '..' in parts else 'a NUL'} in its path")
    path = "/".join(parts)
    data = path.encode(errors="surrogateescape")
    if len(data) > MAX_PATH or any(len(part) > MAX_NAME for part in data.split(b"/")):
        raise BadArchive(f"{where}: {_show(name)} is longer than Linux takes")
    return path


def _show(name: str) -> str:
    """A name for a message."""
    text = name if len(name) <= 100 else f"{name[:100]}..."
    return text if text.isprintable() and text else repr(text)


def _read_special(stream: Stream, kind: bytes, size: int) -> dict[str, str]:
    """What a header says of the next entry, or (pax's ``g``) of all that follow."""
    if not 0 < size <= MAX_READ - BLOCK:
        raise BadArchive(f"{stream.name}: a header of {size} bytes")
    data = stream.read(-(-size // BLOCK) * BLOCK)
    if len(data) < size:
        raise BadArchive(f"{stream.name}: it is cut within a header")
    data = data[:size]
    if kind in b"LK":
        return {"path" if kind == b"L" else "linkpath": _text(data)}
    found, place = {}, 0
    while place < size and data[place]:
        digits, is_begun, _ = data[place : place + 20].partition(b" ")
        end = place + int(digits) if digits.isdigit() and is_begun else 0
        name, is_pair, value = data[place + len(digits) + 1 : end].partition(b"=")
        if not place < end <= size or data[end - 1] != 10 or not is_pair:
            raise BadArchive(f"{stream.name}: a damaged pax header")
        key = name.decode(errors="surrogateescape")
        if key in _TAKEN:
            found[key] = value[:-1].decode(errors="surrogateescape")
        if key.startswith(_SPARSE):
            found[_SPARSE] = ""
        place = end
    return found


def _read_number(field: bytes, stream: Stream) -> int:
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big") if field[0] == 0x80 else -1
    digits = field.partition(b"\0")[0].strip()
    try:
        return int(digits or b"0", 8)
    except ValueError:
        raise BadArchive(f"{stream.name}: a damaged header: {digits!r} is no octal number") from None


def _read_id(given: str, field: bytes, stream: Stream) -> int:
    """A uid or gid; -1 for one that can't be."""
    if given:
        return int(given) if given.isdecimal() and len(given) < 12 else -1
    return _read_number(field, stream)


def _read_time(given: str, header: bytes, stream: Stream) -> int:
    seconds = given.partition(".")[0]
    if seconds.isdecimal() and len(seconds) < 12:
        return int(seconds)
    return max(0, min(_read_number(header[136:148], stream), 1 << 33))


def check_sum(header: bytes, stream: Stream) -> None:
    """Raise :class:`BadArchive` unless these 512 bytes are a header."""
    digits, rest = header[148:156].partition(b"\0")[0].strip(), header[:148] + header[156:]
    found = int(digits, 8) if digits.isdigit() and not digits.strip(b"01234567") else -1
    signed = sum(byte - 256 if byte > 127 else byte for byte in rest) if max(rest) > 127 else sum(rest)
    if found - 8 * ord(" ") not in (sum(rest), signed):
        raise BadArchive(f"{stream.name}: it is no tar archive, or a header of it is damaged")


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="surrogateescape")
