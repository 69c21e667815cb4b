"""Calls of events by a client of a real kernel, and agents that make them."""

import contextlib
from collections.abc import Iterator
from typing import Any

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel
from tests.support.wire import (
    CHUNK,
    EMIT,
    POLL_EVENTS,
    SUBSCRIBE,
    Wire,
)
from tests.system.agents import up

SLEEP = ["sleep", "1000"]
GRANTED = {"level": "sandboxed", "allow": {"state_read": ["plan.*"], "state_write": ["*"], "events": ["w-*"]}}
STREAM = 9  # the request's id


def subscribe(wire: Wire, *types: str, **more: object) -> Any:
    return up(wire.call(SUBSCRIBE, {"event_types": types or ["*"], **more}))


def poll(wire: Wire, **more: object) -> list[dict[str, Any]]:
    """What has come; nothing may be missed."""
    page = up(wire.call(POLL_EVENTS, {"max": 1000, **more}))
    assert (page["count"], page["missed"]) == (len(page["events"]), 0)
    return list(page["events"])


def types(wire: Wire, **more: object) -> list[str]:
    return [event["type"] for event in poll(wire, **more)]


def emit(wire: Wire, kind: str = "CUSTOM", data: object = None) -> int:
    """The number of callers that it reaches."""
    given = {"data": data} if data is not None else {}
    return int(up(wire.call(EMIT, {"event_type": kind, **given}))["delivered_to"])


def stream(wire: Wire, *kinds: str, **more: object) -> Any:
    """Begin a stream; its first frame."""
    wire.hello()
    first = wire.ask(SUBSCRIBE, {"event_types": kinds or ["*"], "stream": True, **more}, STREAM)
    assert (first.op, first.id) == (CHUNK, STREAM), first
    return first.json


def code(reply: Any) -> str:
    return "ok" if reply["success"] else str(reply["code"])


@contextlib.contextmanager
def agent(kernel: Kernel, client: AgentOSClient, name: str, **more: object) -> Iterator[Wire]:
    """A connection that acts as a new agent; the agent is ended behind it."""
    number = kernel.spawn(name, SLEEP, **more)
    with kernel.connect_as(number) as wire:
        yield wire
    client.kill(agent_id=number, grace=0)


def reply_to(wire: Wire, number: int, op: int, body: object) -> Any:
    """The reply to a request among the frames of streams."""
    wire.send(op, body, number)
    while (reply := wire.receive()).id != number:
        pass
    return reply.json
