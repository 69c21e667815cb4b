"""Runs the measurements and prints their rows as they come: ``python -m tests.speed.bench [--quick] [ROW]``.

Each row is compared with docs/reference/speed.md, and what got worse is marked. Status 0: everything ran, and whether a
target is met is for the reader to see. 1: something did not run or answered wrongly. 2: there is no C compiler, or no
such row. Client and server share one CPU; what says otherwise says it where it is done.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from attrs import frozen

from tests.speed.layers import images as measure_images
from tests.speed.layers import overlays as measure_overlays
from tests.speed.measure import audit as measure_audit
from tests.speed.measure import beside as measure_beside
from tests.speed.measure import dashboard as measure_dashboard
from tests.speed.measure import events as measure_events
from tests.speed.measure import files as measure_files
from tests.speed.measure import host as measure_host
from tests.speed.measure import http as measure_http
from tests.speed.measure import llm as measure_llm
from tests.speed.measure import mail as measure_mail
from tests.speed.measure import metrics as measure_metrics
from tests.speed.measure import permissions as measure_permissions
from tests.speed.measure import state as measure_state
from tests.speed.measure import tunnel as measure_tunnel
from tests.speed.measure import wire as measure_wire
from tests.speed.pages import replace_figures
from tests.speed.place import Place
from tests.speed.processes import ROOT, MeasurementError
from tests.speed.results import HEAD, WORSE, Figure, Result, Row, as_markdown, machine, read_figures
from tests.speed.starts import agents as measure_agents
from tests.speed.starts import jails as measure_jails
from tests.speed.starts import replacement as measure_replacement
from tests.speed.starts import spawn as measure_spawn
from tests.speed.tools import NoCompilerError, compile_modules, compile_tools


@frozen
class Group:
    """Rows that are measured together."""

    name: str
    measure: Callable[[Place], Iterable[Result]]
    rows: Sequence[Row]

    def selected(self, wanted: str) -> Sequence[Row]:
        """All rows if the group's name contains the text, otherwise those whose own name does."""
        text = wanted.casefold()
        return [row for row in self.rows if text in self.name.casefold() or text in row.name.casefold()]

    @property
    def table(self) -> str:
        """Which of the page's tables has its rows: that of layers is measured, and written, by itself."""
        return "layers" if self.name.startswith("layers") else "bench"


GROUPS = (
    Group("rtt", measure_wire.rtt, measure_wire.RTT),
    Group("flight", measure_wire.flight, measure_wire.FLIGHT),
    Group("conns", measure_wire.conns, measure_wire.CONNS),
    Group("heavy", measure_wire.heavy, measure_wire.HEAVY),
    Group("ready", measure_host.ready, measure_host.READY),
    Group("idle", measure_host.idle, measure_host.IDLE),
    Group("agents", measure_agents.agents, measure_agents.ROWS),
    Group("shutdown", measure_agents.stops, measure_agents.STOPS),
    Group("replacement", measure_replacement.replacement, measure_replacement.ROWS),
    Group("sandbox", measure_spawn.sandbox, measure_spawn.ROWS),
    Group("spawn", measure_jails.jails, measure_jails.ROWS),
    Group("ended", measure_jails.ended, measure_jails.ENDED),
    Group("audit", measure_audit.audit, measure_audit.ROWS),
    Group("llm", measure_llm.llm, measure_llm.ROWS),
    Group("files", measure_files.files, measure_files.ROWS),
    Group("permissions", measure_permissions.decisions, measure_permissions.DECISIONS),
    Group("exec", measure_permissions.commands, measure_permissions.COMMANDS),
    Group("tunnel", measure_tunnel.tunnel, measure_tunnel.ROWS),
    Group("state", measure_state.state, measure_state.ROWS),
    Group("mail", measure_mail.mail, measure_mail.ROWS),
    Group("events", measure_events.events, measure_events.ROWS),
    Group("metrics", measure_metrics.metrics, measure_metrics.ROWS),
    Group("beside", measure_beside.beside, measure_beside.ROWS),
    Group("http", measure_http.requests, measure_http.ROWS),
    Group("dashboard", measure_dashboard.dashboard, measure_dashboard.ROWS),
    Group("recorded", measure_wire.recorded, measure_wire.RECORDED),
    Group("layers", measure_overlays.overlays, measure_overlays.ROWS),
    Group("layers: images", measure_images.images, measure_images.ROWS),
)
PAGE = ROOT / "docs" / "reference" / "speed.md"
LIMIT, QUICK_LIMIT = 450, 240  # seconds for everything
WIDTHS = (max(len(row.name) for group in GROUPS for row in group.rows), 40, 26, 22, 27, 4)


