"""Calls of state by a client of a real kernel, and agents that make them."""

import contextlib
from collections.abc import Iterator
from typing import Any

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel
from tests.support.wire import FETCH, SPAWN, STORE, Wire
from tests.system.agents import info, up

SLEEP = ["sleep", "1000"]
CHILD = """
[[supervisor.children]]
name = "kept"
command = ["sleep", "1000"]
restart = "permanent"

[[supervisor.children]]
name = "once"
command = ["sleep", "1000"]
restart = "temporary"
"""
GRANTED = {"level": "sandboxed", "allow": {"state_read": ["plan.*", "note"], "state_write": ["plan.*"]}}


def stores(wire: Wire, key: str, value: object, scope: str = "agent", **more: object) -> int:
    return int(up(wire.call(STORE, {"key": key, "value": value, "scope": scope, **more}))["version"])


def found(wire: Wire, key: str, scope: str | None = "agent") -> Any:
    """The value of a key, and where it was found."""
    reply = up(wire.call(FETCH, {"key": key, **({"scope": scope} if scope else {})}))
    return (reply["value"], reply["scope"]) if reply["exists"] else None


def code(reply: Any) -> str:
    return "ok" if reply["success"] else str(reply["code"])


@contextlib.contextmanager
def acting_as(kernel: Kernel, name: str) -> Iterator[Wire]:
    with kernel.client() as client:
        number = info(client, name)["id"]
    with kernel.connect_as(number) as wire:
        yield wire


def child_of(kernel: Kernel, parent: Wire, name: str, **more: object) -> int:
    return int(up(parent.call(SPAWN, {"name": name, "command": SLEEP, **more}))["id"])


def end(client: AgentOSClient, *numbers: int) -> None:
    for number in numbers:
        client.kill(agent_id=number, grace=0)
