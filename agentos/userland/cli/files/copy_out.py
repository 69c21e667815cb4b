"""Copies a file or a directory out of a jail: a tar archive that a command there writes, read as data that may lie.

A hostile agent may have made it. What is written on the host is below descriptors of directories, follows no symlink,
and consists of regular files and directories.
"""

import os
import posixpath
import stat
import sys
import tarfile
from binascii import Error, a2b_base64
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from agentos.userland.cli.common import Failed, agent_fields
from agentos.userland.whole_files import write_all
from agentos_sdk import AgentOSClient

from .copied import MAX_DEPTH, TOO_DEEP, Copied

BLOCK = tarfile.BLOCKSIZE
FILE_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE)
LONG_TYPES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
PIECE = 48 << 10  # bytes that are written at a time
MAX_BYTES = 4 << 30  # bytes in all: sparse files make them from nothing
MAX_ENTRIES = 100_000  # files and directories
MAX_NAME = 4096  # bytes of a path
PACK = 'set -o pipefail; cd -- "$1" && tar --format=gnu -cf - -- "$2" | base64 -w 0'


def copy_out(client: AgentOSClient, name: str, path: str, target: str, copied: Copied) -> None:
    with ExitStack() as stack:
        reader = stack.enter_context(Archive(client, name, path))
        entries = reader.entries(posixpath.basename(path), copied)
        if target == "-":
            copy_to_stdout(entries, reader, copied)
        else:
            directory, top = find_place(target, posixpath.basename(path))
            try:
                fd = stack.enter_context(open_directory(directory))
            except OSError as error:
                raise Failed(f"{directory}: {error.strerror}") from None
            for info, parts in entries:
                extract(info, [top, *parts[1:]], fd, reader, copied)
        reader.finish()
        if not copied.entries and not copied.skipped:
            raise Failed(f"{name}:{path}: nothing came")


class Archive:
    """The tar archive of one path in a jail, as it comes; a context manager that ends its command."""

    def __init__(self, client: AgentOSClient, name: str, path: str) -> None:
        self.where = f"{name}:{path}"
        words = ["bash", "-c", PACK, "cp", posixpath.dirname(path), posixpath.basename(path)]
        self._parts = client.exec_stream(words, None, 0.0, **agent_fields(name))
        self._text, self._data, self._told = "", bytearray(), ""
        self._total = 0

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *exc: object) -> None:
        self._parts.close()

    def read(self, size: int) -> bytes:
        """Exactly that many bytes; fails where the archive ends before."""
        while len(self._data) < size:
            if not self._receive():
                raise Failed(self._explain("the copy broke off"))
        data = bytes(self._data[:size])
        del self._data[:size]
        return data

    def finish(self) -> None:
        """Read to the end, and fail if the command did."""
        while self._receive():
            self._data.clear()
        done = self._parts.executed
        if done is not None and done["exit_code"]:
            raise Failed(self._explain(f"tar ended with status {done['exit_code']}"))

    def entries(self, top: str, copied: Copied) -> Iterator[tuple[tarfile.TarInfo, list[str]]]:
        """Files and directories with the parts of their path; the data of each file has to be read meanwhile."""
        long_name: str | None = None
        while (block := self.read(BLOCK)) != bytes(BLOCK):
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise Failed(f"{self.where}: what came is no tar archive: {error}") from None
            if info.type in LONG_TYPES and info.size >= 0:
                data = b""
                for piece in self.pieces(info.size):
                    data = (data + piece)[: MAX_NAME + 1]
                if info.type == tarfile.GNUTYPE_LONGNAME:
                    long_name = os.fsdecode(data.rstrip(b"\0"))
                continue
            name, long_name = long_name or info.name, None
            copied.entries += 1
            if copied.entries > MAX_ENTRIES:
                raise Failed(f"{self.where}: expected at most {MAX_ENTRIES} files and directories")
            parts = name.rstrip("/").split("/")
            if info.size < 0 or info.type == tarfile.GNUTYPE_SPARSE:
                raise Failed(f"{self.where}: what came is no archive that is understood")
            why = find_flaw(info, parts, top)
            if why is None:
                yield info, parts
            else:
                copied.skip(name, why)
                for _ in self.pieces(info.size if info.type in FILE_TYPES else 0):
                    pass

    def pieces(self, size: int) -> Iterator[bytes]:
        """The data of a file of that size."""
        left = size
        while left:
            data = self.read(min(left, PIECE))
            left -= len(data)
            yield data
        self.read(padded(size) - size)

    def _receive(self) -> bool:
        for part in self._parts:
            if part["stream"] == "stderr":
                self._told = (self._told + part["text"])[:2000]
                continue
            text = self._text + part["text"]
            whole = len(text) // 4 * 4
            self._text = text[whole:]
            try:
                self._data += a2b_base64(text[:whole].encode("ascii"), strict_mode=True)
            except (Error, ValueError):
                raise Failed(f"{self.where}: what came is no archive") from None
            self._total += whole // 4 * 3
            if self._total > MAX_BYTES:
                raise Failed(f"{self.where}: expected at most {MAX_BYTES >> 30} GiB")
            return True
        return False

    def _explain(self, what: str) -> str:
        told = self._told.strip().splitlines()
        return f"{self.where}: {told[0] if told else what}"


