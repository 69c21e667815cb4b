"""Events: what happened to agents and to the kernel, as frozen values.

The class ``AgentExited`` is the wire's event type ``AGENT_EXITED``, and so on.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Raw, Struct


class CallerEvent(Struct, frozen=True):
    """Something that concerns one caller: an agent, a guest, or a connection of the operator."""

    agent_id: int
    name: str


class AgentEvent(CallerEvent, frozen=True):
    """Something that happened to one agent."""


class AgentSpawned(AgentEvent, frozen=True):
    """A life begins: the first one, or the next one after a restart. There is no program yet."""


class AgentReady(AgentEvent, frozen=True):
    """The program is up. ``pid`` is its pid on the host, None if it has ended already."""

    pid: int | None


class AgentPaused(AgentEvent, frozen=True):
    """All processes of the agent are frozen."""


class AgentResumed(AgentEvent, frozen=True):
    """All processes of the agent run again."""


class AgentUnhealthy(AgentEvent, frozen=True):
    """The agent's watchdog or health command found that it doesn't work, and it is being killed.

    ``reason`` is for people.
    """

    reason: str


class AgentStopping(AgentEvent, frozen=True):
    """The agent was asked to end, and its descendants have ended."""


class AgentExited(AgentEvent, frozen=True):
    """A life has ended. ``reason`` is for people."""

    reason: str


class AgentRestarting(AgentEvent, frozen=True):
    """The next life begins after ``delay`` seconds. ``failures`` is the number of failures in a row."""

    delay: float
    failures: int


class AgentFailed(AgentEvent, frozen=True):
    """The supervisor of the agent gave up because of it. ``reason`` is for people."""

    reason: str


class AgentStopped(AgentEvent, frozen=True):
    """The agent was stopped by ``by``, the operator or the name of a caller, and declines to start until START."""

    by: str


class AgentWaiting(AgentEvent, frozen=True):
    """The agent has no process until there is a reason to start it: a time of its schedule, say."""


class AgentWoken(AgentEvent, frozen=True):
    """An agent that waits is being started. ``reason`` is for people: ``schedule``, or what came for it."""

    reason: str


class RunSkipped(AgentEvent, frozen=True):
    """A run of the agent's schedule was due, and left out because its last one still works.

    ``due_at`` is when it was due and ``next_at`` when the next one is, in seconds since the epoch. ``skipped`` runs are
    left out so far; this is told when they are 1, 2, 4, 8 and so on.
    """

    due_at: float
    next_at: float
    skipped: int = 1


class AgentOver(AgentEvent, frozen=True):
    """The agent has ended for good: only START, or a restart of the group it is declared in, can start it again."""


class AgentState(AgentEvent, frozen=True):
    """The agent's ``state``, as LIST shows it, has changed, or its first life begins. Follows the event that did it."""

    state: str


class AgentOutput(AgentEvent, frozen=True):
    """The agent wrote to ``stdout`` or ``stderr``, or the kernel added a line (``kernel``) to its output.

    ``text`` is a line, or several that were read together, with line breaks between them. ``at`` is seconds since the
    epoch.
    """

    stream: str
    text: str
    at: float


class AgentEscalated(Struct, frozen=True):
    """A supervisor gave up, so the supervisor or caller above it has to act.

    ``supervisor`` is the path of names from the root, separated by slashes. ``agent_id`` and ``name`` are those of the
    agent that caused it, None if that is a group. ``spawner`` is the id of the caller that spawned the agent, None if
    the agent is declared. ``reason`` is for people.
    """

    supervisor: str
    reason: str
    agent_id: int | None = None
    name: str | None = None
    spawner: int | None = None


class MessageReceived(CallerEvent, frozen=True):
    """A mailbox accepted a message of ``size`` bytes; the reader may not have read it yet. It has no text.

    ``agent_id`` and ``name`` are the mailbox's owner. ``sender_id`` is 0 for a message of the kernel.
    """

    sender_id: int
    sender_name: str
    size: int


class MailDead(CallerEvent, frozen=True):
    """A message is a dead letter: it was leased ``attempt`` times and never acknowledged.

    ``agent_id`` and ``name`` are the mailbox's owner; ``agent_id`` is 0 if no agent of the name is declared now.
    """

    message_id: int
    sender_id: int
    sender_name: str
    attempt: int


class SnapshotMade(CallerEvent, frozen=True):
    """A snapshot of an agent's overlay was taken; ``bytes`` is what its own layer has on disk.

    ``agent_id`` is 0 if the agent is none of this kernel's.
    """

    snapshot: str
    label: str | None
    bytes: int


class ReplayDiverged(CallerEvent, frozen=True):
    """An agent that lives the recorded ``life`` again didn't ask what was recorded; ``verdict`` says in which way."""

    life: str
    verdict: str


class LifeResumed(CallerEvent, frozen=True):
    """The agent's life goes on with ``answers`` recorded replies of ``life``, which a crash had ended."""

    life: str
    recording: str
    answers: int


class ResumeFailed(CallerEvent, frozen=True):
    """An agent that was to go on after a crash begins anew; ``life`` is the one that crashed."""

    life: str
    reason: str


