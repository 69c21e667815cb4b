"""The reports of supervisors to their observers: OTP's reports, as values.

An observer is called in the supervisor's own task, in the order of events, and must not block. If it raises, the
exception is logged (logger ``supervisors``) and the observer still gets the next report.
"""

import logging
from collections.abc import Callable

from msgspec import Struct

from supervisors.exits import Exit


class Report(Struct, frozen=True):
    """Base of all reports. ``path``: the ids of the supervisors from the root down to the one that reports."""

    path: tuple[str, ...]


class SupervisorStarted(Report, frozen=True):
    """All its children are up."""


class SupervisorGaveUp(Report, frozen=True):
    """It now stops its children, and then ends with this exit; the detail has the child and the cause."""

    exit: Exit


class SupervisorEnded(Report, frozen=True):
    """It has ended, and so have all its children."""

    exit: Exit


class ChildReport(Report, frozen=True):
    """Base of reports about a child, with its ``id``."""

    id: str


class ChildStarted(ChildReport, frozen=True):
    """It is up; ``value`` is the value of its handshake."""

    value: object


class ChildStartFailed(ChildReport, frozen=True):
    """A start failed."""

    error: BaseException


class ChildDeclined(ChildReport, frozen=True):
    """A child declined to start (``Ignore``)."""


class ChildEnded(ChildReport, frozen=True):
    """It ended by itself, after ``uptime`` seconds."""

    exit: Exit
    uptime: float


class ChildTerminated(ChildReport, frozen=True):
    """Its supervisor stopped it, after ``uptime`` seconds."""

    exit: Exit
    uptime: float


class RestartScheduled(ChildReport, frozen=True):
    """It will be restarted in ``delay`` seconds; ``attempt`` is its number of failures in a row."""

    delay: float
    attempt: int


class Restarting(ChildReport, frozen=True):
    """It is about to be restarted, together with ``group`` (ids in start order, itself included)."""

    group: tuple[str, ...]


Observer = Callable[[Report], None]

log = logging.getLogger("supervisors")


def tell(observer: Observer | None, report: Report) -> None:
    """Pass the report to the observer, and log an exception of it."""
    if observer is None:
        return
    try:
        observer(report)
    except Exception:
        log.exception("an observer failed on %r", report)
