"""The figures for people: a table and a picture, on a page of the reference."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from tests.speed.pages import drawing, replace_figures
from tests.speed.processes import ROOT
from tests.speed.results import machine, table

from .setups import PYTHON, SETUPS, Outcome

PAGE = ROOT / "docs" / "reference" / "comparison.md"
PICTURE = ROOT / "docs" / "figures" / "comparison.svg"
COLOURS = ("#f4a582", "#d6604d", "#878787", "#2166ac")  # of the setups, in their order
COLUMNS: Mapping[str, tuple[Callable[[Outcome], float], str]] = {
    "right answers": (lambda one: len(one.good), "{:.0f}"),
    "first, s": (lambda one: one.good[0], "{:.1f}"),
    "last, s": (lambda one: one.good[-1], "{:.1f}"),
    "peak memory, MiB": (lambda one: one.peak / (1 << 20), "{:,.0f}"),
    "bytes stolen": (lambda one: one.sent, "{:,.0f}"),
    "orphans": (lambda one: one.orphans, "{:.0f}"),
}


def line(outcome: Outcome) -> str:
    """One run, for a terminal."""
    figures = ", ".join(f"{name} {form.format(value(outcome))}" for name, (value, form) in COLUMNS.items())
    key = ", the operator's key among them" if outcome.key else ""
    return f"{outcome.setup}: {figures}{key}; killed for lack of memory: {outcome.killed}"


def _cell(runs: Sequence[Outcome], value: Callable[[Outcome], float], form: str) -> str:
    """The median, with the range where the runs differ."""
    values = [form.format(value(one)) for one in sorted(runs, key=value)]
    middle = form.format(median(map(value, runs)))
    return middle if values[0] == values[-1] else f"{middle} ({values[0]} to {values[-1]})"


def by_setup(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    found = {setup: [one for one in outcomes if one.setup == setup] for setup in SETUPS}
    return {setup: runs for setup, runs in found.items() if runs}


def as_table(outcomes: Sequence[Outcome]) -> str:
    """A row for each setup."""
    head = ("setup", *COLUMNS)
    head = tuple(f"{name} of {outcomes[0].questions}" if name == "right answers" else name for name in head)
    rows = (
        (setup, *(_cell(runs, value, form) for value, form in COLUMNS.values()))
        for setup, runs in by_setup(outcomes).items()
    )
    return table(head, rows)


PANELS: Sequence[tuple[str, Callable[[Outcome], float]]] = (
    ("right answers", lambda one: len(one.good)),
    ("MB stolen", lambda one: one.sent / 1e6),
    ("processes left behind", lambda one: one.orphans),
    ("peak memory, MiB", lambda one: one.peak / (1 << 20)),
)


def plot(outcomes: Sequence[Outcome]) -> None:
    """Four panels with a bar for each setup: the median of its runs."""
    setups = by_setup(outcomes)
    with drawing(PICTURE, len(PANELS), (9.5, 2), sharey=True) as (_, axes):
        for axis, (title, value) in zip(axes, PANELS, strict=True):
            middles = [median(map(value, runs)) for runs in setups.values()]
            bars = axis.barh(list(setups), middles, color=COLOURS)
            axis.bar_label(bars, fmt="{:,.0f}", padding=2)
            axis.set_xlim(0, 1.25 * max(*middles, 1))
            axis.set_xticks([])
            axis.spines[["top", "right", "bottom"]].set_visible(False)
            axis.set_title(title, fontsize=8)
        axes[0].invert_yaxis()


def about() -> str:
    """The host, and the versions of what was compared."""
    command = [str(PYTHON.with_name("pip")), "--disable-pip-version-check", "list", "--format", "json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    versions = {one["name"]: one["version"] for one in found}
    facts = {**machine(), **{name: versions[name] for name in ("langgraph", "autogen-agentchat", "supervisor")}}
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def write(outcomes: Sequence[Outcome]) -> None:
    """Replace the figures on the page, and the picture."""
    runs = len(outcomes) // len(by_setup(outcomes))
    measured = f"Median of {runs} runs, with the smallest and the largest value where they differ:"
    figures = as_table(outcomes)
    replace_figures(PAGE, "comparison", f"{about()}\n\n{measured}\n\n{figures}")
    plot(outcomes)
