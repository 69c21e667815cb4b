"""Streams of an archive: compressed or not, measured, with a digest, and with an end to how much is read.

What is read is hostile: no read is larger than :data:`MAX_READ`, and nothing seeks but forward. Everything blocks.
"""

import contextlib
import gzip
import hashlib
import importlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from .errors import BadArchive

if TYPE_CHECKING:
    from bz2 import BZ2Decompressor
    from lzma import LZMADecompressor

MAX_READ = 1 << 20  # bytes
PACKED_READ = 64 << 10  # bytes of packed data: each stream in them may be empty, and leaves a copy of those behind it
MAX_DICTIONARY = 256 << 20  # bytes of memory that unpacking xz may take; `xz -9` needs 65 MiB
ZSTD_MODULES = ("compression.zstd", "zstandard")


class Stream:
    """An archive's data: counted, and with a sha256 if ``hashed``. More than ``limit`` bytes is an error.

    ``name`` is what errors call it.
    """

    def __init__(self, raw: BinaryIO, name: str, limit: int, *, hashed: bool = True) -> None:
        self.name, self.position = name, 0
        self._raw, self._limit = raw, limit
        self._digest = hashlib.sha256() if hashed else None

    @property
    def digest(self) -> str:
        """Of what was read, as ``sha256:HEX``."""
        assert self._digest is not None, "it is hashed"
        return f"sha256:{self._digest.hexdigest()}"

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, fewer only at the end."""
        if not 0 <= size <= MAX_READ:
            raise BadArchive(f"{self.name}: a header of {size} bytes")
        with naming_damage(self.name):
            data = self._raw.read(size)
        self.position += len(data)
        if self.position > self._limit:
            raise BadArchive(f"{self.name}: more than {self._limit} bytes when it is unpacked: see --max-size")
        if self._digest is not None:
            self._digest.update(data)
        return data

    def skip(self, size: int) -> None:
        """Leave out so many bytes; at the end fewer. Without a digest they aren't even read."""
        if size > 0 and self._digest is None and self._raw.seekable():
            self._raw.seek(size, os.SEEK_CUR)
            self.position += size
            return
        while size > 0 and (data := self.read(min(size, MAX_READ))):
            size -= len(data)

    def drain(self) -> None:
        """Read all that is left."""
        while self.read(MAX_READ):
            pass


@contextlib.contextmanager
def naming_damage(name: str) -> Iterator[None]:
    """Raise :class:`BadArchive` for what the readers of packed data raise."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise BadArchive(f"{name}: it is cut or damaged: {error}") from None
    except Exception as error:
        if type(error).__name__ not in ("ZstdError", "ZstdDecompressionError", "LZMAError"):
            raise
        raise BadArchive(f"{name}: it is cut or damaged: {error}") from None


class Hashed(io.RawIOBase):
    """A file with the sha256 and the number of the bytes that were read from it."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._digest, self.size = raw, hashlib.sha256(), 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._digest.hexdigest()}"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        self._digest.update(data)
        self.size += len(data)
        return len(data)


class Section(io.RawIOBase):
    """Some bytes of a file that can seek."""

    def __init__(self, raw: BinaryIO, start: int, size: int) -> None:
        self._raw, self._place, self._end = raw, start, start + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        self._raw.seek(self._place)
        data = self._raw.read(min(len(buffer), self._end - self._place))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def buffered(raw: io.RawIOBase) -> io.BufferedReader:
    return io.BufferedReader(raw, MAX_READ)


def decompress(raw: io.BufferedReader, name: str) -> BinaryIO:
    """What the data is when unpacked, by how it begins; ``name`` is what errors call it."""
    try:
        begin = raw.peek(8)
    except OSError as error:
        raise BadArchive(f"{name}: can't be read: {error.strerror}") from None
    if begin.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[return-value]
    if begin.startswith(b"\x28\xb5\x2f\xfd"):
        return _open_zstd(raw, name)
    if begin.startswith(b"\xfd7zXZ"):
        import lzma

        return buffered(_Unpacked(raw, lambda: lzma.LZMADecompressor(memlimit=MAX_DICTIONARY)))
    if begin.startswith(b"BZh"):
        import bz2

        return buffered(_Unpacked(raw, bz2.BZ2Decompressor))
    return raw


class _Unpacked(io.RawIOBase):
    """What packed streams are, one after the other; ``make`` makes a decompressor for each.

    Those of the standard library's files bound no memory.
    """

    def __init__(self, raw: io.BufferedReader, make: "Callable[[], LZMADecompressor | BZ2Decompressor]") -> None:
        self._raw, self._make, self._unpack = raw, make, make()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        found = b""
        while not found:
            data = b""
            if self._unpack.eof:
                data = (self._unpack.unused_data or self._raw.read1(PACKED_READ)).lstrip(b"\0")  # padding
                if not data:
                    return 0
                self._unpack = self._make()
            elif self._unpack.needs_input and not (data := self._raw.read1(PACKED_READ)):
                raise EOFError("it has no end")
            try:
                found = self._unpack.decompress(data, len(buffer))
            except OSError as error:  # what bz2 raises
                raise ValueError(str(error)) from None
        buffer[: len(found)] = found
        return len(found)


def _open_zstd(raw: BinaryIO, name: str) -> BinaryIO:
    for module in ZSTD_MODULES:
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        if module == "zstandard":
            return io.BufferedReader(found.ZstdDecompressor().stream_reader(raw, read_across_frames=True), MAX_READ)
        opened: BinaryIO = found.ZstdFile(raw)
        return opened
    raise BadArchive(
        f"{name}: it is packed by zstd, which this Python can't read: use Python 3.14 or install zstandard into its "
        "environment, or unpack the archive (`zstd -dc`, or `skopeo copy --dest-compress-format gzip`)"
    )
