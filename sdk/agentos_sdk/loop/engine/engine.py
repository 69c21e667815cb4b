"""The loop itself: ask the model, make the tool calls that it wants, show it their results, until it is done.

What was recorded before a crash isn't done again: the same code runs, and finds the records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from agentos_sdk.loop.asking import Asker
from agentos_sdk.loop.tools.call_tools import DONE
from agentos_sdk.loop.tools.images import VIEW_IMAGE, show_images
from agentos_sdk.loop.tools.tools import Context, Tool

from .budget import Budget, Spent
from .effects import Work
from .history import History
from .records import Records, step_name
from .result import LoopError, TaskResult, other_task
from .steps import Outcome, Steps
from .told import HEAD, Told, hear

WARN_AT, GIVE_UP_AT = 3, 5  # equal steps in a row
MAX_SILENT = 3  # answers in a row without a tool call

NO_CALL = "No tool was called. Call a tool to go on, or call done if the task is done or can't be done."
EMPTY = "Your answer was empty. " + NO_CALL
CUT_OFF = "Your answer was cut off at the limit of its length. Go on in smaller steps: less text, smaller files. "
SAME = "This is the same call with the same result as before: it won't change. Do something else, or call done."

Report = Callable[[dict[str, Any]], Work[None]]


class Task(NamedTuple):
    """What is to be done, by whom, and with what. ``text_protocol``: None tries native tool calls first.

    ``confirm``, if there is one, is asked before each call of a tool that doesn't only read. ``is_steered``: messages
    of the operator to the agent belong to the task, see :mod:`.told`; ``said`` is a step and what is said before it.
    ``compact_at`` is a step before which the conversation is summarised, whether it is full or not.
    """

    task_id: str
    text: str
    agent: str
    instruction: str
    tools: Sequence[Tool]
    budget: Budget
    model: str | None = None
    depth: int = 0
    text_protocol: bool | None = None
    directory: str | None = None
    confirm: Callable[[str], bool] | None = None
    is_steered: bool = False
    said: tuple[int, str] | None = None
    compact_at: int | None = None


def run_task(task: Task, report: Report) -> Work[TaskResult]:
    """Work on a task until it ends; raises :class:`LoopError` if its records can't be kept.

    Without a text the task is the one that its records have; with one it has to be the same.
    """
    records = Records(task.task_id)
    yield from records.open()
    began = yield from records.get("")
    if began is None:
        if not task.text:
            raise LoopError(f"there is no task {task.task_id!r}")
        began = {"task": task.text, "at": time.time()}
        yield from records.create("", began)
    elif task.text not in ("", began["task"]):
        raise other_task(task.task_id, began["task"])
    if (ended := (yield from records.get("end"))) is not None:
        told = (yield from hear(records, ended["steps"] + 1, task.said)) if task.is_steered else Told()
        if not told.texts:
            return TaskResult.from_record(ended)
        yield from records.remove("end")  # it goes on with what the operator has said since
    task = task._replace(text=began["task"])
    loop = Loop(task, records, Spent(task.budget, began["at"]), report)
    result = yield from loop.run()
    if result.status != "stopped":
        yield from records.create("end", result._asdict())
    yield from report({"step": result.steps, "kind": "end", **result._asdict()})
    return result


class Loop:
    """One run of the loop over the records of a task."""

    def __init__(self, task: Task, records: Records, spent: Spent, report: Report) -> None:
        self._task, self._records, self._report = task, records, report
        self._history = History()
        self._history.add({"role": "user", "content": task.text})
        self._spent = spent
        self._asker = Asker(task, records, self._history, spent, report)
        context = Context(task.task_id, task.agent, task.depth, task.model, task.directory, records.replace, spent)
        self._steps = Steps({tool.name: tool for tool in task.tools}, context, records, report, task.confirm)
        self._equal = 0  # steps in a row that were like the last one
        self._last_step = ""
        self._silent = 0  # answers in a row without a call

    def run(self) -> Work[TaskResult]:
        result: TaskResult | None = None
        while True:
            told = yield from self._hear(self._spent.steps + 1)
            if result is not None and not told.texts:
                return result
            if told.stop:
                return self._result("stopped", "", "the operator has stopped it")
            if (line := self._spent.exceeded()) is not None:
                return self._result("budget", "", f"not done: {line}")
            self._spent.steps += 1
            step = step_name(self._spent.steps)
            thought = yield from self._asker.ask(step)
            if not thought["success"]:
                status = "budget" if thought.get("code") == "quota_exceeded" else "failed"
                return self._result(status, "", f"the model doesn't answer: {thought['code']}: {thought['error']}")
            result = yield from self._take(step, thought)

    def _hear(self, step: int) -> Work[Told]:
        if not self._task.is_steered:
            return Told()
        is_new = not self._records.has(f"{step_name(step)}/told")
        told = yield from hear(self._records, step, self._task.said)
        if told.texts:
            self._silent = self._equal = 0
        for text in told.texts:
            self._history.add({"role": "user", "content": HEAD + text})
            if is_new:
                yield from self._report({"step": step, "kind": "told", "text": text[:2000]})
        return told

    def _take(self, step: str, thought: Mapping[str, Any]) -> Work[TaskResult | None]:
        """Do what an answer of the model says; returns a result if that ends the task."""
        calls, mistake = self._asker.calls_of(thought)
        self._asker.add_answer(thought, calls)
        if not calls:
            return self._take_silence(thought, mistake)
        self._silent = 0
        results = yield from self._steps.make(step, [call for call in calls if call["name"] != DONE])
        if endings := [call for call in calls if call["name"] == DONE]:  # some models call it more than once
            refused = self._steps.refuse_done(endings[0], results)
            for call in endings:
                results[call["id"]] = refused or Outcome("the task has ended")
            if refused is None:
                yield from self._add_results(calls, results)  # for what the operator may say after it
                return self._end(endings[0]["arguments"])
        same = self._note_repetition([(call["name"], call["arguments"], results[call["id"]]) for call in calls])
        yield from self._add_results(calls, results)
        if self._equal >= GIVE_UP_AT:
            return self._result("failed", "", f"the model repeats the same step ({calls[0]['name']}) without progress")
        if same:
            self._history.add({"role": "user", "content": SAME})
        return None

    def _add_results(self, calls: Sequence[Mapping[str, Any]], results: Mapping[str, Outcome]) -> Work[None]:
        for call in calls:
            self._history.add(self._asker.result_message(call, results[call["id"]].text))
        views = [call for call in calls if call["name"] == VIEW_IMAGE.name and results[call["id"]].ok]
        for message in (yield from show_images(views)):
            self._history.add(message)

    def _take_silence(self, thought: Mapping[str, Any], mistake: str | None) -> TaskResult | None:
        self._silent += 1
        if self._silent >= MAX_SILENT:
            why = f"the model hasn't called a tool, nor done, in its last {MAX_SILENT} answers"
            return self._result("failed", thought["content"], why)
        if mistake is not None:
            note = f"Your call can't be read: {mistake}. Answer with JSON such as " + '{"action": "done", "args": {…}}'
        elif thought["finish_reason"] == "length":
            note = CUT_OFF + NO_CALL
        else:
            note = NO_CALL if thought["content"].strip() else EMPTY
        self._history.add({"role": "user", "content": note})
        return None

    def _note_repetition(self, step: Sequence[Any]) -> bool:
        text = json.dumps(step, sort_keys=True)
        self._equal = self._equal + 1 if text == self._last_step else 1
        self._last_step = text
        return self._equal >= WARN_AT

    def _end(self, arguments: Mapping[str, Any]) -> TaskResult:
        if arguments.get("success", True):
            return self._result("done", arguments["summary"], "")
        return self._result("failed", arguments["summary"], "the model says that the task can't be done")

    def _result(self, status: Any, summary: str, reason: str) -> TaskResult:
        spent, task = self._spent, self._task
        return TaskResult(status, summary, task.task_id, task.agent, spent.steps, spent.tokens, spent.cost, reason)
