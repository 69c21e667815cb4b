"""Events as lines for people."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from agentos.userland.cli.columns import count_columns, cut_middle, pad
from agentos.userland.cli.common import printable
from agentos.userland.cli.output_text import colour_of
from agentos.userland.cli.times import format_stamp
from agentos_sdk.encoding.quantities import duration

from .resources import format_share

Event = Mapping[str, Any]
Data = Mapping[str, Any]

TYPE_COLUMNS: Final = 18  # of the longest type of the kernel
SEVERITIES: Final = {"warning": "33", "error": "31"}  # SGR codes


def format_event(event: Event, width: int | None, coloured: bool, caller: str | None = None) -> str:
    """``12:00:01 AGENT_EXITED       worker: exit status 3``, cut to ``width``; None: not cut.

    ``caller`` is the name of the caller that the event has only the id of, None if it isn't known.
    """
    stamp = format_stamp(event["at"])
    kind, subject = printable(event["type"]), printable(name_subject(event, caller))
    text = printable(describe_event(event, caller))
    if width is not None:
        kind = cut_middle(kind, 2 * TYPE_COLUMNS)
        subject = cut_middle(subject, 24)
        used = len(stamp) + max(count_columns(kind), TYPE_COLUMNS) + count_columns(subject) + 4
        text = cut_middle(text, max(8, width - used))
    kind = pad(kind, TYPE_COLUMNS)
    if coloured:
        code = SEVERITIES.get(event["severity"])
        kind = f"\x1b[{code}m{kind}\x1b[0m" if code else kind
        subject = f"\x1b[{colour_of(subject)}m{subject}\x1b[0m"
    return f"{stamp} {kind} {subject}: {text}".rstrip()


def name_subject(event: Event, caller: str | None) -> str:
    """The agent, key or budget that the event is about; otherwise ``kernel``."""
    data = event["data"]
    if event["type"] == "STATE_CHANGED":
        return str(data["key"])
    if event["type"] in ("MODEL_PAUSED", "MODEL_AVAILABLE"):
        return str(data["model"])
    if is_custom(event):
        return caller or f"caller {event['source_agent_id']}"
    return str(data.get("name") or data.get("supervisor") or "kernel")


def is_custom(event: Event) -> bool:
    """Whether a caller has emitted it: its data is then whatever that caller has written, also no object."""
    return str(event["type"]).startswith(("CUSTOM", "TASK_STEP", "custom."))


def find_caller(event: Event) -> int:
    """The id of the caller that an event names by its id alone; 0 if there is none."""
    if event["type"] == "STATE_CHANGED":
        return int(event["data"]["owner_id"] or 0)
    return int(event["source_agent_id"]) if is_custom(event) else 0


def find_named(event: Event) -> tuple[int, str] | None:
    """The id and the name of the caller that an event of the kernel is about."""
    data = event["data"]
    if is_custom(event) or data.get("agent_id") is None or data.get("name") is None:
        return None
    return int(data["agent_id"]), str(data["name"])


def describe_event(event: Event, caller: str | None) -> str:
    """The event in one line; the data as JSON if the type is unknown."""
    if event["type"] == "STATE_CHANGED":
        return _changed(event["data"], caller)
    describe = DESCRIPTIONS.get(event["type"])
    return describe(event["data"]) if describe is not None else json.dumps(event["data"], ensure_ascii=False)


def _received(data: Data) -> str:
    return f"{data['size']} bytes from {data['sender_name']}"


def _changed(data: Data, owner: str | None) -> str:
    owner = owner or ("an earlier caller" if data["owner_id"] is None else f"caller {data['owner_id']}")
    scope = "" if data["scope"] == "global" else f", scope {data['scope']} of {owner}"
    return f"deleted{scope}" if data["deleted"] else f"version {data['version']}{scope}"


def _decided(data: Data) -> str:
    if data["by"] is None:
        return f"{data['id']}: {data['call']} has expired"
    reason = f": {data['reason']}" if data["reason"] else ""
    return f"{data['id']}: {data['call']} {'allowed' if data['allowed'] else 'refused'} by {data['by']}{reason}"


def _reloaded(data: Data) -> str:
    changes = [f"{name} {kind}" for kind, name, _ in data["changes"]] + [f"{key} changed" for key in data["settings"]]
    later = f"; not until the kernel is started anew: {', '.join(data['kernel_restart'])}"
    return (", ".join(changes) or "no agent has changed") + (later if data["kernel_restart"] else "")


def _started(data: Data) -> str:
    return "ready" + (f"; not up yet: {', '.join(data['missing'])}" if data["missing"] else "")


def _exhausted(data: Data) -> str:
    used, most, what = f"{data['used']:,.10g}", f"{data['most']:,.10g}", data["what"]
    return f"{used} of {most} {what} per {duration(data['per'])}, renewed {_clock(data['renews_at'])}"


def _warned(data: Data) -> str:
    used, limit = int(data["used"]), int(data["limit"])
    if data["resource"] == "pids":
        return f"{used} of {limit} processes and threads"
    return f"{data['resource']} {format_share(used, limit)}"


def _clock(at: float) -> str:
    return format_stamp(at, "%m-%d %H:%M")


DESCRIPTIONS: Final[Mapping[str, Callable[[Data], str]]] = {
    "AGENT_SPAWNED": lambda data: "begins",
    "AGENT_READY": lambda data: "running" + (f" (pid {data['pid']})" if data["pid"] is not None else ""),
    "AGENT_PAUSED": lambda data: "paused",
    "AGENT_RESUMED": lambda data: "resumed",
    "AGENT_UNHEALTHY": lambda data: str(data["reason"]),
    "AGENT_EXITED": lambda data: str(data["reason"]),
    "AGENT_RESTARTING": lambda data: f"in {data['delay']:.1f} s (failure {data['failures']} in a row)",
    "AGENT_WOKEN": lambda data: f"started by {data['reason']}",
    "RUN_SKIPPED": lambda data: f"the run of {_clock(data['due_at'])} is left out: the last one still works",
    "AGENT_FAILED": lambda data: f"given up: {data['reason']}",
    "AGENT_ESCALATED": lambda data: f"{data['supervisor']} gave up: {data['reason']}",
    "AGENT_STATE": lambda data: str(data["state"]),
    "MESSAGE_RECEIVED": _received,
    "SNAPSHOT_MADE": lambda data: (
        f"{data['name']}@{data['label'] or data['snapshot']}, {data['bytes']} bytes of its own"
    ),
    "LIFE_RESUMED": lambda data: f"goes on with {data['answers']} recorded answers of {data['life']}",
    "RESUME_FAILED": lambda data: f"begins anew after {data['life']}: {data['reason']}",
    "REPLAY_DIVERGED": lambda data: f"{data['verdict']} from {data['life']}",
    "MAIL_DEAD": lambda data: (
        f"message {data['message_id']} from {data['sender_name']}, handed out {data['attempt']} times"
    ),
    "SYSCALL_BLOCKED": lambda data: str(data["reason"]),
    "RESOURCE_WARNING": _warned,
    "APPROVAL_REQUESTED": lambda data: f"{data['id']}: {data['call']} waits for a person",
    "APPROVAL_DECIDED": _decided,
    "KERNEL_STARTED": _started,
    "KERNEL_KILLED": lambda data: data["text"],
    "CONFIG_RELOADED": _reloaded,
    "MODEL_PAUSED": lambda data: f"until {_clock(data['until'])}: {data['reason']}",
    "MODEL_AVAILABLE": lambda data: "accepts requests again",
    "BUDGET_EXHAUSTED": _exhausted,
}