def find_flaw(info: tarfile.TarInfo, parts: list[str], top: str) -> str | None:
    """Why an entry is not copied, or None."""
    if info.issym() or info.islnk():
        return "a link"
    if not (info.type in FILE_TYPES or info.isdir()):
        return "neither a file nor a directory"
    if parts[0] != top or any(part in ("", ".", "..") for part in parts):
        return "it leads out of what was asked for"
    if len(parts) > MAX_DEPTH + 1:
        return TOO_DEEP
    if len(os.fsencode("/".join(parts))) > MAX_NAME:
        return "its path is longer than Linux takes"
    if not all(part.isprintable() for part in parts):
        return "its name has characters that can't be printed"
    return None


def padded(size: int) -> int:
    """The size in an archive, which has whole blocks."""
    return -(-size // BLOCK) * BLOCK


def copy_to_stdout(entries: Iterator[tuple[tarfile.TarInfo, list[str]]], reader: Archive, copied: Copied) -> None:
    for info, _ in entries:
        if info.isdir():
            raise Failed("-: expected a file as SRC, and not a directory")
        for data in reader.pieces(info.size):
            sys.stdout.buffer.write(data)
        copied.files, copied.bytes = copied.files + 1, copied.bytes + info.size
    sys.stdout.buffer.flush()


def find_place(target: str, name: str) -> tuple[str, str]:
    """The directory on the host that a copy is made in, and the name that it gets."""
    if os.path.isdir(target):
        return target, name
    directory, top = os.path.split(target.rstrip("/"))
    if top in ("", ".", ".."):
        raise Failed(f"{target}: no such directory")
    return directory or ".", top


@contextmanager
def open_directory(path: str, within: int | None = None) -> Iterator[int]:
    """A descriptor of a directory; one ``within`` another is no symlink."""
    fd = os.open(
        path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (os.O_NOFOLLOW if within is not None else 0), dir_fd=within
    )
    try:
        yield fd
    finally:
        os.close(fd)


def extract(info: tarfile.TarInfo, parts: list[str], top: int, reader: Archive, copied: Copied) -> None:
    """Make one entry below the directory ``top``; no symlink in the way is followed."""
    *above, name = parts
    with ExitStack() as stack:
        directory = top
        try:
            for part in above:
                directory = stack.enter_context(open_directory(part, directory))
            if info.isdir():
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700 | info.mode & 0o777, dir_fd=directory)
                stack.enter_context(open_directory(name, directory))
                return
            receive(name, directory, info, reader)
        except OSError as error:
            raise Failed(f"{'/'.join(parts)}: {error.strerror}") from None
    copied.files, copied.bytes = copied.files + 1, copied.bytes + info.size


def receive(name: str, directory: int, info: tarfile.TarInfo, reader: Archive) -> None:
    """Make a file of what comes; where not all of it comes, or has room, no part of it is left."""
    with open(create(name, info.mode, directory), "wb", buffering=0) as file:
        try:
            for data in reader.pieces(info.size):
                write_all(file, data)
        except BaseException:
            os.unlink(name, dir_fd=directory)
            raise


def create(name: str, mode: int, directory: int) -> int:
    """Create a file, instead of the one of that name if there is one."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise OSError(0, "it exists, and is no regular file")
        os.unlink(name, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, mode & 0o777, dir_fd=directory)
