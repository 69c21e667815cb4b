"""The dashboard's page for a long time: ``python -m tests.speed.soak_dashboard [SECONDS]``, 600 by default.

A page goes round all its pages, beside the same agents and events as in the measurement, and scrolls the table. After
each round it stands on the table, garbage is collected, and DOM nodes, listeners and the heap are counted. Status 1 if
the last count of nodes or of the heap is more than 10 % away from the one after the second round.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.speed.measure.dashboard import SCROLL, Dashboard, busy_dashboard
from tests.speed.place import Place
from tests.speed.processes import MeasurementError
from tests.speed.tools import Tools

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

PAGES = (
    "overview",
    "tree",
    "trace",
    "model",
    "approvals",
    "events",
    "audit",
    "system",
    "agents?agent=agent-7",
    "agents",
)
COUNTED = {"Nodes": 1.0, "JSEventListeners": 1.0, "JSHeapUsedSize": 1e6}  # by Chromium's names, with the unit
FLAT = ("Nodes", "JSHeapUsedSize")
WARM_UP = 2  # rounds: the first ones fill what is kept of events and replies
TOLERANCE = 0.1


def soak(place: Place, seconds: float) -> bool:
    """Print a line for each round; returns whether nodes and heap stayed."""
    with busy_dashboard(place) as shown:
        counts = list(_rounds(shown, seconds))
    if len(counts) <= WARM_UP:
        raise MeasurementError(f"{seconds:g} s were enough for {len(counts)} rounds only")
    flat = True
    for name in FLAT:
        change = counts[-1][name] / counts[WARM_UP - 1][name] - 1
        flat &= abs(change) <= TOLERANCE
        print(f"{name}: {change:+.1%} after {len(counts) - WARM_UP} rounds (<= {TOLERANCE:.0%})")
    return flat


def _rounds(shown: Dashboard, seconds: float) -> Iterator[Mapping[str, float]]:
    began = time.monotonic()
    with shown.visitor() as visitor:
        page = visitor.new_page()
        session = visitor.new_cdp_session(page)
        session.send("Performance.enable")
        shown.open_agents(page)
        while time.monotonic() < began + seconds:
            _walk(page)
            counts = _count(session)
            said = ", ".join(f"{name} {counts[name] / unit:,.{2 * int(unit > 1)}f}" for name, unit in COUNTED.items())
            print(f"{time.monotonic() - began:5.0f} s: {said}", flush=True)
            yield counts


def _walk(page: "Page") -> None:
    for name in PAGES:
        page.evaluate("(name) => { location.hash = `#/${name}`; }", name)
        page.wait_for_timeout(1000)
    page.evaluate(SCROLL, ["os-table", 5])
    page.evaluate("document.querySelector('os-table').scrollTop = 0")
    page.wait_for_timeout(1000)


def _count(session: "CDPSession") -> Mapping[str, float]:
    session.send("HeapProfiler.collectGarbage")
    return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    with tempfile.TemporaryDirectory(prefix="speed-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        kernel = [sys.executable, "-m", "agentos", "run"]
        try:
            return 0 if soak(Place(directory, Tools(directory, directory, directory), kernel, 0), seconds) else 1
        except MeasurementError as error:
            print(error, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