class OutOfTimeError(Exception):
    """The whole run has taken as long as it may."""


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError


def select(wanted: str) -> Mapping[str, Sequence[Row]]:
    """The rows to measure by group, possibly none."""
    return {group.name: rows for group in GROUPS if (rows := group.selected(wanted))}


def is_whole(wanted: Mapping[str, Sequence[Row]]) -> bool:
    """Whether all rows of each table are wanted, or none of it."""
    tables = {group.table for group in GROUPS if group.name in wanted}
    return all(list(group.rows) == list(wanted.get(group.name, ())) for group in GROUPS if group.table in tables)


def write(about: Mapping[str, str], results: Sequence[Result]) -> None:
    """Replace the tables on the page whose rows were measured."""
    tables = {row.name: group.table for group in GROUPS for row in group.rows}
    for name in dict.fromkeys(tables[result.row.name] for result in results):
        own = [result for result in results if tables[result.row.name] == name]
        replace_figures(PAGE, name, as_markdown(about, own))


def measure(place: Place, wanted: Mapping[str, Sequence[Row]], found: Callable[[Result], None]) -> Mapping[str, str]:
    """Call ``found`` with each result; returns by group why some of its rows are missing.

    What fails doesn't keep the others from being measured.
    """
    failed: dict[str, str] = {}
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(QUICK_LIMIT if place.quick else LIMIT)
    try:
        for group in GROUPS:
            if group.name not in wanted:
                continue
            try:
                left = list(group.rows)
                for result in group.measure(place):
                    left.remove(result.row)
                    if result.row in wanted[group.name]:
                        found(result)
                assert not left, f"{group.name} has measured no {left[0].name}"
            except (MeasurementError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
                failed[group.name] = str(error) if isinstance(error, MeasurementError) else repr(error)
    except OutOfTimeError:
        names = list(wanted)
        failed |= dict.fromkeys(names[names.index(group.name) :], "the whole run had no time left")
    finally:
        signal.alarm(0)
    return failed


def print_row(cells: Iterable[str]) -> None:
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, (*WIDTHS, 0), strict=True)).rstrip(), flush=True)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.speed.bench", description=__doc__.splitlines()[0])
    parser.add_argument("row", nargs="?", default="", help="a part of a row's name, or of a group's (default: all)")
    parser.add_argument("--quick", action="store_true", help=f"fewer and shorter rounds: {QUICK_LIMIT} s at most")
    parser.add_argument("--write", action="store_true", help="write the tables, or that of layers, to the page")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="where (default: %(default)s)")
    parser.add_argument(
        "--kernel",
        default=shlex.join([sys.executable, "-m", "agentos", "run"]),
        help="the command that the configuration and its options are added to",
    )
    asked = parser.parse_args(argv)
    if not select(asked.row):
        names = "\n".join(f"  {group.name}: {'; '.join(row.name for row in group.rows)}" for group in GROUPS)
        parser.error(f"no row or group is called {asked.row!r}; there are\n{names}")
    if asked.write and (asked.quick or not is_whole(select(asked.row))):
        parser.error("--write needs all rows in full length, or all of layers")
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended then too
    about = machine()  # before we load it ourselves
    before: Mapping[str, Figure] = read_figures(PAGE.read_text())
    results: list[Result] = []

    def found(result: Result) -> None:
        results.append(result)
        print_row((*result.cells(), result.change(before.get(result.row.name))))

    with tempfile.TemporaryDirectory(prefix="speed-", ignore_cleanup_errors=True) as directory:
        try:
            tools = compile_tools(Path(directory))
        except NoCompilerError as error:
            print(error, file=sys.stderr)
            return 2
        compile_modules()
        print("\n".join(f"{name}: {value}" for name, value in about.items()), end="\n\n")
        print_row((*HEAD, "since the page"))
        place = Place(Path(directory), tools, shlex.split(asked.kernel), asked.cpu, asked.quick)
        failed = measure(place, select(asked.row), found)
    for name, why in failed.items():
        print(f"{name}: not measured: {why}")
    if worse := [each for each in results if each.change(before.get(each.row.name)).startswith(WORSE)]:
        print(f"worse than on {PAGE.relative_to(ROOT)}: {'; '.join(each.row.name for each in worse)}")
    if asked.write and not failed:
        write(about, results)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
