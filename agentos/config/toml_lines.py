"""Line numbers of values in a TOML text.

Parsers return values without lines. But every statement (a header, or a key with its value) is a valid text alone, so
each is parsed again by itself. What headers mean for the statements below them is tracked here.
"""

import tomllib
from collections.abc import Iterable, Iterator

Keys = tuple[str | int, ...]

MAX_PARSED_CHARACTERS = 8 << 20  # about 3 s; reached only by a value of thousands of lines


def find_lines(text: str, key_paths: Iterable[Keys]) -> dict[Keys, int]:
    """For each key path the line, from 1, where its statement begins. The text must be valid.

    A missing key, such as a missing field, gets the line of the nearest table around it; without such a table it is
    omitted.
    """
    lines = _Lines()
    for line, statement, value in _statements(text):
        lines.add(line, value, header=statement.lstrip().startswith("["))
    found = {keys: lines.nearest_line(keys) for keys in key_paths}
    return {keys: line for keys, line in found.items() if line is not None}


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, object]]]:
    """Each statement with its first line and its value; a statement ends where it first is a valid text."""
    statement, first_line, parsed = "", 1, 0
    for line, content in enumerate(text.split("\n"), 1):
        statement += content + "\n"
        parsed += len(statement)
        if parsed > MAX_PARSED_CHARACTERS:
            return
        try:
            value = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        if value:  # else it's a comment
            yield first_line, statement, value
        statement, first_line = "", line + 1


class _Lines:
    def __init__(self) -> None:
        self._line: dict[Keys, int] = {}
        self._table: Keys = ()  # the table of the latest header
        self._lengths: dict[Keys, int] = {}  # of arrays of tables

    def add(self, line: int, value: dict[str, object], header: bool) -> None:
        if header:
            self._table = self._table_keys(value)
            for length in range(1, len(self._table) + 1):
                self._line.setdefault(self._table[:length], line)
        else:
            self._record(line, self._table, value)

    def nearest_line(self, keys: Keys) -> int | None:
        return next((self._line[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self._line), None)

    def _table_keys(self, value: object) -> Keys:
        """``[a.b]`` is ``{a: {b: {}}}``, ``[[a.b]]`` is ``{a: {b: [{}]}}``; a is its last element if it is an array."""
        keys: Keys = ()
        while isinstance(value, dict) and value:
            [(key, value)] = value.items()
            keys = (*keys, key)
            if isinstance(value, list):
                self._lengths[keys] = self._lengths.get(keys, 0) + 1
            if keys in self._lengths:
                keys = (*keys, self._lengths[keys] - 1)
        return keys

    def _record(self, line: int, at: Keys, value: object) -> None:
        self._line.setdefault(at, line)
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, value in inner:
            self._record(line, (*at, key), value)
