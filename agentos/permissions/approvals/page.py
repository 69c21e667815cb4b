"""The page that a person sees of a call: lines of the kernel's, with what is quoted escaped, cut and counted.

Agents choose most of the content, so every line begins with a word or sign of the kernel's, and the rest is quoted (see
:mod:`agentos.permissions.shown_lines`) and escaped: no control character, line break, bidi control or invisible
character survives, and nothing can look like another line. Runs of white space and of empty lines are collapsed and
counted. A text is bounded. What is cut is counted, and the SHA-256 of the whole is shown.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field

from agentos.permissions.shown_lines import MARK

MAX_CHARS: Final = 16 << 10  # characters of a text, escaped
MAX_LINE_CHARS: Final = 2000  # characters of a line of a file, a message or a body
MAX_NAME_CHARS: Final = 4096  # characters, escaped, that a name may take even where a content took all room
MAX_MARKS: Final = 2  # combining marks in a row
MAX_SPACES: Final = 16  # in a row
MAX_INDENT: Final = 40  # spaces at the beginning of a line of a content
MAX_EMPTY_LINES: Final = 2  # in a row
MAX_LISTED: Final = 6  # characters outside ASCII that are listed by number
MAX_NAMED: Final = 20  # words of a command in lines of their own

_QUOTES: Final = "\u2039\u203a"  # clients without other means put them around what is quoted
# Printable by category, but invisible.
_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159")
_SELECTORS: Final = re.compile("[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # variation selectors
_RUNS: Final = re.compile(r"(\s)\1*")  # of one white space character


def escape(text: str, *, ordered: bool = True) -> str:
    r"""The text in one line of visible characters.

    All others become ``\u{1b}``, long runs of one white space character ``\u{20, 1500 times}``, and so does a backslash
    that would begin such an escape: no two texts look the same. ``ordered``: letters that run from right to left are
    escaped, too, for a terminal may show them, and the digits and signs beside them, in another order; and spaces at
    the beginning are no indentation.
    """
    if text.isascii() and text.isprintable() and "\\u{" not in text and not text.endswith(" ") and "  " not in text:
        return text
    pieces, at = list[str](), 0
    for run in _RUNS.finditer(text):
        most = MAX_INDENT if run.start() == 0 and not ordered else MAX_SPACES
        if run.end() - run.start() > most:
            pieces += _escape(text[at : run.start()], ordered), f"\\u{{{ord(run[1]):x}, {len(run[0])} times}}"
            at = run.end()
    return "".join([*pieces, _escape(text[at:], ordered)])


def _escape(text: str, ordered: bool) -> str:
    """A text in which no run of white space is long."""
    shown, marks = [], MAX_MARKS  # a mark at the beginning would change the character before the text
    for place, char in enumerate(text):
        marks = marks + 1 if unicodedata.category(char).startswith("M") else 0
        if char == "\\":
            plain = not text.startswith("u{", place + 1)
        elif char == " ":
            plain = place + 1 < len(text)  # at the end of a line it isn't seen
        else:
            plain = _is_visible(char) and marks <= MAX_MARKS and not (ordered and _runs_left(char))
        shown.append(char if plain else f"\\u{{{ord(char):x}}}")
    return "".join(shown)


def _is_visible(char: str) -> bool:
    """Whether it is a character of its own, or a mark that neither hides nor strikes out the one before."""
    return (
        char.isprintable()  # no control, format, private or unknown character
        and char not in _BLANK
        and char not in _QUOTES
        and not _SELECTORS.match(char)
        and unicodedata.category(char) != "Me"
        and unicodedata.combining(char) != 1
    )


def _runs_left(char: str) -> bool:
    return unicodedata.bidirectional(char) in ("R", "AL", "AN")


@define
class Page:
    """Lines of at most about :data:`MAX_CHARS` characters; what has no room is counted."""

    lines: list[str] = field(factory=list)
    _room: int = MAX_CHARS
    _cut_lines: int = 0
    _cut_chars: int = 0

    def say(self, line: str) -> None:
        """Add a line of the kernel's, whatever room is left."""
        self.lines.append(line)

    def quote_lines(
        self, sign: str, lines: Sequence[str], most: int = MAX_LINE_CHARS, *, ordered: bool = False
    ) -> None:
        """Add lines of a content, as far as there is room; one without a line break is its last."""
        number = 0
        while number < len(lines):
            if self._room <= 0:
                self._cut_lines += len(lines) - number
                self._cut_chars += sum(map(len, lines[number:]))
                return
            line = lines[number]
            self.quote(sign, line.removesuffix("\n"), most, ordered=ordered)
            if not line.endswith("\n"):
                self.say("\\ no line break at the end")
            number += 1
            if line == "\n":
                number += self._count_empty(lines, number)

    def _count_empty(self, lines: Sequence[str], start: int) -> int:
        """Collapse the empty lines from there on, if they are many; how many were collapsed."""
        end = start
        while end < len(lines) and lines[end] == "\n":
            end += 1
        if end - start < MAX_EMPTY_LINES:
            return 0
        self.say(f"… {end - start} more empty lines like this one")
        return end - start

    def quote_text(self, sign: str, text: str) -> None:
        """Add the lines of a text like :meth:`quote_lines`; what has no room is counted without being split."""
        kept, end = cut_lines(text, MAX_CHARS)
        self.quote_lines(sign, kept)
        if end < len(text):
            self._cut_lines += text.count("\n", end) + (not text.endswith("\n"))
            self._cut_chars += len(text) - end

    def quote(self, sign: str, text: str, most: int = MAX_CHARS, *, ordered: bool = False) -> None:
        """Add a line of foreign text behind words of the kernel's; it is cut to the room that is left."""
        kept = text[: max(0, min(most, self._room))]
        while len(shown := escape(kept, ordered=ordered)) > self._room and len(kept) > 1:
            kept = kept[: len(kept) // 2]
        self.lines.append(f"{sign}{MARK}{shown}")
        self._room -= len(sign + shown)
        if cut := len(text) - len(kept):
            self._cut_chars += cut
            self.lines.append(f"… {cut} more characters of this line are not shown")

    def name(self, sign: str, name: str) -> None:
        """Add a line whose exact characters matter, and the numbers of those that may look like others."""
        self._room = max(self._room, MAX_NAME_CHARS)
        self.quote(sign, name, ordered=True)
        self.lines += number_strange(name)

    def name_each(self, begin: str, names: Iterable[str]) -> None:
        """Add a line for each of these names; those without room are counted."""
        listed = list(dict.fromkeys(names))
        for name in listed[:MAX_NAMED]:
            self._room = max(self._room, MAX_LINE_CHARS)
            self.quote(begin, name, MAX_LINE_CHARS, ordered=True)
        if len(listed) > MAX_NAMED:
            self.say(f"… {len(listed) - MAX_NAMED} more such names are not shown")

    def end(self, whole: bytes) -> str:
        """All lines; ``whole`` is what a cut text's digest is made of."""
        if self._cut_lines:
            self.say(f"… {self._cut_lines} more lines are not shown, {self._cut_chars} characters in all")
        if self._cut_chars:
            self.say(f"all of it: {summarize(whole)}")
        return "\n".join(self.lines)


def number_strange(*names: str) -> Sequence[str]:
    """The line with the numbers of characters that may look like others; none if all are ASCII."""
    strange = sorted({char for name in names for char in name if not char.isascii()})
    more = f" and {len(strange) - MAX_LISTED} more" if len(strange) > MAX_LISTED else ""
    numbers = [f"U+{ord(char):04X}" for char in strange[:MAX_LISTED]]
    return [f"not ASCII: {', '.join(numbers)}{more}"] if numbers else []


def summarize(data: bytes) -> str:
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"


def encode_text(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def decode_text(data: bytes) -> str | None:
    """The text of a file or a body; ``None`` if it is none."""
    try:
        return data.decode() if b"\0" not in data else None
    except UnicodeDecodeError:
        return None


def cut_lines(text: str, most: int) -> tuple[list[str], int]:
    """The first lines, at most ``most``, each with its line break, which the last one may lack; and where they end."""
    parts = text.split("\n", most)
    rest = parts.pop()
    lines = [f"{part}\n" for part in parts]
    if rest and len(lines) < most:
        return [*lines, rest], len(text)
    return lines, len(text) - len(rest)
