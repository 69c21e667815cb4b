"""Recordings that a test writes by hand."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentos.recordings.format import CALLS, MANIFEST, Life, Manifest, encode_line, encode_manifest
from agentos.recordings.own import Marks

LIFE = "coder/1"


def line(number: int, call: str = "THINK", **keys: object) -> dict[str, Any]:
    """The line of a call that began and ended before the next one."""
    begin = 2 * number - 1
    made = {"n": [begin, begin + 1], "life": LIFE, "call": call, "at": 1000.0 + number, "ms": 2.5}
    return {**made, "request": {}, "reply": {"success": True}, **keys}


def write_recording(
    directory: Path, lines: Iterable[Mapping[str, Any] | bytes], marks: Marks | None = None, **manifest: Any
) -> Path:
    """A recording in ``directory``, of these lines and bytes; with ``marks`` as its kernel has made it."""
    directory.mkdir(mode=0o700, parents=True)
    known = Manifest(name="coder-1", began=1000.0, lives=[Life(LIFE, "coder", 1000.0)])
    for key, value in manifest.items():
        setattr(known, key, value)
    if marks is not None:
        known.mark = marks.make(known)
    write_file(directory / MANIFEST, encode_manifest(known))
    data = b"".join(each if isinstance(each, bytes) else encode_line(each) + b"\n" for each in lines)
    write_file(directory / CALLS, data)
    return directory


def write_file(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
