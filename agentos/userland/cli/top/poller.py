"""What ``agentos top`` asks the kernel: the agents again and again, and one action at a time, each in a thread."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, field

from agentos.userland.cli.common import REPLY_MARGIN, printable, socket_path
from agentos_sdk import AgentOSClient, AgentOSError
from agentos_sdk.opcodes import Op

from .table import Agent, Shares, add_usage

USAGE_DELAY = 5.0  # seconds at least between two questions for what was used of the model


@define(eq=False)
class Poller:
    """Asks the kernel for its agents in a thread, so that keys are obeyed while the kernel is slow or gone."""

    socket: str | None
    delay: float
    shares: Shares = field(factory=Shares)
    agents: Sequence[Agent] = ()
    error: str | None = None  # why the agents are old
    version: int = 0  # of the agents; grows with each answer or error
    asked: int = 1  # questions so far: as many as answers, or one more
    _wanted: threading.Event = field(factory=threading.Event)  # an update at once, or the end
    _over: bool = False

    @classmethod
    @contextmanager
    def started(cls, socket: str | None, delay: float) -> "Iterator[Poller]":
        poller = cls(socket, delay)
        threading.Thread(target=poller._run, daemon=True).start()
        try:
            yield poller
        finally:
            poller._over = True
            poller._wanted.set()

    def update(self) -> int:
        """Ask at once; returns the first version that is asked for after this call."""
        version = self.asked + 1
        self._wanted.set()
        return version

    def _run(self) -> None:
        while not self._over:
            try:
                with AgentOSClient(socket_path(self.socket), REPLY_MARGIN) as client:
                    usage, asked = read_usage(client), time.monotonic()
                    while not self._over:
                        agents, now = client.list_agents(all=True), time.monotonic()
                        self.shares.update(agents, now)
                        if now - asked >= USAGE_DELAY:
                            usage, asked = read_usage(client), now
                        self.agents, self.error = add_usage(agents, usage), None
                        self._wait()
            except (AgentOSError, OSError) as error:
                self.error = str(error)
                self._wait()

    def _wait(self) -> None:
        self.version += 1
        self._wanted.wait(self.delay)
        self._wanted.clear()
        self.asked += 1


def read_usage(client: AgentOSClient) -> Sequence[dict[str, Any]]:
    """What was used of the model in the last hour; nothing for a caller that may not know it."""
    rows: Sequence[dict[str, Any]] = client.usage(hour=True).get("usage", ())
    return rows


@define(eq=False)
class Action:
    """One call in a thread, on a connection of its own: to kill an agent may take as long as its shutdown time."""

    result: str | None = None  # when it is done: an error, or an empty text

    @classmethod
    def started(cls, socket: str | None, op: Op, fields: dict[str, Any]) -> "Action":
        action = cls()
        threading.Thread(target=action._run, args=(socket, op, fields), daemon=True).start()
        return action

    def _run(self, socket: str | None, op: Op, fields: dict[str, Any]) -> None:
        try:
            with AgentOSClient(socket_path(socket), REPLY_MARGIN) as client:
                reply = client.request(op, fields, wait=None)
            self.result = printable(str(reply.get("error") or ""))
        except (AgentOSError, OSError) as error:
            self.result = printable(str(error))
