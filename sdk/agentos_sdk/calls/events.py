"""SUBSCRIBE, UNSUBSCRIBE, POLL_EVENTS and EMIT: what happens in the kernel, as it happens."""

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

from agentos_sdk.encoding.codec import Rule, Seconds
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

from .request import Request, SuccessfulReply
from .state import Prefix

EVENT_TYPES: Final = (
    *("AGENT_SPAWNED", "AGENT_READY", "AGENT_EXITED", "AGENT_RESTARTING", "AGENT_FAILED", "AGENT_ESCALATED"),
    *(
        "AGENT_PAUSED",
        "AGENT_RESUMED",
        "AGENT_UNHEALTHY",
        "MESSAGE_RECEIVED",
        "MAIL_DEAD",
        "SNAPSHOT_MADE",
        "REPLAY_DIVERGED",
        "LIFE_RESUMED",
        "RESUME_FAILED",
        "STATE_CHANGED",
        "SYSCALL_BLOCKED",
    ),
    *("RESOURCE_WARNING", "APPROVAL_REQUESTED", "APPROVAL_DECIDED", "AGENT_STATE", "MODEL_PAUSED", "MODEL_AVAILABLE"),
    *("BUDGET_EXHAUSTED", "CONFIG_RELOADED", "KERNEL_STARTED", "KERNEL_KILLED", "TASK_STEP", "CUSTOM"),
    *("AGENT_WOKEN", "RUN_SKIPPED"),
)
CUSTOM: Final = re.compile(r"CUSTOM|TASK_STEP|custom\.[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The types that EMIT takes."""
MAX_EVENTS: Final = 1000  # in one reply
FILTERS: Final = 100  # types, and agents, in one request


def is_type_pattern(text: str) -> bool:
    """Whether an event's type can match: it is one, ``custom.NAME``, or the beginning of some and ``*``."""
    if not text.endswith("*"):
        return text in EVENT_TYPES or CUSTOM.fullmatch(text) is not None
    begin = text[:-1]
    own = CUSTOM.fullmatch(begin + "x") is not None or "custom.".startswith(begin)
    return own or any(kind.startswith(begin) for kind in EVENT_TYPES)


TypePattern: TypeAlias = Annotated[
    str, Rule(is_type_pattern, "an event type such as AGENT_EXITED, a part of one as in AGENT_*, custom.NAME, or *")
]
TypePatterns: TypeAlias = Annotated[
    Sequence[TypePattern], Rule(lambda some: len(some) <= FILTERS, f"at most {FILTERS} types")
]
CustomType: TypeAlias = Annotated[
    str,
    Rule(
        lambda text: CUSTOM.fullmatch(text) is not None,
        "CUSTOM, TASK_STEP or custom.NAME (letters, digits, `.`, `_`, `-`)",
    ),
]
Agents: TypeAlias = Annotated[Sequence[int | str], Rule(lambda some: len(some) <= FILTERS, f"at most {FILTERS} agents")]
Seq: TypeAlias = Annotated[int, Rule(lambda seq: 0 <= seq < 1 << 63, "a whole number from 0 up")]


@record
class Event:
    """Something that happened. ``seq`` counts up within a ``boot``, the id of one run of the kernel.

    ``source_agent_id`` is the caller that it comes from or is about, 0 for the kernel. ``at`` is seconds since the
    epoch.
    """

    type: str
    data: object
    source_agent_id: int
    seq: int
    boot: str
    severity: Literal["info", "warning", "error"]
    at: float
    age_ms: int


@record
class Subscribed(SuccessfulReply):
    """``subscribed`` are all types of the caller's subscriptions; ``seq`` is the last event until now.

    ``boot_changed``: ``since`` is of an earlier run of the kernel. ``cut_off``: that run was killed, so that its last
    events may be lost without being counted. ``missed`` are events after ``since`` that aren't kept any more.
    """

    subscribed: Sequence[str]
    boot: str
    seq: int
    boot_changed: bool = False
    cut_off: bool = False
    missed: int = 0


@record
class Subscribe(Request[Subscribed]):
    """Subscribe to events of these types: exact ones, or with ``*`` at the end. POLL_EVENTS gets them.

    ``agents`` are ids or names: only what concerns one of these. ``prefix``: of STATE_CHANGED only keys that begin with
    it. With ``since`` also the events with a higher ``seq`` that are kept; ``boot`` is the one that ``since`` is of.
    """

    op = Op.SUBSCRIBE
    event_types: TypePatterns
    agents: Agents | None = None
    prefix: Prefix | None = None
    since: Seq | None = None
    boot: str | None = None
    stream: bool = False


@record
class Unsubscribed(SuccessfulReply):
    """The types that the caller is no longer subscribed to."""

    unsubscribed: Sequence[str]


@record
class Unsubscribe(Request[Unsubscribed]):
    """End subscriptions to these types, written as in SUBSCRIBE, or ``all``."""

    op = Op.UNSUBSCRIBE
    event_types: TypePatterns = ()
    all: bool = False


@record
class EventList(SuccessfulReply):
    """The oldest events that the caller hasn't got yet. ``missed`` are those before that were dropped meanwhile.

    ``boot_changed`` and ``cut_off`` are as in :class:`Subscribed`.
    """

    events: Sequence[Event]
    count: int
    missed: int
    boot: str
    boot_changed: bool = False
    cut_off: bool = False


@record
class EventFrame(EventList):
    """A CHUNK frame of a stream. The first one also has what :class:`Subscribed` has."""

    subscribed: Sequence[str] | None = None
    seq: int | None = None


@record
class PollEvents(Request[EventList]):
    """Get events of the caller's subscriptions, at most ``max``, oldest first.

    Waits up to ``timeout`` seconds for the first. ``since`` gets those with a higher ``seq`` again, as far as they are
    kept; ``boot`` is the one that it is of.
    """

    op = Op.POLL_EVENTS
    max: Annotated[int, Rule(lambda most: most >= 1, "a whole number from 1 up")] = 100
    timeout: Seconds = Seconds(0.0)
    since: Seq | None = None
    boot: str | None = None


@record
class Emitted(SuccessfulReply):
    """``delivered_to`` is the number of callers with a subscription that the event reaches."""

    event: str
    delivered_to: int


@record
class Emit(Request[Emitted]):
    """Publish an event of type ``CUSTOM``, ``TASK_STEP`` or ``custom.NAME``, with JSON ``data`` of at most 16 KiB.

    It reaches the caller's ancestors and descendants, the operator, and those whom rules grant it.
    """

    op = Op.EMIT
    event_type: CustomType | None = None
    data: object = None
    event: CustomType | None = None
