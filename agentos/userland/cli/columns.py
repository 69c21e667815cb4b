"""Tables and texts by the columns that they take on a terminal, where a wide character takes two."""

import shutil
from collections.abc import Collection, Iterator
from itertools import accumulate, takewhile
from unicodedata import east_asian_width

MIN_COLUMNS, MAX_COLUMNS = 80, 100


def table_width() -> int:
    """The columns that a table may take: the terminal's, but not fewer than 80; 100 where there is none."""
    return max(shutil.get_terminal_size((MAX_COLUMNS, 24)).columns, MIN_COLUMNS)


def text_width() -> int:
    """The columns that a text may take: as a table, but at most 100."""
    return min(table_width(), MAX_COLUMNS)


def row_width() -> int:
    """The columns of rows that a terminal must not break, as a part of them would stand in its first column."""
    return min(shutil.get_terminal_size((MAX_COLUMNS, 24)).columns, MAX_COLUMNS)


def format_table(rows: list[list[str]], header: list[str]) -> Iterator[str]:
    """Rows as aligned columns."""
    widths = [max(map(count_columns, column)) for column in zip(header, *rows, strict=True)]
    for row in [header, *rows]:
        yield "  ".join(pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()


def fit_columns(rows: list[list[str]], header: list[str], elastic: Collection[str], width: int) -> list[list[str]]:
    """Header and rows of a table at most ``width`` wide: the widest ``elastic`` column is cut first.

    Down to 8 characters, and no header is cut.
    """
    widths = [max(map(count_columns, column)) for column in zip(header, *rows, strict=True)]
    places = [place for place, name in enumerate(header) if name in elastic]
    least = [max(8, len(name)) for name in header]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(places, key=lambda place: widths[place] - least[place])
        if widths[widest] <= least[widest]:
            break
        widths[widest] -= 1
    return [[cut_middle(cell, most) for cell, most in zip(row, widths, strict=True)] for row in [header, *rows]]


def cut_middle(text: str, width: int) -> str:
    """A text of at most ``width`` columns: what distinguishes names stands at their beginning or their end."""
    if count_columns(text) <= width:
        return text
    end = (width - 1) // 2
    return take_columns(text, width - 1 - end) + "…" + take_columns(text[::-1], end)[::-1]


def take_columns(text: str, width: int) -> str:
    """As much of a text as stands in ``width`` columns."""
    if text.isascii():
        return text[:width]
    ends = accumulate(map(count_columns, text))
    return "".join(char for char, _ in takewhile(lambda pair: pair[1] <= width, zip(text, ends, strict=True)))


def pad(text: str, width: int) -> str:
    return text + " " * (width - count_columns(text))


def count_columns(text: str) -> int:
    """The most columns of a terminal that a printable text takes; combining marks count, so that they are bounded."""
    return len(text) + (0 if text.isascii() else sum(east_asian_width(char) in "WF" for char in text))
