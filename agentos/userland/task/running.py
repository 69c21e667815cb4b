"""A task of the loop in a thread: its steps, its end, and what the operator can do to it meanwhile."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentos_sdk import AgentOSClient, AgentOSError
from agentos_sdk.loop import TaskResult
from agentos_sdk.loop.engine.result import LoopError, is_amount
from agentos_sdk.loop.engine.told import STOP

Step = Mapping[str, Any]
RETRY_SECONDS = 0.2
MAX_STEPS = 10_000  # that wait to be shown; the oldest are dropped: the records have all


def make_pipe() -> tuple[int, int]:
    """A pipe that never blocks, to wake what waits for steps."""
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def is_step(step: Step) -> bool:
    """Whether it has what a step of its kind has: whatever runs in the agent's jail can emit such events."""
    match step:
        case {"kind": "thought", "step": int(), "text": str(), "tokens": int(tokens), "cost": cost} | {
            "kind": "asked",
            "step": int(),
            "tokens": int(tokens),
            "cost": cost,
        }:
            return is_amount(step["step"]) and is_amount(tokens) and (cost is None or is_amount(cost))
        case {"kind": "call", "call": str(), "arguments": _}:
            return True
        case {"kind": "result", "call": str(), "ok": bool(), "result": str()}:
            return True
        case {"kind": "told" | "check" | "output", "text": str()}:
            return True
        case {"kind": "trimmed", "before": int(before), "after": int(after)}:
            return is_amount(before) and is_amount(after)
    return step.get("kind") == "end"


class RunningTask:
    """A task whose agent is called ``name``; ``wake`` becomes readable after each step and at the end.

    ``work`` does it, and gives its steps to :meth:`note`. After the end ``result`` or ``error`` is set. ``pipe`` is
    the one of ``wake``, where several tasks share it.
    """

    def __init__(
        self,
        socket: str,
        name: str,
        work: Callable[[AgentOSClient, "RunningTask"], TaskResult],
        pipe: tuple[int, int] | None = None,
    ):
        self.socket, self.name = socket, name
        self.result: TaskResult | None = None
        self.error: str | None = None
        self.is_over = False
        self.is_stopping = False
        self.is_killed = False
        self.heeds_stop = True  # what runs in its jail now takes the message that stops a task
        self.is_steered = True  # what runs in its jail now takes messages
        self.said = ""  # the model's last text, as its step has it
        self.wake, self._write = pipe or make_pipe()
        self._work = work
        self._steps: deque[Step] = deque(maxlen=MAX_STEPS)

    def start(self) -> None:
        """Begin; where this process ends before the task, its agent goes on."""
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def note(self, step: Step) -> None:
        """Take a step, which is shown by :meth:`take_steps`."""
        if not is_step(step):
            return
        if step["kind"] == "thought":
            self.said = step["text"]
        self._steps.append(step)
        self.notify()

    def take_steps(self) -> Sequence[Step]:
        """The steps since the last time."""
        taken = []
        while self._steps:
            taken.append(self._steps.popleft())
        return taken

    def drain(self) -> None:
        """Make ``wake`` unreadable, until the next step."""
        with suppress(BlockingIOError):
            os.read(self.wake, 65536)

    def notify(self) -> None:
        """Make ``wake`` readable; may be called by a signal handler."""
        with suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def tell(self, text: str) -> None:
        """Tell the model something before its next step; raises ``AgentOSError``."""
        if not self.is_steered:
            raise AgentOSError(f"what works on {self.name} takes no messages while it runs")
        self._send(text)

    def stop(self) -> None:
        """Let it stop after its present step; where its agent hasn't been spawned yet, after its first one."""
        self.is_stopping = True
        if self.heeds_stop:
            self._repeat(lambda: self._send(STOP))
        else:
            self.kill()

    def kill(self) -> None:
        """End its agent at once, with all that it has started; where it hasn't been spawned yet, as soon as it is."""
        self.is_killed = True
        self._repeat(self._kill)

    def prefix(self, step: Step) -> str:
        """What begins the lines of a step; empty, as there are no others."""
        return ""

    def concerns(self, request: Mapping[str, Any]) -> bool:
        """Whether the agent that asks for an approval works on this task: its own, or one that descends from that."""
        return bool(request["path"].split("/")[0] == self.name)

    def _send(self, message: object) -> None:
        with AgentOSClient(self.socket) as client:
            reply = client.send_message(message, to_name=self.name)
        if not reply["success"]:
            raise AgentOSError(f"{self.name} can't be told that: {reply['error']}")

    def _kill(self) -> None:
        with AgentOSClient(self.socket) as client:
            if not client.kill(name=self.name):
                raise AgentOSError(f"{self.name} can't be ended")

    def _repeat(self, request: Callable[[], None]) -> None:
        """Make a request until it succeeds or the task is over, in a thread: there may be no agent yet."""

        def run() -> None:
            while not self.is_over:
                with suppress(AgentOSError):
                    request()
                    return
                time.sleep(RETRY_SECONDS)

        threading.Thread(target=run, name=f"{self.name} request", daemon=True).start()

    def _run(self) -> None:
        try:
            with AgentOSClient(self.socket) as client:
                self.result = self._work(client, self)
        except (AgentOSError, LoopError, OSError) as error:
            self.error = str(error)
        finally:
            self.is_over = True
            self.notify()
