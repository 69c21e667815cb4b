"""The line that ``agentos think`` shows on a terminal while the model hasn't begun to answer."""

import shutil
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import click

from agentos.userland.cli.agents.agents import describe_unavailable, ordinal
from agentos.userland.cli.common import REPLY_MARGIN, printable
from agentos_sdk import AgentOSClient, AgentOSError
from agentos_sdk.encoding.chunks import Thoughts
from agentos_sdk.opcodes import Op

FIRST_SECONDS = 0.3  # an answer that begins within it has no line before it
INTERVAL = 1.0  # seconds between two looks at the queue
ERASE = "\r\x1b[K"


class WaitingLine:
    """Shows where a question is in the queue, on stderr if that is a terminal, until :meth:`end`. A context manager.

    A thread of its own asks the kernel, over a connection of its own. A caller that may not read the queue's metrics,
    such as an agent, sees only how long it has waited.
    """

    def __init__(self, socket_path: str, thoughts: Thoughts, model: str | None) -> None:
        self._socket_path, self._thoughts, self._model = socket_path, thoughts, model
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._shown = False
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Remove the line; it doesn't come back."""
        self._over.set()
        with self._writing:
            if self._shown:
                self._write(ERASE)
                self._shown = False

    def _run(self) -> None:
        with AgentOSClient(self._socket_path, REPLY_MARGIN) as client:
            wait = FIRST_SECONDS
            while not self._over.wait(wait):
                wait, found = INTERVAL, None
                with suppress(AgentOSError, OSError):
                    found = client.request(Op.METRICS_SYSTEM, {}).get("metrics")
                text = describe_waiting(
                    found["llm"] if found else {}, f"operator#{self._thoughts.agent_id}", self._model
                )
                self._show(f"{text}, {time.monotonic() - self._began:.0f} s")

    def _show(self, text: str) -> None:
        columns = shutil.get_terminal_size().columns
        line = printable(text)[: columns - 1]
        with self._writing:
            if not self._over.is_set():
                self._shown = True
                self._write(ERASE + click.style(line, fg="bright_black"))

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal is gone
            sys.stderr.write(text)
            sys.stderr.flush()


def describe_waiting(line: Mapping[str, Any], name: str, model: str | None) -> str:
    """What the question of the caller ``name`` waits for; ``line`` is ``llm`` of METRICS_SYSTEM, empty if unknown."""
    states = line.get("providers", ())
    for sent in line.get("in_flight", ()):
        if sent["agent"] == name:
            return f"waiting for the answer of {sent['model']}"
    waiting = line.get("waiting", ())
    for one in waiting:
        if one["agent"] != name:
            continue
        if one["position"] is not None:
            return f"waiting: {ordinal(one['position'])} of {len(waiting)} in line for {one['model']}"
        paused = [state for state in states if state["state"] != "ok" and state["model"] == one["model"]]
        if paused:
            return f"waiting: {describe_unavailable(paused[0])}"
        if one["state"] == "paused":
            return f"waiting: {one['model']} has had its requests or tokens of this minute, as [llm.limits] says"
        return f"waiting to ask {one['model']} again"
    default = states[0]["model"] if states else "the model"
    return f"waiting for {model or default}"
