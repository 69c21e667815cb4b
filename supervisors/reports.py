"""The reports of supervisors to their observers: OTP's reports, as values.

An observer is called in the supervisor's own task, in the order of events, and must not block. If it raises, the
exception is logged (logger ``supervisors``) and the observer still gets the next report.
"""

import logging
from collections.abc import Callable

from attrs import frozen

from supervisors.exits import Exit


@frozen
class Report:
    """Base of all reports. ``path``: the ids of the supervisors from the root down to the one that reports."""

    path: tuple[str, ...]


@frozen
class SupervisorStarted(Report):
    """All its children are up."""


@frozen
class SupervisorGaveUp(Report):
    """It now stops its children, and then ends with this exit; the detail has the child and the cause."""

    exit: Exit


@frozen
class SupervisorEnded(Report):
    """It has ended, and so have all its children."""

    exit: Exit


@frozen
class ChildReport(Report):
    """Base of reports about a child, with its ``id``."""

    id: str


@frozen
class ChildStarted(ChildReport):
    """It is up; ``value`` is the value of its handshake."""

    value: object


@frozen
class ChildStartFailed(ChildReport):
    """A start failed."""

    error: BaseException


@frozen
class ChildDeclined(ChildReport):
    """A child declined to start (``Ignore``)."""


@frozen
class ChildEnded(ChildReport):
    """It ended by itself, after ``uptime`` seconds."""

    exit: Exit
    uptime: float


@frozen
class ChildTerminated(ChildReport):
    """Its supervisor stopped it, after ``uptime`` seconds."""

    exit: Exit
    uptime: float


@frozen
class RestartScheduled(ChildReport):
    """It will be restarted in ``delay`` seconds; ``attempt`` is its number of failures in a row."""

    delay: float
    attempt: int


@frozen
class Restarting(ChildReport):
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
