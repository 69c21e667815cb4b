"""What the operator's command is told of: failures, give-ups, budgets, dead letters, a killed kernel, waiting calls."""

import time
from collections.abc import Callable

import msgspec
from msgspec import Raw
from msgspec.structs import asdict, replace

from agentos.agents.registry import Registry
from agentos.agents.tree.event_lines import describe_event, identify_log
from agentos.permissions.approvals.approvals import Approvals
from agentos.permissions.approvals.page import escape
from agentos.services.event_log.records import describe
from agentos.services.events import (
    AgentEscalated,
    AgentFailed,
    AgentRestarting,
    AgentUnhealthy,
    ApprovalRequested,
    BudgetExhausted,
    Event,
    KernelKilled,
    MailDead,
)

KERNEL = "kernel"  # the family of what no agent has caused


def describe_request(approvals: Approvals) -> Callable[[Event], tuple[str, bytes] | None]:
    """For ``[approvals] notify``: the requests."""

    def choose(event: Event) -> tuple[str, bytes] | None:
        if not isinstance(event, ApprovalRequested):
            return None
        return approvals.family_of(event.id), msgspec.json.encode(_request(approvals, event))

    return choose


def describe_notice(
    approvals: Approvals, registry: Registry, *, requests: bool
) -> Callable[[Event], tuple[str, bytes] | None]:
    """For ``[notify]``: ``type``, ``severity`` and ``data`` as of the event, ``text``, and ``at`` in seconds.

    ``requests``: those for an approval, too.
    """

    def choose(event: Event) -> tuple[str, bytes] | None:
        family = find_family(event)
        draft = describe(event) if family is not None else None
        if family is None or draft is None:
            return None
        data: object = Raw(draft.data)
        if isinstance(event, ApprovalRequested):
            data = _request(approvals, event)
            event = replace(event, name=approvals.path_of(event.id) or event.name)
        notice = {
            "type": draft.type,
            "severity": draft.severity,
            "at": time.time(),
            "text": tell(event),
            "data": data,
        }
        return family, msgspec.json.encode(notice)

    def find_family(event: Event) -> str | None:
        match event:
            case ApprovalRequested(id=number):  # named as in what follows, so that an agent has no places twice
                by = identify_log(registry, event.agent_id)[1] or approvals.family_of(number)
                return by if requests else None
            case AgentFailed() | AgentUnhealthy() | AgentRestarting(failures=1) | MailDead():
                return identify_log(registry, event.agent_id)[1] or event.name
            case AgentEscalated(agent_id=None):  # of others AgentFailed tells
                return KERNEL
            case BudgetExhausted(name=name):
                return name.partition("/")[0]
            case KernelKilled():
                return KERNEL
            case _:
                return None

    return choose


def tell(event: Event) -> str:
    """A sentence for a person, in one line of visible characters, whatever an agent chose in it."""
    if isinstance(event, AgentFailed):
        return escape(f"{event.name}: given up: {event.reason}")
    if isinstance(event, MailDead):
        how = f"handed out {event.attempt} times and never acknowledged: `agentos mail {event.name} --dead` shows it"
        return escape(f"{event.name}: a message of {event.sender_name} is a dead letter, {how}")
    return escape("; ".join(text for _, text in describe_event(event)))


def _request(approvals: Approvals, event: ApprovalRequested) -> dict[str, object]:
    return {**asdict(event), "path": approvals.path_of(event.id), "lines": approvals.lines_of(event.id)}
