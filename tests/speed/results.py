"""What is printed: the machine, a row for each number with its target, and what could not be measured."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from attrs import asdict, field, frozen

HEAD = ("what", "measured", "floor", "ratio", "target", "met?")


@frozen
class Row:
    """``met`` is ``None`` where nothing was promised; ``numbers`` are for programs, their names end with the unit."""

    what: str
    measured: str
    floor: str = "-"
    ratio: str = "-"
    target: str = "-"
    met: bool | None = None
    numbers: dict[str, float] = field(factory=dict)

    def cells(self) -> tuple[str, ...]:
        met = {True: "yes", False: "NO", None: "-"}[self.met]
        return (self.what, self.measured, self.floor, self.ratio, self.target, met)


@frozen
class Ratio:
    """Of two series measured in turn: each round's quotient is taken, so that drift of the machine cancels."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(measured: Sequence[float], beside: Sequence[float]) -> Ratio:
    each = [a / b for a, b in zip(measured, beside, strict=True)]
    return Ratio(median(each), min(each), max(each))


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


def as_text(about: dict[str, str], rows: Sequence[Row]) -> str:
    lines = [f"{name}: {value}" for name, value in about.items()]
    table = lined_up([HEAD, *(row.cells() for row in rows)])
    table.insert(1, ["-" * len(cell) for cell in table[0]])
    return "\n".join([*lines, "", *("  ".join(row).rstrip() for row in table)])


def as_markdown(about: dict[str, str], rows: Sequence[Row]) -> str:
    lines = [f"- {name}: {value}" for name, value in about.items()]
    table = lined_up([HEAD, *(row.cells() for row in rows)])
    table.insert(1, ["-" * len(cell) for cell in table[0]])
    return "\n".join([*lines, "", *(f"| {' | '.join(row)} |" for row in table)])


def as_json(about: dict[str, str], rows: Sequence[Row], failed: dict[str, str]) -> dict[str, Any]:
    return {"machine": about, "rows": [asdict(row) for row in rows], "failed": failed}
