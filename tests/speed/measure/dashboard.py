"""The dashboard in Chromium, of a kernel with 500 live agents and 100 EMITs a second: bytes, time, frames, CPU time.

A page's bytes are those of its responses, with their headers, and of the feed's messages, as Chromium counts them.
Frames are those of the table of agents while it scrolls, in turn with those of a page that has nothing but rows.
"""

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from attrs import evolve, frozen

from agentos.userland.web.links import find_link
from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.proc import cpu_seconds
from tests.speed.processes import MeasurementError, Server
from tests.speed.results import Figure, Result, Row

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize

AGENTS, EMITS, MANY_PAGES = 500, 100, 10
PATIENCE = 120.0  # seconds until all agents run
VISITS, SCROLL_SECONDS, CPU_SECONDS, ROUNDS = 4, 5.0, 3.0, 1
EMIT = 0x63
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
SIZE: "ViewportSize" = {"width": 1280, "height": 800}
AGENT = "import signal\nsignal.pause()\n"
# Notes when the first frame with rows has been painted.
WATCH = """
new MutationObserver((_, watcher) => {
  if (!document.querySelector("[role=grid] tr[aria-selected]")) return;
  watcher.disconnect();
  requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.painted = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
# Scrolls an element to and fro, some pixels each frame; returns the milliseconds between frames.
SCROLL = """
([selector, seconds]) => new Promise((resolve) => {
  const element = document.querySelector(selector);
  const times = [];
  let step = 8;
  const end = performance.now() + seconds * 1000;
  requestAnimationFrame(function scroll(now) {
    times.push(now);
    if (now > end) return resolve(times.slice(1).map((at, index) => at - times[index]));
    const before = element.scrollTop;
    element.scrollTop += step;
    if (element.scrollTop === before) step = -step;
    requestAnimationFrame(scroll);
  });
})
"""
BLANK = f"<div id=rows style='height:700px;overflow:auto'>{'<p style=height:28px;margin:0>row</p>' * AGENTS}</div>"
ROWS = (
    Row("dashboard: bytes until its rows are painted", " KB", most=150),
    Row("dashboard: until its rows are painted", " s", most=0.5),
    Row("dashboard: until its rows are painted again, reloaded", " s"),
    Row("dashboard: frames while it scrolls, median", "/s", least=50, floor="blank", more=True),
    Row("dashboard: time of a frame while it scrolls, p95", " ms", most=34, floor="blank"),
    Row("dashboard: CPU time of the kernel for one page", " % of a core", most=5),
    Row(f"dashboard: CPU time of the kernel for {MANY_PAGES} pages", " % of a core", most=15),
)


@frozen
class Dashboard:
    """A kernel with its load, and a browser; ``state`` is the kernel's state directory, for links."""

    kernel: Server
    browser: "Browser"
    state: Path

    @contextlib.contextmanager
    def visitor(self) -> "Iterator[BrowserContext]":
        """A browser that is logged in, with an empty cache."""
        context = self.browser.new_context(viewport=SIZE)
        page = context.new_page()
        page.goto(_find_link(self.state))
        page.wait_for_selector("#status span")
        context.new_cdp_session(page).send("Network.clearBrowserCache")
        page.close()
        context.add_init_script(WATCH)
        yield context
        context.close()

    def open_agents(self, page: "Page") -> float:
        """Show the table of agents; returns the seconds until its rows were painted."""
        page.goto(urlsplit(_find_link(self.state))._replace(query="", fragment="/agents").geturl())
        return _await_rows(page)


