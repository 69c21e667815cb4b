"""Lines of the kernel's own that agents can cause."""

import logging
from collections.abc import Iterator

import pytest

from agentos.services.logs import kernel_limit
from agentos.services.logs.kernel_limit import BURST, MAX_EQUAL, MAX_KEPT, PER_SECOND, WINDOW, KernelLimit


class Lines(logging.Handler):
    """What two handlers with one limit have logged: ``[]`` unless both have the same."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Log:
    """A logger with two handlers, and a clock."""

    def __init__(self) -> None:
        self.at = 1000.0
        self.limit = KernelLimit(lambda: self.at)
        self.handlers = [Lines(), Lines()]
        self.logger = logging.getLogger("tests.kernel_limit")
        for logger in (self.logger, kernel_limit.log):
            logger.propagate = False
            logger.setLevel(logging.INFO)
            for handler in self.handlers:
                handler.addFilter(self.limit)
                logger.addHandler(handler)

    def close(self) -> None:
        self.limit.tell()
        for logger in (self.logger, kernel_limit.log):
            logger.propagate = True
            logger.setLevel(logging.NOTSET)
            logger.handlers.clear()

    @property
    def texts(self) -> list[str]:
        first, second = (handler.texts for handler in self.handlers)
        assert first == second
        return first


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.close()


def test_an_equal_warning_comes_some_times_a_minute_and_is_counted(log: Log) -> None:
    for _ in range(643):
        log.logger.warning("%s: not written: %s", "budget", "no space left on device")
    assert log.texts == ["budget: not written: no space left on device"] * MAX_EQUAL

    log.limit.tell()  # as a minute later, though no line follows
    assert log.texts[-1] == f"{643 - MAX_EQUAL} lines more like this one: budget: not written: no space left on device"
    log.limit.tell()
    assert len(log.texts) == MAX_EQUAL + 1, "it is said once"

    log.at += WINDOW
    log.logger.warning("%s: not written: %s", "budget", "no space left on device")
    assert len(log.texts) == MAX_EQUAL + 2


def test_lines_that_vary_come_in_a_burst_and_then_some_a_second(log: Log) -> None:
    burst = BURST[logging.WARNING]
    for number in range(10_000):
        log.logger.warning("%s: unhealthy", f"agent-{number}")
    assert len(log.texts) == burst

    log.at += 10
    for number in range(10_000):
        log.logger.warning("%s: unhealthy", f"other-{number}")
    assert len(log.texts) == burst + 10 * PER_SECOND


def test_lines_of_another_kind_are_not_withheld_with_them(log: Log) -> None:
    for number in range(10_000):
        log.logger.error("%s: unhealthy", number)
    log.logger.error("the kernel ends: %s", "root gave up")

    assert log.texts[-1] == "the kernel ends: root gave up"


def test_the_start_of_a_fleet_is_told_whole(log: Log) -> None:
    for number in range(1000):
        log.logger.info("%s: running (pid %s)", f"agent-{number}", number)

    assert len(log.texts) == 1000


def test_memory_is_bounded(log: Log) -> None:
    for number in range(5 * MAX_KEPT):
        log.logger.warning(f"can't {number}: %s", "x")

    assert len(log.limit._equal) <= MAX_KEPT
    assert len(log.limit._rates) <= MAX_KEPT
