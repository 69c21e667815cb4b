"""Log files: names, headers, appending, reading by blocks in both directions. Everything here blocks.

``NAME.RUN.PART.jsonl``: NAME is an agent's, or ``kernel``; RUN counts the runs of kernels in this state directory, PART
the files of that name in the run. A file is never written by two runs. Its first line is the header, each other line
one JSON object with ``at``, ``stream`` and ``text``, in ASCII, so that no text can end its line or control a terminal.
Lines that can't be read are skipped: after a power failure the last line may be incomplete.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from agentos.private_files import append_whole, open_file

KERNEL = "kernel"  # reserved: no agent has this name
FILE_COST = 64 << 10  # bytes that a file counts at least, since files cost more than their bytes
BLOCK_BYTES = 32 << 10  # read at a time …
MAX_BLOCK_BYTES = 256 << 10  # … where few files are read at once
MARK = ""  # the stream of what is no line
MAX_LINE_BYTES = 256 << 10  # of one line; ours are shorter
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})\.([0-9]{1,9})\.([0-9]{1,9})\.jsonl")
_encode = json.JSONEncoder(separators=(",", ":")).encode  # ASCII, as all that is written


class FileKey(NamedTuple):
    """The name of a file."""

    name: str
    run: int
    part: int

    @property
    def filename(self) -> str:
        return f"{self.name}.{self.run}.{self.part}.jsonl"


def read_name(filename: str) -> FileKey | None:
    """The key of a log file with this name; None for another file."""
    match = _NAME.fullmatch(filename)
    return FileKey(match[1], int(match[2]), int(match[3])) if match is not None else None


class Origin(NamedTuple):
    """The agent that a file is of. ``owner``: the agents it was spawned below, or its guest; they share the room."""

    id: int
    declared: bool
    owner: str


class LogFile(msgspec.Struct, frozen=True, gc=False):
    """A file and the agent that it is of, as one object: thousands are known.

    ``begun`` and ``ended`` are the times of the first and the last write, ``size`` is in bytes.
    """

    name: str
    run: int
    part: int
    agent: int
    declared: bool
    owner: str
    begun: float
    ended: float
    size: int

    @property
    def key(self) -> FileKey:
        return FileKey(self.name, self.run, self.part)

    @property
    def origin(self) -> Origin:
        return Origin(self.agent, self.declared, self.owner)

    @property
    def cost(self) -> int:
        return max(self.size, FILE_COST)


class Line(NamedTuple):
    """``at`` is seconds since the epoch, ``stream`` is stdout, stderr or kernel."""

    at: float
    name: str
    stream: str
    text: str


def split_line(line: Line) -> Iterator[Line]:
    """The lines of a text, as :class:`~agentos.services.events.AgentOutput` has it."""
    for text in line.text.split("\n"):
        yield Line(line.at, line.name, line.stream, text)


def _encode_lines(line: Line) -> str:
    """The records of a text's lines: all are the same but for their own text."""
    before = f'{{"at":{line.at!r},"stream":{_encode(line.stream)},"text":'
    return before + f"}}\n{before}".join(map(encode_basestring_ascii, line.text.split("\n"))) + "}"


class _Header(msgspec.Struct):
    format: int
    id: int
    declared: bool
    owner: str
    at: float


class Record(msgspec.Struct, gc=False):
    """A line as it is in a file."""

    at: float
    stream: str
    text: str


class Chooser(Protocol):
    """Which lines of a file are wanted."""

    def may_choose(self, raw: bytes) -> bool:
        """Whether some of these undecoded lines may be."""

    def choose(self, name: str, records: Sequence[Record]) -> Sequence[Line]:
        """Those of these lines, which are in the file of that name."""


_read_header = msgspec.json.Decoder(_Header).decode
_records = msgspec.json.Decoder(Record)


