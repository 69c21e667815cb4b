"""What the core asks of the rest of the system."""

from typing import TYPE_CHECKING, Literal, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from .caller import Caller

Effect = Literal["allow", "ask", "deny"]


@frozen
class Right:
    """What a call is about to do, and to what: ``Right("kill", agent=7)``, ``Right("read", "/data/notes.md")``.

    ``action`` is the call's name in small letters. What ``object`` is depends on it: the path really opened, a parsed
    command, a domain, a model. Its ``str()`` is what the audit log is shown, and the caller, too, unless it calls the
    object something else (``told``): where a link leads is not for everybody to know.
    """

    action: str
    object: object = None
    agent: int | None = None
    told: str | None = None


@frozen
class Decision:
    """``rule`` is the rule that made it, with where it was written; ``reason`` a sentence that a person can act on."""

    effect: Effect
    rule: str
    reason: str


class Authorizer(Protocol):
    """Decides what a caller may do. Never waits: it is asked in the middle of a read."""

    def decide(self, caller: "Caller", right: Right) -> Decision:
        """Whether ``caller`` holds the right; deciding and explaining are this one function."""


Phase = Literal["intent", "outcome"]


@frozen
class Entry:
    """One thing to write down: who wanted what, what was decided, and (of an outcome) what came of it.

    ``about`` is what the call concerned, in a few words; secrets in it are redacted by whoever writes it down.
    ``outcome`` is ``ok`` or the code of an error, empty in an intent. ``duration`` is seconds. ``intent`` is the number
    of the entry that announced this outcome.
    """

    agent: int
    name: str
    kind: str  # of caller: operator, agent, guest
    call: str
    about: str
    decision: Effect
    rule: str
    phase: Phase
    outcome: str = ""
    duration: float | None = None
    intent: int | None = None
    family: str = ""  # those who call together, such as an agent with all that it spawned: for bounds, it isn't written


class AuditLog(Protocol):
    """Where it is written down what was decided and what came of it."""

    async def intend(self, entry: Entry) -> int | None:
        """The entry's number, once it can't be lost any more; ``Unavailable`` where it can't be written.

        ``None``: it can't be written, and is of a call that goes on even so (KILL); it is counted, and the count is
        written later.
        Whoever announces an act by it does nothing before this has returned.
        """

    def note(self, entry: Entry) -> None:
        """Have it written, soon; never waits, and never fails for whoever calls."""
