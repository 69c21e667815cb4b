"""Reads recordings, also ones that others have made: each limit is checked before anything is believed."""

import os
import stat
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
from attrs import frozen

from agentos.private_files import display_path
from agentos.structs import learn
from agentos_sdk.encoding.nesting import count_containers, is_nested_deeper

from .format import (
    CALLS,
    FORMAT,
    FORMER,
    LIFE,
    MANIFEST,
    MAX_DEPTH,
    MAX_LINE_BYTES,
    MAX_LINE_PARTS,
    MAX_MESSAGES,
    NAME,
    Json,
    Manifest,
    encode_line,
    parse_json,
)

MAX_MANIFEST_BYTES = 16 << 20
KEPT_QUESTIONS = 64  # of a life, with which a later one may go on
# What a call weighs besides its bytes: itself, each array and object, and each message of a question, in bytes.
CALL_WEIGHT, PART_WEIGHT, MESSAGE_WEIGHT = 20_000, 200, 1_000
FEW_PARTS = 100  # that aren't counted exactly


class BadRecording(ValueError):
    """The recording can't be used; the text names the file, the line and the field."""


@frozen
class RecordedCall:
    """One call: ``begin`` and ``end`` are its numbers in the kernel's one order, ``at`` is seconds since the epoch.

    ``request`` and ``reply`` are JSON objects as on the wire, a question is whole. ``reply`` is None if none was given.
    ``chunks`` are those of a streamed reply. ``outcome`` is ``cancelled`` for a call that was.
    ``files`` is how many paths it has changed that are kept. ``weight`` is bytes: what it costs to hold and to compare
    it, which for a question that goes on with others is many times its line.
    """

    begin: int
    end: int
    life: str
    call: str
    at: float
    milliseconds: float
    request: Json
    reply: Json | None
    chunks: tuple[Json, ...] = ()
    outcome: str | None = None
    files: int = 0
    weight: int = 0


class _Line(msgspec.Struct):
    """A line of the file; unknown keys are left to later versions."""

    n: tuple[int, int]
    life: str
    call: str
    at: float
    ms: float
    request: Json
    reply: Json | None = None
    chunks: list[Json] = []
    outcome: str | None = None
    files: int = 0


learn(Manifest, _Line)


class _Whole(NamedTuple):
    """A whole question: the bytes of its keys besides the messages, and of these up to the end of each."""

    question: Json
    sizes: dict[str, int]
    ends: list[int]

    @property
    def weight(self) -> int:
        return sum(self.sizes.values()) + (self.ends[-1] if self.ends else 0)


@frozen
class Recording:
    """A recording that was opened. ``calls`` reads its file anew each time, and holds little of it."""

    path: Path
    manifest: Manifest

    def measure(self) -> int:
        """The bytes of the files at its top, its lines among them. Raises ``OSError``."""
        return sum(path.lstat().st_size for path in self.path.iterdir())

    def calls(self, life: str | None = None) -> Iterator[RecordedCall]:
        """The calls in the order of their ends, of one life or of all. Raises :class:`BadRecording`."""
        former: dict[str, OrderedDict[int, _Whole]] = {}
        shown = Path(display_path(self.path))
        with _open(self.path) as directory:
            for name in (FORMER, CALLS):
                if name == CALLS or _exists(directory, name):
                    with _open_file(directory, shown, name) as file:
                        yield from _read_calls(file, f"{shown / name}", life, former)


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read_calls(
    file: BinaryIO, path: str, life: str | None, former: dict[str, OrderedDict[int, _Whole]]
) -> Iterator[RecordedCall]:
    for number, line in enumerate(_read_lines(file, path), 1):
        where = f"{path}: line {number}"
        found = _read_line(line, where)
        if life is not None and found.life != life:
            continue
        request, weight = found.request, CALL_WEIGHT + PART_WEIGHT * count_containers(line, FEW_PARTS) + len(line)
        if found.call == "THINK" and not request.keys().isdisjoint(("as", "messages")):
            whole = _complete(found, former.setdefault(found.life, OrderedDict()), where)
            request, weight = whole.question, weight + whole.weight
        yield RecordedCall(
            *found.n,
            found.life,
            found.call,
            found.at,
            found.ms,
            request,
            found.reply,
            tuple(found.chunks),
            found.outcome,
            found.files,
            weight,
        )


