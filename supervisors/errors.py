"""Errors of supervisors, by OTP's names."""

from typing import Literal

Refusal = Literal["already_started", "already_present", "running", "restarting", "not_found", "simple_one_for_one"]

SENTENCES: dict[Refusal, str] = {
    "already_started": "a child with this id is running",
    "already_present": "a child with this id is known, though not running; restart or delete it",
    "running": "the child is running; terminate it first",
    "restarting": "the child is waiting to be restarted; terminate it first",
    "not_found": "there is no such child",
    "simple_one_for_one": "children of a simple_one_for_one supervisor are addressed by their handle, and never kept",
}


class SupervisorError(Exception):
    """Base of all errors; ``code`` is OTP's name for the error."""

    code: str


class Refused(SupervisorError):
    """The call does not fit the state of the child that it names; nothing was changed."""

    def __init__(self, code: Refusal, child: str) -> None:
        self.code = code
        self.id = child
        super().__init__(f"{child!r}: {SENTENCES[code]}")


class NoProc(SupervisorError):
    """The supervisor is not running, or ended before it handled this call; nothing was changed."""

    code = "noproc"

    def __init__(self, supervisor: str) -> None:
        super().__init__(f"supervisor {supervisor!r} is not running")


class StartFailed(SupervisorError):
    """A child did not start. ``cause`` is its exception, or another ``StartFailed`` one level down."""

    code = "start_failed"

    def __init__(self, child: str, cause: BaseException) -> None:
        self.id = child
        self.cause = cause
        super().__init__(f"{' / '.join(self.path)} did not start: {self.root_cause!r}")

    @property
    def path(self) -> tuple[str, ...]:
        """The ids down to the child with the failed start."""
        return (self.id, *self.cause.path) if isinstance(self.cause, StartFailed) else (self.id,)

    @property
    def root_cause(self) -> BaseException:
        """The exception of that child's start."""
        return self.cause.root_cause if isinstance(self.cause, StartFailed) else self.cause


class SpecError(SupervisorError, ValueError):
    """A specification that is invalid; raised when it is created.

    ``code`` is one of ``invalid_strategy``, ``invalid_intensity``, ``invalid_period``, ``invalid_auto_shutdown``,
    ``invalid_restart_type``, ``invalid_shutdown``, ``bad_combination``, ``duplicate_child``, ``invalid_backoff``,
    ``unreachable_intensity``; ``id`` is the child that it is about, if any.
    """

    def __init__(self, code: str, sentence: str, child: str | None = None) -> None:
        self.code = code
        self.id = child
        super().__init__(sentence)
