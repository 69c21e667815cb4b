"""The figures for people: a table and a picture, on a page of the reference and in README."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from tests.speed.llm.report import table
from tests.speed.processes import ROOT
from tests.speed.results import machine

from .setups import PYTHON, SETUPS, Outcome

PAGE = ROOT / "docs" / "reference" / "comparison.md"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "figures" / "comparison.svg"
MARKED = re.compile(r"(?<=<!-- comparison -->\n).*(?=<!-- /comparison -->)", re.DOTALL)
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


def plot(outcomes: Sequence[Outcome]) -> None:
    """Right answers over time: of each setup the run in the middle, by their number."""
    import matplotlib  # here: it takes a second, and only this needs it

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "comparison", "font.size": 8})
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for colour, (setup, runs) in zip(COLOURS, by_setup(outcomes).items(), strict=False):
        middle = sorted(runs, key=lambda one: len(one.good))[len(runs) // 2]
        axis.step([0, *middle.good], range(len(middle.good) + 1), where="post", label=setup, color=colour)
        axis.plot(middle.good[-1], len(middle.good), "o", markersize=4, color=colour)
    axis.set_xlabel("seconds since the start")
    axis.set_title("right answers of the agent that works", fontsize=8)
    axis.set_ylim(0, outcomes[0].questions)
    axis.set_xlim(left=0)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(SETUPS))
    figure.savefig(PICTURE, metadata={"Date": None})
    pyplot.close(figure)


def about() -> str:
    """The host, and the versions of what was compared."""
    command = [str(PYTHON.with_name("pip")), "--disable-pip-version-check", "list", "--format", "json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    versions = {one["name"]: one["version"] for one in found}
    facts = {**machine(), **{name: versions[name] for name in ("langgraph", "autogen-agentchat", "supervisor")}}
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def write(outcomes: Sequence[Outcome]) -> None:
    """Replace the figures on the page and in README, and the picture."""
    runs = len(outcomes) // len(by_setup(outcomes))
    measured = f"Median of {runs} runs, with the smallest and the largest value where they differ:"
    figures = f"{about()}\n\n{measured}\n\n{as_table(outcomes)}\n"
    _replace(PAGE, figures)
    _replace(README, f"{as_table(outcomes)}\n")
    plot(outcomes)


def _replace(page: Path, figures: str) -> None:
    page.write_text(MARKED.sub(lambda _: figures, page.read_text()))
