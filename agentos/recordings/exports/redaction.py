"""Replaces listed texts, and what listed patterns match, in whatever form a recording has them."""

# A text stands somewhere as it is, somewhere escaped in JSON that is a text in JSON, somewhere in base64 that begins
# anywhere and may be wrapped. So one regular expression has all texts with all their escapes; what looks like base64 is
# decoded from each of four beginnings and searched in the same way, and base64 in it again.
# A pattern is first turned into the texts that it matches anywhere: one that it finds in one place is then replaced in
# all, also where its form keeps the pattern from matching.
# What must stay true: what is searched is what is written, in full. docs/decisions/0116.

import re
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache

import re2
from attrs import define, field

from agentos.services.logs.pattern import Pattern, PatternError

MIN_TEXT = 4  # bytes: a shorter one stands in many words
MAX_TEXTS = 5_000  # that are listed, or found by patterns
MAX_TEXT = 2_000  # bytes
MAX_ALL = 100_000  # bytes of all texts: their expression is made in some seconds
MAX_LINES = 1_000
MAX_MEMORY = 256 << 20  # bytes, of the expression of all texts
MAX_LAYERS = 3  # of base64 in base64
MAX_ESCAPES = 6  # levels of JSON in texts of JSON, in which patterns are looked for
MIN_DECODED = 12  # characters of base64 in which patterns are looked for
MARK = re.compile("⟦redacted ([0-9]+)⟧")
_WORD = rb"[A-Za-z0-9+/_-]+"
_RUN = re.compile(rb"%b(?:(?:\r?\n|(?:\\+r)?\\+n)%b)*" % (_WORD, _WORD))  # base64, in lines that JSON may escape
_BREAK = re.compile(rb"\r?\n|(?:\\+r)?\\+n")
_STANDARD = bytes.maketrans(b"-_", b"+/")
_GAP = b"AAAA"  # zero bytes: no text goes on across them
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SHORT = {"\n": "n", "\t": "t", "\r": "r", "\b": "b", "\f": "f"}
_LONG = {short: char for char, short in _SHORT.items()}

Span = tuple[int, int]


class BadList(ValueError):
    """The list can't be used; the text names the line and says why."""


