"""The text of a change: a unified diff of two files, bounded in size and in time, whatever an agent has written."""

import difflib
from collections.abc import Iterator, Sequence

from . import layers
from .changes import Change

MAX_FILE = 256 << 10  # bytes of one file that is shown
MAX_SHOWN = 1 << 20  # bytes of all texts in one diff
MAX_COMPARED = 400  # lines that differ, above which all are shown as replaced: comparing takes quadratic time
MAX_ALL_COMPARED = 20_000  # such lines of all files together
_CONTEXT = 3  # lines around a difference
_NO_NEWLINE = "\\ No newline at end of file"


class Texts:
    """The texts of one diff, of layers and a directory that are open."""

    def __init__(self, layers: Sequence[int], directory: int) -> None:
        self._layers, self._directory, self._lines = layers, directory, MAX_ALL_COMPARED

    def describe_all(self, changes: Sequence[Change]) -> dict[str, str]:
        """The differences by path, as long as there is room; without what is no text, too large, or can't be read."""
        found: dict[str, str] = {}
        room = MAX_SHOWN
        for change in changes:
            if room > 0 and (shown := self._describe(change)) is not None:
                found[change.path] = shown
                room -= len(shown)
        return found

    def _describe(self, change: Change) -> str | None:
        if change.kind == "link" and change.what != "deleted":
            return "".join(f"+{line}\n" for line in change.content.split("\n"))
        if change.kind != "file":
            return None
        try:
            old = _read_lines([self._directory], change) if change.what in ("changed", "deleted") else []
            new = _read_lines(self._layers, change) if change.what != "deleted" else []
        except (OSError, UnicodeError):
            return None
        if old is None or new is None:
            return None
        return "".join(f"{line}\n" for line in self._unify(old, new))

    def _unify(self, old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
        """The hunks of a unified diff; what both begin and end with is left out first."""
        start = 0
        while start < min(len(old), len(new)) and old[start] == new[start]:
            start += 1
        end = 0
        while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
            end += 1
        first, last = max(start - _CONTEXT, 0), max(end - _CONTEXT, 0)
        one, other = old[first : len(old) - last], new[first : len(new) - last]
        size = max(len(one), len(other))
        if one and other and (size > MAX_COMPARED or size > self._lines):
            yield _head(first, len(one), first, len(other))
            yield from (f"-{line}" for line in one)
            yield from (f"+{line}" for line in other)
            return
        self._lines -= size if one and other else 0
        yield from _compare(one, other, first)


def _read_lines(tops: Sequence[int], change: Change) -> list[str] | None:
    with layers.open_file(tops, change.path) as fd, open(fd, "rb", closefd=False) as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE or b"\0" in data:
        return None
    lines = data.decode().split("\n")
    last = lines.pop()
    return [*lines, *([f"{last}\n{_NO_NEWLINE}"] if last else [])]


def _compare(one: Sequence[str], other: Sequence[str], first: int) -> Iterator[str]:
    """The hunks of two texts that begin after line ``first`` of their files."""
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=True)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        i, j, k, m = group[0][1], group[-1][2], group[0][3], group[-1][4]
        yield _head(first + i, j - i, first + k, m - k)
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from (f" {line}" for line in one[a:b])
            else:
                yield from (f"-{line}" for line in one[a:b])
                yield from (f"+{line}" for line in other[c:d])


def _head(start: int, count: int, other_start: int, other_count: int) -> str:
    """The head of a hunk, as diff writes it: lines are counted from 1, and no line is at the one before."""
    return f"@@ -{start + (count > 0)},{count} +{other_start + (other_count > 0)},{other_count} @@"
