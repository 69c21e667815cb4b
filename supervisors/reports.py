"""What supervisors tell their observers: OTP's reports, as values.

An observer is called in the supervisor's own task, in the order things happened, and must not block. One that raises
does the tree no harm: the exception goes to the log (logger ``supervisors``), and the next report
reaches the observer again.
"""

import logging
from collections.abc import Callable

from attrs import frozen

from supervisors.exits import Exit


@frozen
class Report:
    """``path``: the ids of the supervisors from the root down to the one that reports."""

    path: tuple[str, ...]


@frozen
class SupervisorStarted(Report):
    """All its children are up."""


@frozen
class SupervisorGaveUp(Report):
    """It stops its children now, and then ends with this exit, whose detail says over which child and why."""

    exit: Exit


@frozen
class SupervisorEnded(Report):
    """None of its children is left."""

    exit: Exit


@frozen
class ChildReport(Report):
    """About the child ``id``."""

    id: str


@frozen
class ChildStarted(ChildReport):
    """It is up; ``value`` came with its handshake."""

    value: object


@frozen
class ChildStartFailed(ChildReport):
    """A start did not succeed."""

    error: BaseException


@frozen
class ChildDeclined(ChildReport):
    """A start was ignored, as the child wished."""


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
    """It will be started again in ``delay`` seconds; ``attempt`` counts its failures in a row."""

    delay: float
    attempt: int


@frozen
class Restarting(ChildReport):
    """It is about to be started again, together with ``group`` (ids in start order, itself included)."""

    group: tuple[str, ...]


Observer = Callable[[Report], None]

log = logging.getLogger("supervisors")


def tell(observer: Observer | None, report: Report) -> None:
    """Hand the report over, and survive it."""
    if observer is None:
        return
    try:
        observer(report)
    except Exception:
        log.exception("an observer failed on %r", report)
