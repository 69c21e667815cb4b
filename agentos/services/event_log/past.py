"""Events that have left the ring, on disk: ``past/N.jsonl`` beside the log's files, with the same lines for events.

The kernel writes them and never reads them: they are for a person who looks further back than the ring does. Everything
here blocks.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from agentos.private_files import append_whole, hold_directory, open_file

DIRECTORY: Final = "past"
FILE_BYTES: Final = 4 << 20  # bytes from which on a new file begins
MAX_BYTES: Final = 64 << 20  # of all files; beyond it the oldest ones go
NAME: Final = re.compile(r"([0-9]{1,9})\.jsonl")
SPLIT: Final = b',"agent_ids":['  # separates what readers get from the log's own fields; never inside a JSON text


class Stored(msgspec.Struct):
    """An event of the files. ``names`` are those of the callers that it concerns, ``text`` its JSON without its age."""

    seq: int = 0
    type: str = ""
    names: tuple[str, ...] = ()
    at: float = 0.0
    text: bytes = b""


_read_line = msgspec.json.Decoder(Stored).decode


def list_numbers(directory: Path) -> list[int]:
    """The numbers of a directory's files, in order."""
    names = (NAME.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(match[1]) for match in names if match is not None)


def append_past(directory: Path, lines: Sequence[bytes]) -> None:
    """Append events that have left the ring of the log in ``directory``; the oldest files go when there is too much."""
    with hold_directory(directory / DIRECTORY) as place:
        numbers = list_numbers(place)
        sizes = [(place / f"{number}.jsonl").stat().st_size for number in numbers]
        if not numbers or sizes[-1] >= FILE_BYTES:
            numbers.append(numbers[-1] + 1 if numbers else 1)
        fd = open_file(place / f"{numbers[-1]}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            append_whole(fd, b"".join(lines))
        finally:
            os.close(fd)
        drop_oldest(place, numbers[:-1], sum(sizes) - MAX_BYTES)


def drop_oldest(directory: Path, numbers: list[int], wanted: int) -> int:
    """Remove the first of these files, also from the list, until so many bytes are free; returns how many are."""
    freed = 0
    while freed < wanted and numbers:
        path = directory / f"{numbers.pop(0)}.jsonl"
        with contextlib.suppress(FileNotFoundError):
            freed += path.stat().st_blocks * 512
            path.unlink()
    return freed


def read_stored(directory: Path, since: float, until: float) -> list[Stored]:
    """The events in all files of the log in ``directory`` that happened in this time, oldest first. ``OSError``."""
    found = dict[int, Stored]()
    for place in (directory, directory / DIRECTORY):  # in this order: a kernel may move events meanwhile
        for number in list_numbers(place) if place == directory or place.is_dir() else ():
            for event in _read_file(place / f"{number}.jsonl"):
                if event.seq and since <= event.at < until:
                    found[event.seq] = event
    return [found[seq] for seq in sorted(found)]


def _read_file(path: Path) -> Iterator[Stored]:
    with contextlib.suppress(FileNotFoundError), open(open_file(path, os.O_RDONLY), "rb") as file:
        for raw in file:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, ValueError):  # cut off, or no event
                event = _read_line(raw)
                event.text = raw[: raw.rindex(SPLIT)] + b"}"
                yield event
