"""Text of files as it is: its encoding, its line ends, and a piece of it replaced so that both stay.

Models give text with ``\\n`` whatever the file has, and see a file that isn't UTF-8 as Latin-1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from .tools import ToolError

LINE_END = re.compile("\r\n|\n|\r")
SHOWN_PLACES = 10  # of a text that is found more than once


class Encoding(NamedTuple):
    """As for ``bytes.decode``; decoding and encoding again gives the same bytes. ``note`` is for the model."""

    name: str
    errors: str
    note: str = ""

    def decode(self, data: bytes) -> str:
        return data.decode(self.name, self.errors)

    def encode(self, text: str) -> bytes:
        """The bytes of a text; raises :class:`ToolError`."""
        try:
            return text.encode(self.name, self.errors)
        except UnicodeEncodeError as error:
            char = text[error.start]
            if self.name == UTF_8.name:
                raise ToolError("content: expected text, got half of a surrogate pair") from None
            raise ToolError(f"new_text: {char!r} isn't in the file's encoding, {self.name}") from None


UTF_8 = Encoding("utf-8", "strict")
BROKEN_UTF_8 = Encoding("utf-8", "surrogateescape", "some bytes aren't UTF-8, and are shown as \\xXX")
LATIN_1 = Encoding("latin-1", "strict", "not UTF-8, shown as Latin-1; edit_file keeps its encoding")


def find_encoding(data: bytes, path: str) -> Encoding:
    """The encoding of a text file; raises :class:`ToolError` for another one."""
    if b"\0" in data:
        raise ToolError(
            f"{path}: not a text file, or none in UTF-8 or Latin-1: look at it with exec, such as file, iconv or xxd"
        )
    try:
        data.decode()
    except UnicodeDecodeError:
        return LATIN_1 if data.decode(errors="ignore").isascii() else BROKEN_UTF_8
    return UTF_8


def replace_text(path: str, text: str, old: str, new: str, replace_all: bool) -> tuple[str, int]:
    """The text with ``old`` replaced, and how often; raises :class:`ToolError`.

    Line ends of ``old`` match any; those of ``new`` become the file's own.
    """
    if not old:
        raise ToolError("old_text: expected the text to replace, got nothing; write_file replaces a whole file")
    pattern = re.compile(re.escape(old))
    if LINE_END.search(old) and (old not in text or ("\r" in text and "\r" not in old)):
        pattern = re.compile(f"(?:{LINE_END.pattern})".join(map(re.escape, LINE_END.split(old))))
    found = [*islice(pattern.finditer(text), SHOWN_PLACES)]
    if not found:
        raise ToolError(f"old_text: {path} doesn't contain it; it has to be exact, with spaces and line breaks")
    if len(found) > 1 and not replace_all:
        raise _ambiguous(path, text, pattern, found)
    count = 0

    def put(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return LINE_END.sub(_line_end_at(text, match), new) if LINE_END.search(new) else new

    return pattern.sub(put, text), count


def _line_end_at(text: str, match: re.Match[str]) -> str:
    """The line end in the piece that is replaced, else the next one behind it, else the last one before it."""
    if (found := LINE_END.search(text, match.start())) is not None:
        return found[0]
    before = text[max(text.rfind("\n", 0, match.start()), text.rfind("\r", 0, match.start()), 1) - 1 : match.start()]
    found = LINE_END.search(before)
    return found[0] if found is not None else "\n"


def _ambiguous(path: str, text: str, pattern: re.Pattern[str], found: Sequence[re.Match[str]]) -> ToolError:
    count = sum(1 for _ in pattern.finditer(text))
    where = ", ".join(str(text.count("\n", 0, each.start()) + 1) for each in found)
    return ToolError(
        f"old_text: {path} contains it {count} times, in lines {where}: add lines around it so that it is "
        "found once, or set replace_all"
    )
