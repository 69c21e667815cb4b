"""Copies a file or a directory into a jail: a tar archive, typed in base64 into a command there that unpacks it.

An agent may change its own directories meanwhile, on the host or in the jail: no symlink on the host is followed below
the source, and what the command there does, the agent could do.
"""

import os
import posixpath
import stat
import sys
import tarfile
import tempfile
from binascii import b2a_base64
from select import select
from typing import IO

from agentos.userland.cli.common import Failed, agent_fields
from agentos.userland.whole_files import write_all
from agentos_sdk import AgentOSClient
from agentos_sdk.terminal import Terminal

from .copied import MAX_DEPTH, TOO_DEEP, Copied

PIECE = 48 << 10  # bytes that are sent at a time
LINE_BYTES = 3000  # bytes in one line of base64: a terminal takes lines of up to 4095 characters
READY = "agentos-cp-ready"
UNPACK = f'set -o pipefail; stty -echo; echo {READY}; base64 -d | tar --no-same-owner -xf - -C "$1"'


def copy_in(client: AgentOSClient, source: str, name: str, path: str, copied: Copied) -> None:
    agent = agent_fields(name)
    probed = client.exec(["test", "-d", path], **agent)
    if not probed["success"]:
        raise Failed(probed["error"], probed)
    base = os.path.basename(os.path.realpath(source))
    if probed["exit_code"] == 0:
        if source == "-":
            raise Failed(f"{name}:{path}: a directory: expected the path of a file for what comes on stdin")
        directory, top = path, base
    else:
        directory, top = posixpath.split(path)
    request = {"id" if key == "agent_id" else key: value for key, value in agent.items()}
    request |= {"command": ["bash", "-c", UNPACK, "cp", directory], "timeout": 0, "tty": {"term": "dumb"}}
    with Terminal(client.socket_path, request) as terminal:
        sender = Sender(terminal, f"{name}:{path}")
        sender.wait(READY)
        with tarfile.open(fileobj=sender, mode="w|", format=tarfile.GNU_FORMAT, bufsize=PIECE) as archive:  # type: ignore[call-overload]
            if source == "-":
                add_stdin(archive, top, copied)
            else:
                add_path(archive, source, top, copied)
        sender.finish()


class Sender:
    """Types an archive into the command that unpacks it, in lines of base64."""

    def __init__(self, terminal: Terminal, where: str) -> None:
        self._terminal, self._where = terminal, where
        self._told, self._rest = "", b""

    def wait(self, marker: str) -> None:
        while marker not in self._told:
            self._step()
            if self._terminal.executed is not None:
                raise Failed(self._explain())
        self._told = ""

    def write(self, data: bytes) -> int:
        """Type as many whole lines as there are; waits until they are sent."""
        self._rest += data
        whole = len(self._rest) // LINE_BYTES * LINE_BYTES
        self._type(self._rest[:whole])
        self._rest = self._rest[whole:]
        return len(data)

    def finish(self) -> None:
        """Type the rest and the end, and wait for the command's end; fails if it did."""
        self._type(self._rest)
        self._terminal.type(b"\x04")
        while self._terminal.executed is None:
            self._step()
        if self._terminal.executed["exit_code"]:
            raise Failed(self._explain())

    def _type(self, data: bytes) -> None:
        lines = [b2a_base64(data[at : at + LINE_BYTES]) for at in range(0, len(data), LINE_BYTES)]
        self._terminal.type(b"".join(lines))
        while self._terminal.unsent and self._terminal.executed is None:
            self._step()
        if self._terminal.executed is not None:
            raise Failed(self._explain())

    def _step(self) -> None:
        terminal = self._terminal
        readable, writable, _ = select([terminal], [terminal] if terminal.unsent else [], [])
        if writable:
            terminal.send()
        if readable:
            self._told = (self._told + terminal.receive())[-2000:]

    def _explain(self) -> str:
        told = self._told.strip().splitlines()
        return f"{self._where}: {told[0] if told else 'the copy broke off'}"


def add_stdin(archive: tarfile.TarFile, top: str, copied: Copied) -> None:
    with tempfile.TemporaryFile(buffering=0) as kept:  # an archive says the size first
        try:
            while data := sys.stdin.buffer.read(PIECE):
                write_all(kept, data)
        except OSError as error:
            raise Failed(f"stdin, which is kept in {tempfile.gettempdir()}: {error.strerror}") from None
        size = kept.tell()
        kept.seek(0)
        add_file(archive, top, kept, size, 0o644, copied)


def add_path(archive: tarfile.TarFile, source: str, top: str, copied: Copied) -> None:
    """Add a file, or a directory with what is in it. Below ``source`` no symlink is followed."""
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                add_tree(archive, fd, top, copied)
            else:
                add_open(archive, top, fd, copied)
        finally:
            os.close(fd)
    except OSError as error:
        raise Failed(f"{error.filename or source}: {error.strerror or error}") from None


def add_tree(archive: tarfile.TarFile, within: int, path: str, copied: Copied, depth: int = 0) -> None:
    """Add a directory with all that is in it, but for what lies too deep: an agent may make any number of levels."""
    archive.addfile(make_entry(path, os.fstat(within).st_mode, tarfile.DIRTYPE))
    with os.scandir(within) as found:
        entries = [(one.name, one.is_dir(follow_symlinks=False)) for one in found]
    for name, is_directory in entries:
        if not is_directory:
            add_name(archive, f"{path}/{name}", name, within, copied)
        elif depth == MAX_DEPTH:
            copied.skip(f"…/{name}", TOO_DEEP)
        else:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
            try:
                add_tree(archive, below, f"{path}/{name}", copied, depth + 1)
            finally:
                os.close(below)


def is_link(name: str, within: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode)


def add_name(archive: tarfile.TarFile, path: str, name: str, within: int, copied: Copied) -> None:
    if is_link(name, within):
        copied.skip(path, "a link")
        return
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
    try:
        add_open(archive, path, fd, copied)
    finally:
        os.close(fd)


def add_open(archive: tarfile.TarFile, path: str, fd: int, copied: Copied) -> None:
    """Add an open file, if it is a regular one."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        copied.skip(path, "neither a file nor a directory")
        return
    with open(fd, "rb", closefd=False) as file:
        add_file(archive, path, file, found.st_size, found.st_mode, copied)


def add_file(archive: tarfile.TarFile, path: str, file: IO[bytes], size: int, mode: int, copied: Copied) -> None:
    """Add the first ``size`` bytes of a file; ``OSError`` if it has become shorter."""
    info = make_entry(path, mode, tarfile.REGTYPE)
    info.size = size
    archive.addfile(info, file)
    copied.files, copied.bytes = copied.files + 1, copied.bytes + size


def make_entry(path: str, mode: int, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.mode, info.type = mode & 0o777, kind
    return info
