"""Interfaces that the kernel's core needs from the rest of the system: permission checks and the audit log."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from agentos_sdk.errors import ApprovalRequired, CallError, PermissionDenied

if TYPE_CHECKING:
    from .caller import Caller

Effect = Literal["allow", "ask", "deny"]


class Right(Struct, frozen=True):
    """What a call is about to do, and to which object: ``Right("kill", agent=7)``, ``Right("read", "/data/notes.md")``.

    ``action`` is the call's name in lower case. The type of ``object`` depends on it: the path really opened, a parsed
    command, a domain, a model. Its ``str()`` goes to the audit log. The caller sees it too, unless ``shown_as`` holds
    the caller's own name for the object: the target of a symlink must not be revealed to every caller.
    """

    action: str
    object: object = None
    agent: int | None = None
    shown_as: str | None = None


class Decision(Struct, frozen=True):
    """A permission decision: ``rule`` and where it was written, and ``reason``, a sentence a person can act on."""

    effect: Effect
    rule: str
    reason: str

    @property
    def refusal(self) -> CallError:
        """The error of a caller that isn't allowed this; ``ApprovalRequired`` if a person must approve."""
        kind = PermissionDenied if self.effect == "deny" else ApprovalRequired
        return kind(self.reason, rule=self.rule)


class Authorizer(Protocol):
    """Decides what a caller may do. Never waits, because it is called while input is read."""

    def decide(self, caller: "Caller", right: Right) -> Decision:
        """Whether ``caller`` holds the right. Decision and explanation come from this one function."""


class Question(Struct, frozen=True):
    """What a person is asked: whether one call may act once.

    ``asked`` are the rights that rules ask about, each with that decision. ``digest`` is the SHA-256, in hexadecimal,
    of all that the answer is bound to: the call and its arguments, its rights, the identity of their objects, and
    ``shown``, which is what the person sees, in the form of :mod:`agentos.permissions.shown_lines`; if it is empty, the
    rights are, and the ``fields`` of the request that were given, with their values as JSON.
    """

    call: str
    about: str
    asked: tuple[tuple[Right, Decision], ...]
    digest: str
    shown: str
    fields: Sequence[tuple[str, str]] = ()


class MustAsk(Exception):
    """The call needs a person's approval: nothing of it may be held while it waits.

    ``question`` is None where the call would be answered while input is read: it has to be prepared anew, in a task.
    """

    def __init__(self, question: Question | None = None) -> None:
        self.question = question


class Approvals(Protocol):
    """What waits for a person, and what persons have answered."""

    def take(self, caller: "Caller", question: Question) -> Decision | None:
        """The decision by which a person allows exactly this, if there is one; it is used up by this, or remembered.

        Raises ``ApprovalRefused`` if a refusal is remembered.
        """

    def answered_until(self, caller: "Caller", question: Question) -> float | None:
        """Until when a remembered answer allows this, in seconds since the epoch, or ``inf``; None: no answer does."""

    async def wait(
        self, caller: "Caller", question: Question, timeout: float | None = None, former: Question | None = None
    ) -> None:
        """Return when a person has allowed it; then the call is prepared anew, and :meth:`take` decides.

        Raises ``ApprovalRefused``, or ``ApprovalRequired`` after ``timeout`` seconds; None: as configured. ``former``
        was allowed to this very call, and is void by now if it differs: its object has changed.
        """


Phase = Literal["intent", "outcome"]


class Entry(Struct, frozen=True):
    """One audit log entry: the caller, the call, the decision and, for an outcome, the result.

    ``about`` describes the call's object in a few words; the audit log redacts secrets in it. ``outcome`` is ``ok`` or
    an error code, and empty in an intent. ``duration`` is in seconds. ``intent`` is the number of the intent entry that
    belongs to this outcome.
    """

    agent: int
    name: str
    kind: str  # of the caller: operator, agent, guest
    call: str
    about: str
    decision: Effect
    rule: str
    phase: Phase
    outcome: str = ""
    duration: float | None = None
    intent: int | None = None
    family: str = ""  # callers limited together, e.g. an agent with all its descendants; not written to the log
    reason: str = ""  # the decision's; not written to the log


class AuditLog(Protocol):
    """Records decisions and outcomes."""

    async def intend(self, entry: Entry) -> int | None:
        """Write an intent entry; returns its number once it is durable. Raises ``Unavailable`` if it can't be written.

        ``None``: it can't be written, but the call proceeds anyway (KILL); it is counted, and the count is written
        later. A caller of this method must not act before it has returned.
        """

    def note(self, entry: Entry) -> None:
        """Queue an entry for writing. Never waits and never raises."""
