"""OTP's exit reasons as values, and the exceptions that carry them."""

from typing import Literal, get_args

from msgspec import Struct

Reason = Literal["normal", "shutdown", "shutdown_term", "crash", "killed", "failed_start"]

CLEAN: frozenset[Reason] = frozenset({"normal", "shutdown", "shutdown_term"})


class Exit(Struct, frozen=True):
    """Why a child or a supervisor ended.

    ``normal``, ``shutdown`` and ``shutdown_term`` (OTP's ``{shutdown, Term}``) are clean: a transient child is not
    restarted after them. ``detail`` is further information: the exception of a crash, the ``Died`` of an OS process,
    the ``IntensityExceeded`` of a supervisor that gave up.
    """

    reason: Reason
    detail: object = None

    @property
    def clean(self) -> bool:
        """Whether it was neither a crash nor a kill."""
        return self.reason in CLEAN

    def __str__(self) -> str:
        if self.detail is None:
            return self.reason
        if isinstance(self.detail, BaseException):
            return f"{self.reason}: {self.detail!r}"
        return f"{self.reason}: {self.detail}"


NORMAL = Exit("normal")
SHUTDOWN = Exit("shutdown")
KILLED = Exit("killed")


class IntensityExceeded(Struct, frozen=True):
    """The detail of a supervisor that gave up: more restarts were needed than its intensity allows.

    ``restarts`` counts those within the last ``period`` seconds, including the one that was refused.
    """

    child: str
    last: Exit
    restarts: int
    period: float  # seconds

    def __str__(self) -> str:
        return f"{self.restarts} restarts in {self.period:g} s were needed; the last for {self.child!r} ({self.last})"


class TooManyFailures(Struct, frozen=True):
    """The detail of a supervisor that gave up on one child, because its backoff has a ``max_failures``."""

    child: str
    last: Exit
    failures: int

    def __str__(self) -> str:
        return f"{self.child!r} failed {self.failures} times in a row ({self.last})"


class AutoShutdown(Struct, frozen=True):
    """The detail of a supervisor that ended because its significant children ended (``auto_shutdown``)."""

    child: str
    last: Exit

    def __str__(self) -> str:
        return f"significant child {self.child!r} ended ({self.last})"


def gave_up(ending: Exit) -> bool:
    """Whether a supervisor gave up; its reason is ``shutdown``, so only the detail tells."""
    return isinstance(ending.detail, IntensityExceeded | TooManyFailures)


class Ended(Exception):
    """Raised by a child to end with a given reason; any other exception is a ``crash``."""

    def __init__(self, reason: Reason | Exit, detail: object = None) -> None:
        self.exit = reason if isinstance(reason, Exit) else Exit(reason, detail)
        if self.exit.reason not in get_args(Reason):
            raise ValueError(f"unknown exit reason {self.exit.reason!r}")
        super().__init__(str(self.exit))


class GaveUp(Ended):
    """A supervisor gave up; ``exit.detail`` has the child.

    As a child of another supervisor it ends with ``shutdown``.
    """


class Ignore(Exception):
    """Raised by a child instead of its start handshake to decline to run, which is no failure (as in OTP)."""