def read_recording(path: Path | str) -> Recording:
    """Open the recording in this directory; its calls are read later. Raises :class:`BadRecording`. Reads files."""
    path, shown = Path(path), Path(display_path(path))
    with _open(path) as directory, _open_file(directory, shown, MANIFEST) as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    where = f"{shown / MANIFEST}"
    if len(data) > MAX_MANIFEST_BYTES:
        raise BadRecording(f"{where}: longer than {MAX_MANIFEST_BYTES >> 20} MiB")
    found = _parse(data, where)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        given = found.get("format") if isinstance(found, dict) else None
        raise BadRecording(f"{where}: format: this version reads format {FORMAT}, the recording has {given!r:.80}")
    try:
        manifest = msgspec.convert(found, Manifest)
    except msgspec.ValidationError as error:
        raise BadRecording(f"{where}: {error}") from None
    if not NAME.fullmatch(manifest.name) or ".." in manifest.name:
        raise BadRecording(f"{where}: name: {manifest.name!r:.80} is no name of a recording")
    for life in manifest.lives:
        _check_life(life.life, f"{where}: lives")
    return Recording(path, manifest)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        why = "is a symlink: name the directory itself" if path.is_symlink() else error.strerror
        raise BadRecording(f"{display_path(path)}: {why}") from None
    try:
        _check_owner(os.fstat(fd), Path(display_path(path)))
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _open_file(directory: int, path: Path, name: str) -> Iterator[BinaryIO]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        raise BadRecording(f"{path / name}: {error.strerror}") from None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise BadRecording(f"{path / name}: expected a regular file with one name")
        _check_owner(status, path / name)
        yield file


def _check_owner(status: os.stat_result, path: Path) -> None:
    """Neither may another user have made it, nor may one change it."""
    if status.st_uid not in (os.geteuid(), 0):
        raise BadRecording(f"{path}: belongs to uid {status.st_uid}; expected uid {os.geteuid()} or root")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadRecording(f"{path}: other users may write to it: run `chmod go-w` on it")


def _read_lines(file: BinaryIO, where: str) -> Iterator[bytes]:
    """The whole lines; the last one is left out if a kernel that was killed didn't finish it."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise BadRecording(f"{where}: line {number}: longer than {MAX_LINE_BYTES >> 20} MiB")
        if not line.endswith(b"\n"):
            return
        yield line


def _parse(data: bytes, where: str) -> Any:
    if is_nested_deeper(data, MAX_DEPTH):
        raise BadRecording(f"{where}: nested deeper than {MAX_DEPTH} levels")
    if count_containers(data, MAX_LINE_PARTS) > MAX_LINE_PARTS:
        raise BadRecording(f"{where}: more than {MAX_LINE_PARTS:,} arrays and objects")
    try:
        return parse_json(data)
    except (ValueError, RecursionError) as error:
        raise BadRecording(f"{where}: no JSON: {str(error)[:200]}") from None


def _read_line(data: bytes, where: str) -> _Line:
    try:
        line = msgspec.convert(_parse(data, where), _Line)
    except msgspec.ValidationError as error:
        raise BadRecording(f"{where}: {error}") from None
    if not 0 < line.n[0] <= line.n[1]:
        raise BadRecording(f"{where}: n: expected the numbers of a begin and of a later end, got {list(line.n)}")
    _check_life(line.life, where)
    return line


def _check_life(life: str, where: str) -> None:
    if not LIFE.fullmatch(life) or ".." in life:
        raise BadRecording(f"{where}: life: expected NAME/NUMBER, got {life!r:.80}")


def _complete(line: _Line, former: OrderedDict[int, _Whole], where: str) -> _Whole:
    """The whole question of a line. Those before it, on which it may stand, are kept: they share their messages."""
    own = {key: value for key, value in line.request.items() if key not in ("as", "first")}
    added, before = own.pop("messages", None), _Whole({"messages": []}, {}, [])
    first = 0
    if (basis := line.request.get("as")) is not None:
        if not isinstance(basis, int) or basis not in former:
            raise BadRecording(
                f"{where}: request.as: none of the {KEPT_QUESTIONS} questions before it in its life has the number "
                f"{basis!r:.80}"
            )
        before = former[basis]
        first, there = line.request.get("first", 0), len(before.ends)
        if not isinstance(first, int) or not 0 <= first <= there:
            raise BadRecording(f"{where}: request.first: expected at most {there}, got {first!r:.80}")
    messages = [] if added is None else added
    if not isinstance(messages, list) or first + len(messages) > MAX_MESSAGES:
        raise BadRecording(f"{where}: request.messages: expected a list of at most {MAX_MESSAGES} messages")
    whole = {key: value for key, value in {**before.question, **own}.items() if value is not None}
    whole["messages"] = [*before.question["messages"][:first], *messages]
    sizes = {key: size for key, size in before.sizes.items() if key in whole}
    sizes |= {key: len(encode_line(value)) for key, value in own.items()}
    ends = before.ends[:first]
    for message in messages:
        ends.append((ends[-1] if ends else 0) + len(encode_line(message)) + MESSAGE_WEIGHT)
    found = former[line.n[0]] = _Whole(whole, sizes, ends)
    if len(former) > KEPT_QUESTIONS:
        former.popitem(last=False)
    return found
