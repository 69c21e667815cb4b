"""Where the value ends that begins here: with its shell word, or with the quotes that it stands in. Pure.

A command line is text within text: ``sh -c 'curl -d "{\\"password\\": \\"a b\\"}"'``. What is outside all quotes is a
run of quoted, escaped and bare pieces, as a shell reads it: ``a"b c"\\ d``. What is inside of quotes ends with them at
the latest, and may be quoted again in the ways that they leave: by the other kind, by ``\\"``, by ``'"'"'``.
"""

import re
from bisect import bisect_left
from functools import cached_property

from attrs import frozen

GONE = "[redacted]"

# No group is repeated possessively: before 3.11.5 Python loses its place in one where an alternative fails half-way.
_QUOTED = re.compile(r"""\\.|\$'(?:[^'\\]|\\.)*'?|'[^']*+'?|"(?:[^"\\]|\\.)*"?""", re.DOTALL)
_BARE = r"""(?:\[redacted\]|\\[^"']|[^\s"'`&;,|)}\]\\]|[,)}\]]++(?=[^\s"'`&;,|)}\]\\]))"""  # a,b but not a, b
_OUTSIDE = re.compile(rf"(?:\$?(?:{_QUOTED.pattern})|{_BARE})+", re.DOTALL)
_NESTED = r"""(?P<quote>["']{3,40}+)(?:(?!(?P=quote)).)*(?P=quote)?|\\++"[^"]*+"?|\\++'[^']*+'?"""
_INSIDE = re.compile(rf"""(?:\$?(?:{_NESTED}|"(?:[^"\\]|\\.)*"?|'[^']*+'?))?{_BARE}*""", re.DOTALL)
_ALL = {"'": re.compile(r"""(?:[^']|'"'"')*"""), '"': re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)}
_SCRIPT = re.compile(r"-\w{0,8}c\s{0,8}\$?\Z")  # sh -c, bash -lc


@frozen
class Values:
    """The values in a text."""

    text: str

    def end(self, begin: int, whole: int | None = None) -> int:
        """Where the value ends that begins at ``begin``.

        Where ``whole`` is where a quoted argument begins, it is all the rest of that: ``'PASSWORD=a b'``. Not in the
        script of a shell, where other words follow: ``sh -c 'PASSWORD=a make'``.
        """
        opened = self._opened(begin)
        if opened is None:
            found = _OUTSIDE.match(self.text, begin)
        elif opened == whole and not _SCRIPT.search(self.text, max(0, opened - 20), opened - 1):
            found = _ALL[self.text[opened - 1]].match(self.text, begin)
        else:
            found = _INSIDE.match(self.text, begin)
        return found.end() if found else begin

    def _opened(self, position: int) -> int | None:
        """Where the quotes open that ``position`` stands in."""
        begins, ends = self._quotes
        at = bisect_left(begins, position + 1) - 1
        return begins[at] if at >= 0 and position < ends[at] else None

    @cached_property
    def _quotes(self) -> tuple[list[int], list[int]]:
        """Where all quotes open and where they close: behind the one sign, behind the other."""
        quoted = [match for match in _QUOTED.finditer(self.text) if match[0][0] != "\\"]
        return [match.start() + 1 + (match[0][0] == "$") for match in quoted], [match.end() for match in quoted]
