"""Rows of the measurement: what is declared of each, what was measured, and whether it got worse.

A row is compared with an earlier one by its ratio to the floor if it has one, otherwise by its figure. It got worse
where the quartiles of the two don't overlap.
"""

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

from attrs import frozen

HEAD = ("what", "measured", "floor", "ratio", "target", "met?")
MARKED = re.compile(r"<!-- (bench|layers) -->\n(.*?)<!-- /\1 -->", re.DOTALL)
SPREAD = re.compile(r"([\d.,]+)[^(]*\(([\d.,]+) to ([\d.,]+)\)")  # as Figure.text writes it
PARTS = 10  # that a long series is cut into
WORSE = "WORSE"


@frozen
class Row:
    """A declared row. ``most`` or ``least`` is its target in its unit, ``most_ratio`` or ``least_ratio`` in floors."""

    name: str
    unit: str
    most: float | None = None
    least: float | None = None
    most_ratio: float | None = None
    least_ratio: float | None = None
    floor: str = "floor"
    more: bool = False  # more is better

    @property
    def target(self) -> str:
        bounds = (
            ("<=", self.most_ratio, f" x {self.floor}"),
            (">=", self.least_ratio, f" x {self.floor}"),
            ("<=", self.most, self.unit),
            (">=", self.least, self.unit),
        )
        return ", ".join(f"{sign} {bound:,g}{unit}" for sign, bound, unit in bounds if bound is not None) or "-"


@frozen
class Figure:
    """A median and its quartiles over several rounds; of a single round the quartiles are ``None``."""

    middle: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, series: Sequence[float]) -> "Figure":
        """Of a long series a round is the median of one of its ``PARTS``: single values differ more than runs do."""
        if len(series) == 1:
            return cls(series[0])
        size = max(1, len(series) // PARTS)
        rounds = [median(series[at : at + size]) for at in range(0, len(series) - size + 1, size)]
        low, _, high = quantiles(rounds, n=4, method="inclusive")
        return cls(median(series), low, high)

    def text(self, unit: str = "") -> str:
        if self.low is None or self.high is None:
            return f"{number(self.middle)}{unit}"
        return f"{number(self.middle)}{unit} ({number(self.low)} to {number(self.high)})"


@frozen
class Result:
    """What was measured for a row. The ratio is that of each round, so that drift of the machine cancels."""

    row: Row
    figure: Figure
    floor: Figure | None = None
    ratio: Figure | None = None
    note: str = ""

    @classmethod
    def of(cls, row: Row, series: Sequence[float], floor: Sequence[float] | None = None, note: str = "") -> "Result":
        """``floor`` was measured in turn with ``series``."""
        if floor is None:
            return cls(row, Figure.of(series), note=note)
        each = [a / b for a, b in zip(series, floor, strict=True)]
        return cls(row, Figure.of(series), Figure.of(floor), Figure.of(each), note)

    @property
    def compared(self) -> Figure:
        return self.ratio or self.figure

    @property
    def met(self) -> bool | None:
        """Whether all targets are met; ``None`` without one."""
        row, figure, ratio = self.row, self.figure.middle, self.ratio.middle if self.ratio is not None else 0.0
        held = [
            row.most is None or figure <= row.most,
            row.least is None or figure >= row.least,
            row.most_ratio is None or ratio <= row.most_ratio,
            row.least_ratio is None or ratio >= row.least_ratio,
        ]
        return all(held) if row.target != "-" else None

    def cells(self) -> tuple[str, ...]:
        measured = self.figure.text(self.row.unit) + (f"; {self.note}" if self.note else "")
        called = "" if self.row.floor == "floor" else f"{self.row.floor}: "
        floor = f"{called}{number(self.floor.middle)}{self.row.unit}" if self.floor is not None else "-"
        ratio = self.ratio.text() if self.ratio is not None else "-"
        met = {True: "yes", False: "NO", None: "-"}[self.met]
        return (self.row.name, measured, floor, ratio, self.row.target, met)

    def change(self, before: Figure | None) -> str:
        """Against an earlier figure of this row; ``-`` where one of the two has no spread."""
        now = self.compared
        if before is None or now.low is None or now.high is None or before.low is None or before.high is None:
            return "-"
        less, more = now.high < before.low, now.low > before.high
        if not less and not more:
            return "same"
        return f"{'better' if more is self.row.more else WORSE}, {now.middle / before.middle - 1:+.0%}"


def number(value: float) -> str:
    """Three digits or more."""
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpus = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "CPU": f"{len(cpus)} x {cpus[0]}" if cpus else f"{os.cpu_count()} x {platform.machine()}",
        "Kernel": platform.release(),
        "Python": platform.python_version(),
        "Load average": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def lined_up(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]


def as_text(about: Mapping[str, str], results: Sequence[Result]) -> str:
    lines = [f"{name}: {value}" for name, value in about.items()]
    table = lined_up([HEAD, *(result.cells() for result in results)])
    return "\n".join([*lines, "", *("  ".join(row).rstrip() for row in table)])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, its columns aligned."""
    lines = lined_up([head, *rows])
    lines.insert(1, ["-" * len(cell) for cell in lines[0]])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_markdown(about: Mapping[str, str], results: Sequence[Result]) -> str:
    lines = "\n".join(f"- {name}: {value}" for name, value in about.items())
    return f"{lines}\n\n{table(HEAD, (result.cells() for result in results))}"


def read_figures(page: str) -> dict[str, Figure]:
    """The figures of a page's tables that rows are compared with, by name; those without a spread are left out."""
    figures = {}
    for line in (line for found in MARKED.finditer(page) for line in found[2].splitlines()):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != len(HEAD):
            continue
        name, measured, _, ratio, *_ = cells
        if spread := SPREAD.match(measured if ratio == "-" else ratio):
            figures[name] = Figure(*(float(part.replace(",", "")) for part in spread.groups()))
    return figures
