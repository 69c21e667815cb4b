"""How entries of the audit log look to people: one in a line, in columns."""

import shutil
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from .common import plain
from .doctor import NARROW, WIDE

if TYPE_CHECKING:
    from agentos.services.audit_chain import Row

LEAST = {"ENTRY": 5, "TIME": 8, "WHO": 8, "CALL": 8, "RESULT": 8}  # characters of a column
MOST = {"ENTRY": 19, "TIME": 8, "WHO": 14, "CALL": 18, "RESULT": 21}  # what is longer is cut
COLOURS = {"denied": "red", "must ask": "yellow", "intended": "bright_black"}


class Table:
    """Columns as wide as what stands in them; when later entries need wider ones, there is a header again.

    A line says when a new day begins.
    """

    def __init__(self) -> None:
        self._width = max(shutil.get_terminal_size((WIDE, 24)).columns, NARROW)
        self._columns: dict[str, int] = {}
        self._day = ""

    def __call__(self, rows: Sequence["Row"]) -> None:
        cells = [cells_of(row) for row in rows]
        if cells:
            self._widen(cells)
        for row, each in zip(rows, cells, strict=True):
            if (day := f"{datetime.fromtimestamp(row.at):%A, %d %B %Y}") != self._day:
                self._day = day
                click.secho(day, fg="bright_black")
            click.echo(self._line(each, COLOURS.get(each["RESULT"])))

    def _widen(self, cells: Sequence[dict[str, str]]) -> None:
        before = self._columns
        self._columns = {
            name: min(MOST[name], max([before.get(name, least), *(len(each[name]) for each in cells)]))
            for name, least in LEAST.items()
        }
        if self._columns != before:
            names = (*LEAST, "ABOUT")
            click.secho(self._line(dict(zip(names, names, strict=True))), bold=True)

    def _line(self, cells: dict[str, str], colour: str | None = None) -> str:
        room = self._width - sum(width + 2 for width in self._columns.values())
        parts = [cut(cells[name], width).ljust(width) for name, width in self._columns.items()]
        if colour is not None:
            parts[-1] = click.style(parts[-1], fg=colour)
        return "  ".join([*parts, cut(cells["ABOUT"], max(1, room))]).rstrip()


def cells_of(row: "Row") -> dict[str, str]:
    rule = f" [{row.rule}]" if row.decision != "allow" and row.rule else ""
    return {
        "ENTRY": str(row.seq),
        "TIME": f"{datetime.fromtimestamp(row.at):%H:%M:%S}",
        "WHO": plain(row.name),
        "CALL": plain(row.call),
        "RESULT": plain(result(row)),
        "ABOUT": plain(row.about + rule).strip(),
    }


def result(row: "Row") -> str:
    """What came of it: ``intended``, ``denied``, ``ok 12ms``; how long it took only where there is room for it."""
    if row.decision != "allow":
        return {"deny": "denied", "ask": "must ask"}.get(row.decision, row.decision)
    if row.phase == "intent":
        return "intended"
    both = row.outcome if row.duration is None else f"{row.outcome} {took(row.duration)}"
    return both if len(both) <= MOST["RESULT"] else row.outcome


def took(duration: float) -> str:
    if duration < 0.0995:
        return f"{duration * 1000:.1f}ms"
    return f"{duration * 1000:.0f}ms" if duration < 1 else f"{duration:.1f}s"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
