"""The event log's form of each fact it keeps: type, data, severity and the callers that the fact concerns."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from agentos.services import events
from agentos.services.events import (
    AgentEscalated,
    ApprovalRequested,
    BudgetExhausted,
    CallerEvent,
    CustomEvent,
    Event,
    MessageReceived,
    StateChanged,
)
from agentos_sdk.encoding import codec

from .record import KERNEL, Draft, Severity

PLAIN: Final[Mapping[type, tuple[str, Severity]]] = {  # the data are all fields of the fact
    events.AgentSpawned: ("AGENT_SPAWNED", "info"),
    events.AgentReady: ("AGENT_READY", "info"),
    events.AgentExited: ("AGENT_EXITED", "info"),
    events.AgentRestarting: ("AGENT_RESTARTING", "warning"),
    events.AgentFailed: ("AGENT_FAILED", "error"),
    events.AgentPaused: ("AGENT_PAUSED", "info"),
    events.AgentResumed: ("AGENT_RESUMED", "info"),
    events.AgentWoken: ("AGENT_WOKEN", "info"),
    events.RunSkipped: ("RUN_SKIPPED", "warning"),
    events.AgentUnhealthy: ("AGENT_UNHEALTHY", "warning"),
    events.AgentState: ("AGENT_STATE", "info"),
    events.SnapshotMade: ("SNAPSHOT_MADE", "info"),
    events.ReplayDiverged: ("REPLAY_DIVERGED", "warning"),
    events.LifeResumed: ("LIFE_RESUMED", "info"),
    events.ResumeFailed: ("RESUME_FAILED", "warning"),
    events.MailDead: ("MAIL_DEAD", "warning"),
    events.SyscallBlocked: ("SYSCALL_BLOCKED", "warning"),
    events.ResourceWarning: ("RESOURCE_WARNING", "warning"),
    events.ApprovalDecided: ("APPROVAL_DECIDED", "info"),
    events.ModelPaused: ("MODEL_PAUSED", "warning"),
    events.ModelAvailable: ("MODEL_AVAILABLE", "info"),
    events.ConfigReloaded: ("CONFIG_RELOADED", "info"),
    events.KernelStarted: ("KERNEL_STARTED", "info"),
    events.KernelKilled: ("KERNEL_KILLED", "warning"),
}


def describe(event: Event) -> Draft | None:
    """The event as the log keeps it; None if it isn't kept."""
    special = SPECIAL.get(type(event))
    if special is not None:
        return special(event)
    plain = PLAIN.get(type(event))
    if plain is None:
        return None
    kind, severity = plain
    if isinstance(event, CallerEvent | events.ApprovalDecided):
        return _about(event, kind, encode(event), severity)
    return Draft(kind, encode(event), severity)


def _about(event: Any, kind: str, data: bytes, severity: Severity = "info") -> Draft:
    """An event that concerns the caller named in the fact."""
    return Draft(kind, data, severity, event.agent_id, *_concerned(event.agent_id, event.name))


@lru_cache(256)
def _concerned(agent_id: int, name: str) -> tuple[tuple[int], tuple[str]]:
    """Ids and names of a single caller, the same objects for all its events: the ring keeps 10,000."""
    return (agent_id,), (name,)


def _escalated(event: AgentEscalated) -> Draft:
    callers = tuple(number for number in (event.agent_id, event.spawner) if number is not None)
    names = (event.name,) if event.name is not None else (KERNEL,)
    return Draft("AGENT_ESCALATED", encode(event), "error", event.agent_id or 0, callers, names)


def _received(event: MessageReceived) -> Draft:
    """The source is the sender; the event concerns the receiver."""
    data = encode(event)
    return Draft("MESSAGE_RECEIVED", data, "info", event.sender_id, (event.agent_id,), (event.name,))


def _changed(event: StateChanged) -> Draft:
    """A private key concerns its owner; the viewer's rules decide on a global one."""
    owner = event.owner_id
    callers = (owner,) if owner is not None else ()
    data = {
        "scope": event.scope,
        "key": event.key,
        "version": event.version,
        "owner_id": owner,
        "deleted": event.deleted,
    }
    charged, key = event.charged_to, (event.scope, event.key)
    names = _owner_names(event.account) if event.scope != "global" else ()
    return Draft("STATE_CHANGED", encode(data), "info", owner or 0, callers, names, (), charged, *key)


@lru_cache(256)
def _owner_names(account: str) -> tuple[str, ...]:
    """The name of a private key's owner, such as ``worker`` of ``boss/worker``."""
    return (account.rpartition("/")[2].removeprefix("guest "),) if account else ()


def _requested(event: ApprovalRequested) -> Draft:
    """Without the text for the person, which may be long; APPROVALS returns it."""
    data = {name: value for name, value in asdict(event).items() if name not in ("shown", "digest")}
    return _about(event, "APPROVAL_REQUESTED", codec.encode(data), "warning")


def _exhausted(event: BudgetExhausted) -> Draft:
    """A budget concerns its owner; the account's name is the names of the owner's parents and the owner's own."""
    return Draft(
        "BUDGET_EXHAUSTED",
        encode(event),
        "warning",
        names=(event.name.rpartition("/")[2],),
        parties=tuple(list_accounts(event.name)),
    )


def _custom(event: CustomEvent) -> Draft:
    data = bytes(event.data).replace(b"\n", b" ")  # one line of a file; none is in a text
    parties = (event.family,) if event.family else ()
    concerned = _concerned(event.agent_id, event.name)
    return Draft(event.event_type, data, "info", event.agent_id, *concerned, parties, emitted=True)


def list_accounts(name: str) -> list[str]:
    """The parties of an account and of those above it: ``account boss/worker``, ``account boss``."""
    parts = name.split("/")
    return ["account " + "/".join(parts[:end]) for end in range(len(parts), 0, -1)]


SPECIAL: Final[Mapping[type, Callable[[Any], Draft]]] = {
    AgentEscalated: _escalated,
    MessageReceived: _received,
    StateChanged: _changed,
    ApprovalRequested: _requested,
    BudgetExhausted: _exhausted,
    CustomEvent: _custom,
}

_encoder = msgspec.json.Encoder()


def encode(event: Struct | dict[str, Any]) -> bytes:
    """All fields as a JSON object."""
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:  # half a surrogate pair, in a text from outside
        return codec.encode(asdict(event) if isinstance(event, Struct) else event)
