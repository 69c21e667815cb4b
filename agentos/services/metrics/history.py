"""The samples of the last 15 minutes, in flat arrays."""

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Literal

KEPT_SECONDS = 900.0
MAX_ROWS = 1000  # a sample each second, and some that were asked for in between
TRIMMED_ROWS = 64  # are removed at a time: to remove the first of an array moves all others


class History:
    """Rows of numbers with their time. ``columns`` are names with the type codes of their arrays: ``d`` or ``f``.

    An agent's takes at most 40 KiB. What isn't known is NaN in the arrays, and None in what is read.
    """

    def __init__(self, columns: Mapping[str, Literal["d", "f"]]) -> None:
        self._at: array[float] = array("d")
        self._columns: dict[str, array[float]] = {name: array(code) for name, code in columns.items()}

    def __len__(self) -> int:
        return len(self._at)

    @property
    def size(self) -> int:
        """Bytes that its numbers take, allocated ones included."""
        return sum(column.__sizeof__() for column in (self._at, *self._columns.values()))

    def add(self, at: float, row: Iterable[float | None]) -> None:
        """Add a row, its numbers in the order of the columns; ``at`` is seconds since the epoch."""
        self._at.append(at)
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(math.nan if value is None else value)
        rows = len(self._at)
        if rows > TRIMMED_ROWS and (rows > MAX_ROWS or self._at[TRIMMED_ROWS - 1] < at - KEPT_SECONDS):
            for column in (self._at, *self._columns.values()):
                del column[:TRIMMED_ROWS]

    def since(self, at: float) -> dict[str, list[float | None]]:
        """The rows from a moment on, column by column, with their times as ``at``."""
        rows = [number for number, moment in enumerate(self._at) if moment >= at]
        found: dict[str, list[float | None]] = {"at": [self._at[row] for row in rows]}
        for name, column in self._columns.items():
            found[name] = [None if math.isnan(column[row]) else column[row] for row in rows]
        return found
