"""An agent whose calls a test makes, each on a connection of its own: several can wait for a person at once."""

from collections.abc import Mapping
from typing import Any

from tests.support.kernel import Kernel, until
from tests.support.wire import APPROVALS, Wire


class Asker:
    """The agent ``name`` with these permissions; its own program only sleeps."""

    def __init__(self, kernel: Kernel, name: str, ask: Mapping[str, list[str]]) -> None:
        self.kernel, self.name = kernel, name
        permissions = {"level": "sandboxed", "ask": dict(ask)}
        self.id = kernel.spawn(name, permissions=permissions)
        self._wires: list[Wire] = []

    def connect(self) -> Wire:
        return self.kernel.connect_as(self.id)

    def begin(self, op: int, fields: Mapping[str, object]) -> Wire:
        """Make a call that waits for a person; its reply comes on the connection that is returned."""
        before = {one["id"] for one in list_pending(self.kernel)}
        wire = self.connect()
        self._wires.append(wire)
        wire.send(op, dict(fields))
        until(lambda: {one["id"] for one in list_pending(self.kernel)} - before, f"{self.name} waits for a person")
        return wire

    def close(self) -> None:
        """End the connections of all calls that were begun."""
        for wire in self._wires:
            wire.close()

    def call(self, op: int, fields: Mapping[str, object]) -> Any:
        with self.connect() as wire:
            return wire.call(op, dict(fields))


def list_pending(kernel: Kernel) -> list[dict[str, Any]]:
    """What waits for a person."""
    with kernel.connect() as wire:
        pending: list[dict[str, Any]] = wire.call(APPROVALS, {})["pending"]
    return pending
