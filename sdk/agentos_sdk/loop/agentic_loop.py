"""``AgenticLoop`` and ``run_task`` for the blocking client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentos_sdk.blocking import AgentOSClient

from .blocking_driver import BlockingDriver
from .engine.budget import MAX_ITERATIONS, Budget
from .engine.driving import OnStep, Options, drive, read_transcript
from .engine.result import TaskResult
from .instructions import INSTRUCTION
from .tools.functions import tool
from .tools.tools import Tool


def options(
    max_iterations: int = MAX_ITERATIONS,
    *,
    budget: Budget | Mapping[str, object] | None = None,
    model: str | None = None,
    tools: Sequence[Tool | Callable[..., Any]] = (),
    instruction: str = INSTRUCTION,
    text_protocol: bool | None = None,
    workspace: str = "keep",
    workspace_mode: str = "direct",
    permissions: Any = "sandboxed",
    limits: Mapping[str, object] | None = None,
    on_host: bool = False,
    on_step: OnStep | None = None,
    confirm: Callable[[str], bool] | None = None,
) -> Options:
    """The arguments of a loop as values; raises ``ValueError`` for a wrong budget, ``TypeError`` for a wrong tool."""
    made = [each if isinstance(each, Tool) else tool(each) for each in tools]
    allowed = Budget.of(budget, max_iterations)
    shown = Options(allowed, model, made, instruction, text_protocol, workspace, workspace_mode, permissions, on_host)
    return shown._replace(on_step=on_step, confirm=confirm, limits=limits)


class AgenticLoop:
    """A model that works on tasks by tools until it calls ``done``: think, call tools, look at their results.

    In an agent it works in this process, with the agent's rights. With an operator's connection it starts a jailed
    agent ``task-N`` for each task and watches it; ``workspace``, ``workspace_mode``, ``permissions`` and ``limits`` are
    those of that agent, as in SPAWN. ``on_host`` is the only other way: the tools run on the host with the rights of
    ``client``, and each call that doesn't only read is asked about (``confirm``, by default on the terminal).

    ``budget`` is a table of ``iterations`` (``max_iterations`` by default), ``tokens``, ``money`` and ``time``.
    ``tools`` are typed functions, beside the built-in tools. ``text_protocol``: tool calls as JSON text; None: where
    the model has no native ones. ``on_step`` is called with each step, as in the events ``TASK_STEP``.
    """

    def __init__(self, client: AgentOSClient, max_iterations: int = MAX_ITERATIONS, **more: Any) -> None:
        self._driver = BlockingDriver(client)
        self._options = options(max_iterations, **more)

    def run(self, task: str, *, task_id: str | None = None) -> TaskResult:
        """Work on a task until it ends. An agent that is restarted goes on with its unfinished task of the same text.

        ``task_id`` names the task's records; the operator's is the agent's name. Raises :class:`LoopError` where the
        loop can't work, :class:`~agentos_sdk.ConnectionFailed` if the kernel ends; then :meth:`resume` goes on.
        """
        return self._driver.run(drive(self._options, self._driver.me(), task, task_id))

    def resume(self, task_id: str, text: str = "", *, compact: bool = False) -> TaskResult:
        """Go on with a task of the operator's whose kernel or process was ended; returns its result if it is over.

        With ``text`` it goes on also if it is over: the model is told that, after all that was said and done before,
        and may use as much as the budget says once more. A task that runs is told it before its next step.
        ``compact``: of one that is over the model gets a summary of all but the task and the last two steps.
        """
        options = self._options._replace(compact=compact)
        return self._driver.run(drive(options, self._driver.me(), text, task_id, is_resumed=True))

    def transcript(self, task_id: str) -> list[dict[str, Any]]:
        """What was thought and done, from the task's records: a value for each line of a transcript in JSON lines."""
        return self._driver.run(read_transcript(self._driver.me(), task_id))


def run_task(task: str, client: AgentOSClient | None = None, **more: Any) -> TaskResult:
    """Work on one task; ``more`` are the arguments of :class:`AgenticLoop`.

    Without ``client`` it connects to the default socket.
    """
    if client is not None:
        return AgenticLoop(client, **more).run(task)
    with AgentOSClient() as own:
        return AgenticLoop(own, **more).run(task)
