"""The end of a value in a command line: the end of its shell word, or of the quotes around it. No I/O.

A command line is text within text: ``sh -c 'curl -d "{\\"password\\": \\"a b\\"}"'``. Outside of quotes a value is a
run of quoted, escaped and bare pieces, as a shell reads it: ``a"b c"\\ d``. Inside of quotes it ends with them at the
latest, and may be quoted again in the ways that they allow: by the other kind, by ``\\"``, by ``'"'"'``.
"""

import re
from bisect import bisect_left
from functools import cached_property

from attrs import frozen

REDACTED = "[redacted]"

# No group is repeated possessively: before 3.11.5 Python loses its place in one if an alternative fails half-way.
_QUOTED = re.compile(r"""\\.|\$'(?:[^'\\]|\\.)*'?|'[^']*+'?|"(?:[^"\\]|\\.)*"?""", re.DOTALL)
_BARE = r"""(?:\[redacted\]|\\[^"']|[^\s"'`&;,|)}\]\\]|[,)}\]]++(?=[^\s"'`&;,|)}\]\\]))"""  # a,b but not a, b
_UNQUOTED_VALUE = re.compile(rf"(?:\$?(?:{_QUOTED.pattern})|{_BARE})+", re.DOTALL)
_NESTED = r"""(?P<quote>["']{3,40}+)(?:(?!(?P=quote)).)*(?P=quote)?|\\++"[^"]*+"?|\\++'[^']*+'?"""
_VALUE_IN_QUOTES = re.compile(rf"""(?:\$?(?:{_NESTED}|"(?:[^"\\]|\\.)*"?|'[^']*+'?))?{_BARE}*""", re.DOTALL)
_REST_OF_QUOTES = {"'": re.compile(r"""(?:[^']|'"'"')*"""), '"': re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)}
_SHELL_SCRIPT_OPTION = re.compile(r"-\w{0,8}c\s{0,8}\$?\Z")  # sh -c, bash -lc


@frozen
class ValueFinder:
    """The values in a text."""

    text: str

    def end(self, begin: int, whole: int | None = None) -> int:
        """The end of the value that begins at ``begin``.

        If ``whole`` is the beginning of a quoted argument, the value is the rest of that argument: ``'PASSWORD=a b'``.
        Not in the script of a shell, where other words follow: ``sh -c 'PASSWORD=a make'``.
        """
        opened = self._enclosing_quote(begin)
        if opened is None:
            found = _UNQUOTED_VALUE.match(self.text, begin)
        elif opened == whole and not _SHELL_SCRIPT_OPTION.search(self.text, max(0, opened - 20), opened - 1):
            found = _REST_OF_QUOTES[self.text[opened - 1]].match(self.text, begin)
        else:
            found = _VALUE_IN_QUOTES.match(self.text, begin)
        return found.end() if found else begin

    def _enclosing_quote(self, position: int) -> int | None:
        """Where the quotes begin that enclose ``position``; ``None`` if there are none."""
        begins, ends = self._quotes
        at = bisect_left(begins, position + 1) - 1
        return begins[at] if at >= 0 and position < ends[at] else None

    @cached_property
    def _quotes(self) -> tuple[list[int], list[int]]:
        """Positions of all quotes: after the opening sign, and after the closing one."""
        quoted = [match for match in _QUOTED.finditer(self.text) if match[0][0] != "\\"]
        return [match.start() + 1 + (match[0][0] == "$") for match in quoted], [match.end() for match in quoted]