def _read_records(raw: bytes) -> list[Record]:
    """The lines that can be read; others are skipped: the header, or one that was cut off."""
    try:
        return _records.decode_lines(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = list[Record]()
        for line in raw.split(b"\n"):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append(_records.decode(line))
        return found


class LogDirectory:
    """The files in one directory, which the caller holds (:mod:`agentos.private_files`)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def scan(self) -> list[LogFile]:
        """All log files. One whose header can't be read counts as its name's, and as no declared agent's."""
        found = []
        for name in os.listdir(self.directory):
            key = read_name(name)
            if key is None:
                continue
            with contextlib.suppress(OSError):  # a file that is no file of ours, or has just gone
                found.append(self._look_at(key, self.directory / name))
        return found

    def _look_at(self, key: FileKey, path: Path) -> LogFile:
        fd = open_file(path, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            origin, begun = Origin(0, False, key.name), status.st_mtime
            with contextlib.suppress(msgspec.MsgspecError):
                header = _read_header(os.pread(fd, 4096, 0).partition(b"\n")[0])
                origin, begun = Origin(header.id, header.declared, header.owner), header.at
        finally:
            os.close(fd)
        return LogFile(*key, *origin, begun, status.st_mtime, status.st_size)

    def append(self, key: FileKey, origin: Origin, lines: Sequence[Line], new: bool) -> LogFile:
        """Append lines, with the header first where the file is new. On ``OSError`` the file is as it was.

        ``new``: it has no lines of this origin yet, so whatever it has is removed.
        """
        fd = open_file(self.directory / key.filename, os.O_RDWR | os.O_APPEND | os.O_CREAT | (os.O_TRUNC if new else 0))
        try:
            size = os.fstat(fd).st_size
            records = list(map(_encode_lines, lines))
            if not size:
                about = {"format": 1, "name": key.name, "run": key.run, **origin._asdict(), "at": lines[0].at}
                records.insert(0, _encode(about))
            data = ("\n".join(records) + "\n").encode()
            if size and os.pread(fd, 1, size - 1) != b"\n":
                data = b"\n" + data  # something else wrote to it
            append_whole(fd, data)
            return LogFile(*key, *origin, lines[0].at, lines[-1].at, size + len(data))
        finally:
            os.close(fd)

    def remove(self, key: FileKey) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.directory / key.filename)

    def read(self, file: LogFile, backward: bool, chooser: Chooser, size: int = BLOCK_BYTES) -> Iterator[Line]:
        """The chosen lines in the first ``size`` bytes of a file, in order or from the last to the first.

        After each block of ``size`` bytes comes a line with the stream ``MARK``, at which time may be looked at.
        """
        at = file.ended if backward else file.begun
        with contextlib.suppress(FileNotFoundError):  # it has been removed meanwhile: its lines are no longer kept
            for raw in (self._blocks_backward if backward else self._blocks)(file, size):
                chosen = chooser.choose(file.name, _read_records(raw)) if chooser.may_choose(raw) else ()
                yield from reversed(chosen) if backward else chosen
                last = _read_records(raw.partition(b"\n")[0] if backward else raw.rpartition(b"\n")[2])
                at = last[0].at if last else at
                yield Line(at, file.name, MARK, "")

    def _blocks(self, file: LogFile, size: int) -> Iterator[bytes]:
        at, rest = 0, b""
        while at < file.size:
            whole, _, rest = (rest + self._read_block(file, at, min(at + size, file.size))).rpartition(b"\n")
            at += size
            if whole:
                yield whole
            rest = rest if len(rest) <= MAX_LINE_BYTES else b""
        if rest:
            yield rest

    def _blocks_backward(self, file: LogFile, size: int) -> Iterator[bytes]:
        end, rest = file.size, b""
        while end > 0:
            begin = max(0, end - size)
            rest, _, whole = (self._read_block(file, begin, end) + rest).partition(b"\n")
            end = begin
            if whole:
                yield whole
            rest = rest if len(rest) <= MAX_LINE_BYTES else b""
        if rest:
            yield rest

    def _read_block(self, file: LogFile, begin: int, end: int) -> bytes:
        # Opened for each block: many files are read at once, and a file descriptor of each would be too many.
        fd = open_file(self.directory / file.key.filename, os.O_RDONLY)
        try:
            return os.pread(fd, end - begin, begin)
        finally:
            os.close(fd)
