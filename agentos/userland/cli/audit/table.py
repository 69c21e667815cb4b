"""The table of audit log entries for people: one line each, in columns. Entries are in the form of `--json`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from agentos.userland.cli.columns import count_columns, pad, table_width, take_columns
from agentos.userland.cli.common import printable

Entry = Mapping[str, Any]

MIN_WIDTHS = {"ENTRY": 5, "TIME": 8, "CALLER": 8, "CALL": 8, "RESULT": 8}  # minimum width of a column, in characters
MAX_WIDTHS = {"ENTRY": 19, "TIME": 8, "CALLER": 14, "CALL": 18, "RESULT": 21}  # maximum width; longer text is cut
COLOURS = {"denied": "red", "must ask": "yellow", "intended": "bright_black"}


class Table:
    """A table with columns that fit their content. The header is printed again when later entries need wider columns.

    A line marks the start of each day.
    """

    def __init__(self) -> None:
        self._width = table_width()
        self._columns: dict[str, int] = {}
        self._day = ""

    def __call__(self, entries: Sequence[Entry]) -> None:
        cells = [format_cells(entry) for entry in entries]
        if cells:
            self._widen(cells)
        for entry, each in zip(entries, cells, strict=True):
            if (day := f"{datetime.fromtimestamp(entry['at']):%A, %d %B %Y}") != self._day:
                self._day = day
                click.secho(day, fg="bright_black")
            click.echo(self._line(each, COLOURS.get(each["RESULT"])))

    def _widen(self, cells: Sequence[dict[str, str]]) -> None:
        before = self._columns
        step = 4 if before else 1  # later in steps of 4, so that there are few headers
        self._columns = {
            name: min(
                MAX_WIDTHS[name],
                max([before.get(name, least), *(-(-len(each[name]) // step) * step for each in cells)]),
            )
            for name, least in MIN_WIDTHS.items()
        }
        if self._columns != before:
            names = (*MIN_WIDTHS, "ABOUT")
            click.secho(self._line(dict(zip(names, names, strict=True))), bold=True)

    def _line(self, cells: dict[str, str], colour: str | None = None) -> str:
        room = self._width - sum(width + 2 for width in self._columns.values())
        parts = [pad(truncate(cells[name], width), width) for name, width in self._columns.items()]
        if colour is not None:
            parts[-1] = click.style(parts[-1], fg=colour)
        return "  ".join([*parts, truncate(cells["ABOUT"], max(1, room))]).rstrip()


def format_cells(entry: Entry) -> dict[str, str]:
    rule = f" [{entry['rule']}]" if entry["decision"] != "allow" and entry["rule"] else ""
    return {
        "ENTRY": str(entry["id"]),
        "TIME": f"{datetime.fromtimestamp(entry['at']):%H:%M:%S}",
        "CALLER": printable(entry["name"]),
        "CALL": printable(entry["call"]),
        "RESULT": printable(result(entry)),
        "ABOUT": printable(entry["about"] + rule).strip(),
    }


def result(entry: Entry) -> str:
    """The result of an entry: ``intended``, ``denied``, ``ok 12ms``; the duration is left out if it doesn't fit."""
    decision, outcome, duration = (str(entry["decision"]), str(entry["outcome"]), entry["duration"])
    if decision != "allow":
        return {"deny": "denied", "ask": "must ask"}.get(decision, decision)
    if entry["phase"] == "intent":
        return "intended"
    both = outcome if duration is None else f"{outcome} {format_duration(duration)}"
    return both if len(both) <= MAX_WIDTHS["RESULT"] else outcome


def format_duration(duration: float) -> str:
    if duration < 0.0995:
        return f"{duration * 1000:.1f}ms"
    return f"{duration * 1000:.0f}ms" if duration < 1 else f"{duration:.1f}s"


def truncate(text: str, width: int) -> str:
    return text if count_columns(text) <= width else take_columns(text, width - 1) + "…"
