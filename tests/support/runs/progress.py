"""Says every half minute how far the tests are, in plain lines, and names a failed test and its error at once."""

import threading
import time

import pytest

INTERVAL = 30.0  # seconds
MAX_ERROR, ERROR_LINES = 1000, 5  # characters of a failed test's error that are said at once


class Progress:
    """A plugin of the process that reports: the only one, or the one that has the workers."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._total = self._ended = self._failed = 0
        self._begin = self._said = time.monotonic()
        self._over = threading.Event()
        self._speaker = threading.Thread(target=self._speak, daemon=True)

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = self._total or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        if ids and not self._total:
            self._total = len(ids)
            self._speaker.start()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._reporter.write_line(f"FAILED in {report.when}: {report.nodeid}: {summary(report)}")
        if report.when == "teardown":
            self._ended += 1
            # While a test runs in this process, what a thread says would be part of its output.
            if not self._speaker.is_alive() and time.monotonic() > self._said + INTERVAL:
                self._say()

    @pytest.hookimpl
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        if report.when == "call" and report.outcome in ("passed", "failed"):
            return report.outcome, "", report.outcome.upper()  # no letter
        return None

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        self._over.set()

    def _speak(self) -> None:
        while not self._over.wait(INTERVAL):
            self._say()

    def _say(self) -> None:
        self._said = time.monotonic()
        passed = self._said - self._begin
        part = 100 * self._ended // self._total
        self._reporter.write_line(
            f"{part} %: {self._ended:,} of {self._total:,} tests, {self._failed} failed, "
            f"{passed // 60:.0f} min {passed % 60:02.0f} s"
        )


def summary(report: pytest.TestReport) -> str:
    """The error of a failed test in one line, and where it was raised."""
    text = [line for line in report.longreprtext.splitlines() if line.strip()]
    said = [line.removeprefix("E ").strip() for line in text if line.startswith("E ")]
    shown = [*said[:ERROR_LINES], *text[-1:]] if said else text[-ERROR_LINES:]  # a group has none
    return " / ".join(shown)[:MAX_ERROR]


def register(config: pytest.Config) -> None:
    """Unless the names of tests are printed anyhow, or this process is a worker."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput") and config.getoption("verbose") <= 0:
        config.pluginmanager.register(Progress(reporter), "progress")