class StateChanged(Struct, frozen=True):
    """A key was stored, or ``deleted``: by DELETE, or because it has expired. It has no value; the change is on disk.

    ``version`` is the stored or deleted value's. ``owner_id`` is a private key's owner, None for a global key or if the
    owner isn't connected any more. ``charged_to`` is the caller that changed a global key, None if it isn't connected
    or is the operator. ``account`` owns a private key, or stored or deleted a global one; it may be
    empty for the operator. Readers get neither.
    """

    scope: Literal["session", "agent", "global"]
    key: str
    version: int
    owner_id: int | None
    deleted: bool
    charged_to: int | None = None
    account: str = ""


class SyscallBlocked(CallerEvent, frozen=True):
    """A call was refused by permission rules or by a person's answer; ``agent_id`` and ``name`` are the caller's.

    ``rule`` decided it, None if several calls are counted together. ``reason`` is for people. Surplus refusals are
    limited as in the audit log, and counted there.
    """

    call: str
    rule: str | None
    reason: str


class ResourceWarning(AgentEvent, frozen=True):  # noqa: A001 - the wire's name
    """An agent has reached 80 % of a limit: ``used`` of ``limit`` of a ``resource``; once per crossing and life."""

    resource: str
    used: float
    limit: float


class ModelPaused(Struct, frozen=True):
    """The provider accepts no requests for ``model`` until ``until``: it is overloaded, or has failed too often.

    ``until`` is seconds since the epoch. ``reason`` is the provider's message.
    """

    provider: str
    model: str
    reason: str
    until: float


class ModelAvailable(Struct, frozen=True):
    """The provider accepts requests for ``model`` again."""

    provider: str
    model: str


class CustomEvent(CallerEvent, frozen=True):
    """The caller ``agent_id`` has published an event of its own: ``CUSTOM`` or ``custom.<name>``, with any JSON.

    ``family`` is ``operator``, or a guest such as ``guest ada``, if the caller is one of its connections.
    """

    event_type: str
    data: Raw
    family: str = ""


class BudgetExhausted(Struct, frozen=True):
    """A budget refused a question, or an answer overran it, for the first time in the budget's window.

    ``name`` is the budget's owner; ``used`` of ``most`` ``what`` (tokens, calls or money) in a window of ``per``
    seconds, which ends at ``renews_at``, in seconds since the epoch.
    """

    name: str
    what: str
    used: float
    most: float
    per: float
    renews_at: float


class ApprovalRequested(Struct, frozen=True):
    """A call waits for a person's approval, as entry ``id``. ``agent_id`` and ``name`` are its caller's.

    ``shown`` is what a person sees of it; it and ``rule``, which asks, are escaped for a terminal. ``digest`` is the
    SHA-256 of what the approval is bound to. Times are seconds since the epoch.
    """

    id: int
    agent_id: int
    name: str
    call: str
    shown: str
    rule: str
    digest: str
    asked_at: float
    expires_at: float


class ApprovalDecided(Struct, frozen=True):
    """The entry ``id`` was allowed or refused by ``by``, or it has expired (``by`` is None)."""

    id: int
    agent_id: int
    name: str
    call: str
    allowed: bool
    by: str | None
    reason: str | None


class KernelKilled(Struct, frozen=True):
    """The last kernel with this state directory didn't end in order: what it was doing, and what was lost with it.

    ``text`` says all of it. ``last_at`` is when it last recorded that, in seconds since the epoch. ``agents`` are the
    names of up to 100 agents that ran. ``messages`` were unread, ``calls`` not answered yet, ``approvals`` waited for a
    person.
    """

    text: str
    last_at: float
    agents: Sequence[str]
    running: int
    messages: int
    calls: int
    approvals: int


class KernelStarted(Struct, frozen=True):
    """The kernel serves callers, and all required agents are up.

    ``model`` is a sentence for people, None if no model is configured; ``default_budget`` another one, None if agents
    have none. ``missing`` are the names of the declared agents that aren't up yet.
    """

    model: str | None
    missing: Sequence[str] = ()
    default_budget: str | None = None


class IsolationProbed(Struct, frozen=True):
    """The kernel has started and knows which isolation layers work here; ``isolation`` is a sentence for people."""

    isolation: str


class ConfigReloaded(Struct, frozen=True):
    """The configuration file was read again.

    ``changes`` are triples: ``added``, ``removed``, ``restarted`` or ``updated``; the name of an agent or group; the
    fields that differ. ``settings`` are other keys that hold from now on, ``kernel_restart`` those that hold when the
    kernel is started anew.
    """

    changes: Sequence[tuple[str, str, Sequence[str]]]
    settings: Sequence[str] = ()
    kernel_restart: Sequence[str] = ()


class KernelStopping(Struct, frozen=True):
    """The kernel has got the first stop signal, or SHUTDOWN: its agents are ending."""


class KernelInterrupted(Struct, frozen=True):
    """The kernel received SIGINT. After a Ctrl-C the terminal shows ``^C`` on the line of the next output."""


Event = (
    CallerEvent
    | AgentEscalated
    | StateChanged
    | ModelPaused
    | ModelAvailable
    | BudgetExhausted
    | ApprovalRequested
    | ApprovalDecided
    | KernelStarted
    | KernelKilled
    | IsolationProbed
    | ConfigReloaded
    | KernelInterrupted
    | KernelStopping
)
Publish = Callable[[Event], None]
Subscriber = Callable[[Event], None]


def discard(event: Event) -> None:
    """Publish an event where nothing subscribes."""