@contextlib.contextmanager
def busy_dashboard(place: Place) -> Iterator[Dashboard]:
    """A dashboard of many agents, and events all the time."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise MeasurementError("SKIPPED: there is no chromium here, so no page was looked at: apt-get install chromium")
    from playwright.sync_api import Error, sync_playwright

    children = [{"name": f"agent-{number}", "script": "agent.py", "runtime": "fast"} for number in range(AGENTS)]
    with (
        evolve(place, kernel=[*place.kernel, "--dashboard"]).serve(
            children, files={"agent.py": AGENT}, free=True, timeout=PATIENCE
        ) as kernel,
        _emitting(kernel),
        sync_playwright() as playwright,
    ):
        _await_agents(kernel)
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        try:
            yield Dashboard(kernel, browser, kernel.socket.parent / "state")
        except Error as error:
            raise MeasurementError(f"Chromium: {error}") from error
        browser.close()


def _find_link(state: Path) -> str:
    link = find_link(state, "operator")
    if link is None:
        raise MeasurementError("the kernel serves no dashboard")
    return link


def _await_agents(kernel: Server) -> None:
    deadline = time.monotonic() + PATIENCE
    with Caller(kernel.socket) as caller:
        while (running := sum(one["state"] == "running" for one in caller.agents().values())) < AGENTS:
            if time.monotonic() > deadline:
                raise MeasurementError(f"only {running} of {AGENTS} agents run after {PATIENCE:g} s")
            time.sleep(0.2)


@contextlib.contextmanager
def _emitting(kernel: Server) -> Iterator[None]:
    """Emit events at an even rate, from a thread."""
    ended = threading.Event()

    def emit() -> None:
        with Caller(kernel.socket) as caller:
            begin, number = time.monotonic(), 0
            while not ended.wait(max(0.0, begin + number / EMITS - time.monotonic())):
                caller.call(EMIT, json.dumps({"event_type": "custom.load", "data": {"number": number}}).encode())
                number += 1

    emitter = threading.Thread(target=emit)
    emitter.start()
    try:
        yield
    finally:
        ended.set()
        emitter.join()


def dashboard(place: Place) -> Iterator[Result]:
    with busy_dashboard(place) as shown:
        visits = [_visit(shown) for _ in range(3 if place.quick else VISITS)]
        for row, series in zip(ROWS[:3], zip(*visits, strict=True), strict=True):
            yield Result.of(row, series)
        yield from _scroll(shown, SCROLL_SECONDS)
        yield from _use_cpu(shown)


def _visit(shown: Dashboard) -> tuple[float, float, float]:
    """KB that a first visit loads, its seconds, and those of the page reloaded."""
    loaded = list[float]()
    with shown.visitor() as visitor:
        page = visitor.new_page()
        session = visitor.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", lambda event: loaded.append(event["encodedDataLength"]))
        session.on("Network.webSocketFrameReceived", lambda event: loaded.append(_frame_size(event["response"])))
        first = shown.open_agents(page)
        size = sum(loaded) / 1000
        page.reload()
        return size, first, _await_rows(page)


def _await_rows(page: "Page") -> float:
    """The seconds from the beginning of the visit until its rows were painted."""
    page.wait_for_selector("html[data-painted]")
    return float(page.evaluate("document.documentElement.dataset.painted")) / 1000


def _frame_size(frame: dict[str, Any]) -> float:
    """Bytes of a WebSocket's message; of a binary one Chromium shows base64."""
    return len(frame["payloadData"]) * (0.75 if frame["opcode"] == 2 else 1)


def _scroll(shown: Dashboard, seconds: float) -> Iterator[Result]:
    """In turn, a quarter of the time each."""
    frames, blank = list[list[float]](), list[list[float]]()
    with shown.visitor() as visitor:
        page, bare = visitor.new_page(), visitor.new_page()
        shown.open_agents(page)
        bare.set_content(BLANK)
        for _ in range(4):
            for each, selector, found in ((page, "os-table", frames), (bare, "#rows", blank)):
                each.bring_to_front()
                found.append(each.evaluate(SCROLL, [selector, seconds / 4]))
    medians = ([1000 / median(part) for part in parts] for parts in (frames, blank))
    slowest = ([quantiles(part, n=20)[-1] for part in parts] for parts in (frames, blank))
    for row, series in ((ROWS[3], medians), (ROWS[4], slowest)):
        yield Result.of(row, next(series), next(series))


def _use_cpu(shown: Dashboard) -> Iterator[Result]:
    """The kernel's share of a core with pages, less that without, in turn."""
    shares: dict[int, list[float]] = {0: [], 1: [], MANY_PAGES: []}
    for _ in range(ROUNDS):
        for count, series in shares.items():
            with shown.visitor() as visitor:
                for _ in range(count):
                    shown.open_agents(visitor.new_page())
                time.sleep(1)  # what a page asks when it is opened isn't its running cost
                series.append(_cpu_share(shown.kernel))
    for row, count in ((ROWS[5], 1), (ROWS[6], MANY_PAGES)):
        more = [(one - none) * 100 for one, none in zip(shares[count], shares[0], strict=True)]
        yield Result(row, Figure.of(more), note=f"without: {median(shares[0]) * 100:.1f}")


def _cpu_share(kernel: Server) -> float:
    before, began = cpu_seconds(kernel.pid), time.monotonic()
    time.sleep(CPU_SECONDS)
    return (cpu_seconds(kernel.pid) - before) / (time.monotonic() - began)
