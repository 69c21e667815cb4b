r"""Regular expressions of agents, by RE2: they take time linear in the text, whatever the pattern.

Python's ``re`` tries alternatives one after the other and holds the interpreter: ``(a+)+$`` can stop a kernel.
Many lines are searched as one text, in which no pattern matches a line break: RE2 needs 40 ns for a line then, a call
for each line 2 µs.
"""

import re
from collections.abc import Sequence

import re2

MAX_PATTERN_CHARS = 500
MAX_MEMORY = 1 << 20  # bytes, of one pattern and of the states it was in
_OF_WHOLE_TEXT = re.compile(r"\\[AzC]|\(\?\w*[-m]")  # what means another thing among other lines; more is no harm
_PLAIN = re.compile(r"[A-Za-z0-9 _:;,=/@%&!~#'<>-]+")  # finds itself, and is the same in JSON
_NOT_RE2 = ("invalid perl operator", "invalid escape sequence")


class PatternError(ValueError):
    """The pattern isn't one of these; the text says why."""


class Pattern:
    """A compiled pattern; raises :class:`PatternError`."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise PatternError(f"expected at most {MAX_PATTERN_CHARS} characters, got {len(pattern)}")
        options = re2.Options()
        options.log_errors, options.never_capture, options.never_nl, options.max_mem = False, True, True, MAX_MEMORY
        try:
            self._one = re2.compile(pattern, options)
            self._many = re2.compile(f"(?m){pattern}", options)
        except UnicodeEncodeError:
            raise PatternError("it has half of a surrogate pair, which is no character") from None
        except re2.error as error:
            raise PatternError(_explain(error)) from None
        finally:
            re2.purge()  # its cache would keep 128 patterns
        self._by_line = _OF_WHOLE_TEXT.search(pattern) is not None
        self._plain = pattern.encode() if _PLAIN.fullmatch(pattern) else b""

    @classmethod
    def for_replacing(cls, pattern: str) -> "Pattern":
        """A pattern whose matches are replaced; :class:`PatternError` also where it matches without any character."""
        made = cls(pattern)
        if made.matches(""):
            raise PatternError("it matches an empty text")
        return made

    def matches(self, text: str) -> bool:
        """Whether the pattern is found anywhere in ``text``, a line."""
        return self._one.search(text.encode(errors="surrogatepass")) is not None

    def find_all(self, text: str) -> list[bytes]:
        """All that it matches in ``text``."""
        return [found.group() for found in self._one.finditer(text.encode(errors="backslashreplace"))]

    def replace(self, text: str, by: str) -> str:
        """The text with ``by`` for all that it matches."""
        data = text.encode(errors="backslashreplace")
        replaced: bytes = self._one.sub(lambda found: by.encode(), data)
        return replaced.decode()

    def may_match(self, json: bytes) -> bool:
        """Whether a line may match whose text is somewhere in this ASCII JSON."""
        return self._plain in json

    def find(self, lines: Sequence[str]) -> list[int]:
        """Which of these lines match, by their places."""
        data = "\n".join(lines).encode(errors="surrogatepass")
        if self._by_line or data.count(b"\n") != len(lines) - 1:
            return [place for place, text in enumerate(lines) if self.matches(text)]
        found, place, at = list[int](), 0, 0
        while (match := self._many.search(data, at)) is not None:
            place += data.count(b"\n", at, match.start())
            found.append(place)
            at = data.find(b"\n", match.start()) + 1
            place += 1
            if not at:
                break
        return found


def _explain(error: re2.error) -> str:
    text = error.args[0]
    said = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    more = "; the syntax is RE2's, without backreferences and lookaround" if said.startswith(_NOT_RE2) else ""
    return said + more