@define(eq=False)
class Redaction:
    """What is listed. ``collect`` is given all that is to be written, and then ``replace``: both raise BadList."""

    patterns: Sequence[tuple[int, str, Pattern]] = ()  # with the number of their line, and as they are written
    texts: dict[str, int] = field(factory=dict)  # with the number of their line, in the order of their marks
    found: set[str] = field(factory=set)  # those of them that were replaced
    _every: "re2._Regexp[str] | None" = None
    _known: dict[bytes, tuple[int, str]] = field(factory=dict)  # the texts with their numbers, by their forms

    def collect(self, data: bytes) -> bytes:
        """Note what the patterns match in data, which is returned as it is. Raises :class:`BadList`."""
        if self.patterns:
            self._collect(data.decode(errors="replace"), MAX_LAYERS)
        return data

    def _collect(self, text: str, layers: int) -> None:
        for level in _unescape_all(text):
            for line, written, pattern in self.patterns:
                for matched in pattern.find_all(level):
                    self._add(matched.decode(), line, written)
        for run in _RUN.finditer(text.encode(errors="surrogatepass")) if layers else ():
            if len(run.group()) >= MIN_DECODED and (inside := _decode_text(run.group())) is not None:
                self._collect(inside, layers - 1)

    def _add(self, text: str, line: int, written: str) -> None:
        if not MIN_TEXT <= len(text.encode()) <= MAX_TEXT:
            raise BadList(
                f"line {line}: {written} matches {text!r:.60}: expected {MIN_TEXT} to {MAX_TEXT:,} bytes in each match"
            )
        self.texts.setdefault(text, line)
        if len(self.texts) > MAX_TEXTS:
            raise BadList(f"line {line}: {written}: with it more than {MAX_TEXTS:,} texts would be replaced")

    def replace(self, data: bytes) -> bytes:
        """Data with marks in the places of the texts; within base64 zero bytes are there."""
        if not self.texts:
            return data
        if self._every is None:
            if (size := sum(len(text.encode()) for text in self.texts)) > MAX_ALL:
                raise BadList(f"the texts that would be replaced have {size:,} bytes together, more than {MAX_ALL:,}")
            longest_first = sorted(self.texts, key=lambda text: -len(text))  # one may hold another
            self._known = {text.encode(): (number, text) for number, text in enumerate(self.texts, 1)}
            self._every = _compile("|".join(map(escape_anyhow, longest_first)))
        marked: bytes = self._every.sub(self._mark, data)
        spans = [*self._search_base64(marked, MAX_LAYERS)]
        if spans:
            blanked = bytearray(marked)
            for start, end in spans:
                blanked[start:end] = b"A" * (end - start)
            marked = bytes(blanked)
        return marked

    def _mark(self, found: "re2._Match[bytes]") -> bytes:
        return f"⟦redacted {self._number(found.group())}⟧".encode()

    def _number(self, matched: bytes) -> int:
        if (known := self._known.get(matched)) is None:
            texts = sorted(enumerate(self.texts, 1), key=lambda each: -len(each[1]))
            known = next(each for each in texts if _compile(escape_anyhow(each[1])).fullmatch(matched))
            self._known[matched] = known
        self.found.add(known[1])
        return known[0]

    def _search(self, data: bytes, layers: int) -> Iterator[Span]:
        assert self._every is not None, "it was compiled"
        for matched in self._every.finditer(data):
            self._number(matched.group())
            yield matched.span()
        if layers:
            yield from self._search_base64(data, layers)

    def _search_base64(self, data: bytes, layers: int) -> Iterator[Span]:
        """Where base64 in data has a text, or a part of it that a character shares with what is beside it."""
        joined, segments = _join_runs(data, min(len(text.encode()) for text in self.texts) * 4 // 3)
        starts = [start for start, _, _ in segments]
        for skipped in range(4) if joined else ():
            decoded = b64decode(joined[skipped:][: (len(joined) - skipped) & ~3])
            for first, last in self._search(decoded, layers - 1):
                begin, end = skipped + first * 4 // 3, skipped + -(-last * 4 // 3)
                for start, place, size in segments[max(0, bisect_right(starts, begin) - 1) :]:
                    if start >= end:
                        break
                    if begin < start + size:
                        yield place + max(begin - start, 0), place + min(end - start, size)


def _compile(expression: str) -> "re2._Regexp[str]":
    options = re2.Options()
    options.log_errors, options.never_capture, options.max_mem = False, True, MAX_MEMORY
    try:
        return re2.compile(expression, options)
    finally:
        re2.purge()  # its cache would keep 128 of them


def _join_runs(data: bytes, least: int) -> tuple[bytes, list[tuple[int, int, int]]]:
    """All that looks like base64 in data as one, each run from a multiple of four on.

    And its segments, without the line breaks: their places in it and in data, and their lengths.
    """
    parts, segments, size = list[bytes](), list[tuple[int, int, int]](), 0
    for run in _RUN.finditer(data):
        place, end = run.span()
        if end - place < least:
            continue
        for found in [*_BREAK.finditer(data, place, end), None]:
            stop = end if found is None else found.start()
            parts.append(data[place:stop])
            segments.append((size, place, stop - place))
            size += stop - place
            place = stop if found is None else found.end()
        parts.append(b"A" * (-size % 4) + _GAP)
        size += len(parts[-1])
    return b"".join(parts).translate(_STANDARD), segments


def _decode_text(run: bytes) -> str | None:
    """What base64 says, if it is a text."""
    joined = _BREAK.sub(b"", run).translate(_STANDARD)
    try:
        text = b64decode(joined + b"=" * (-len(joined) % 4)).decode()
    except ValueError:
        return None
    return text if all(char.isprintable() or char.isspace() for char in text) else None


def _unescape_all(text: str) -> Iterator[str]:
    """The text, and what it is without the escapes of JSON, level by level."""
    for _ in range(MAX_ESCAPES):
        yield text
        without = _ESCAPE.sub(_unescape, text)
        if without == text:
            return
        text = without.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else _LONG.get(found[2], found[2])


@lru_cache(maxsize=MAX_TEXTS)
def escape_anyhow(text: str) -> str:
    """An expression that matches the text as it is, in a URL, and as JSON in any depth of texts has it."""
    return "".join(map(_escape_character, text))


@lru_cache(maxsize=1024)
def _escape_character(char: str) -> str:
    if char.isascii() and char.isalnum():
        return char
    units = char.encode("utf-16-be")
    codes = [units[at : at + 2].hex() for at in range(0, len(units), 2)]
    in_url = "".join(f"%{byte:02x}" for byte in char.encode())
    escaped = "".join(rf"\\+u(?i:{code})" for code in codes) + f"|(?i:{in_url})" + (r"|\+" if char == " " else "")
    if char == "\\":
        return rf"(?:\\+|{escaped})"
    if char in _SHORT:
        return rf"(?:{re2.escape(char)}|\\+{_SHORT[char]}|{escaped})"
    before = r"\\*" if char in '"/' else ""  # JSON may put a backslash there
    return rf"(?:{before}{re2.escape(char)}|{escaped})"


def read_list(text: str) -> Redaction:
    """Read a list: a line is a text, or a pattern of RE2 between slashes. Raises :class:`BadList`."""
    texts, patterns = dict[str, int](), list[tuple[int, str, Pattern]]()
    for line, written in enumerate(text.split("\n"), 1):
        entry = written.removesuffix("\r")
        if not entry:
            continue
        if line > MAX_LINES:
            raise BadList(f"line {line}: expected at most {MAX_LINES:,} lines")
        if len(entry) > 2 and entry.startswith("/") and entry.endswith("/"):
            patterns.append((line, entry, _read_pattern(entry[1:-1], line)))
        elif not MIN_TEXT <= len(entry.encode()) <= MAX_TEXT:
            raise BadList(
                f"line {line}: expected a text of {MIN_TEXT} to {MAX_TEXT:,} bytes, got {len(entry.encode())}"
            )
        else:
            texts.setdefault(entry, line)
    if not texts and not patterns:
        raise BadList("expected a text or a /pattern/ on each line; there is none")
    return Redaction(patterns, texts)


def _read_pattern(written: str, line: int) -> Pattern:
    try:
        return Pattern.for_replacing(written)
    except PatternError as error:
        raise BadList(f"line {line}: /{written:.100}/: {error}") from None
