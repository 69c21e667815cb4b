"""Runs a task where it belongs: an agent's in its own process, the operator's in a jailed agent made for it.

The operator's process only starts that agent and watches it: the tools of the loop never have the operator's rights.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from agentos_sdk.loop.instructions import INSTRUCTION
from agentos_sdk.loop.tools.call_tools import EXEC, HTTP, PROGRAM, SPAWN, find_foreign_tools
from agentos_sdk.loop.tools.call_tools import MAX_DEPTH as MAX_AGENTS_DEEP
from agentos_sdk.loop.tools.file_tools import EDIT_FILE, LIST_FILES, READ_FILE, SEARCH_FILES, WRITE_FILE
from agentos_sdk.loop.tools.images import VIEW_IMAGE
from agentos_sdk.loop.tools.tools import Tool
from agentos_sdk.opcodes import Op

from .budget import Budget
from .effects import Call, NextPiece, OpenStream, Reply, Work
from .engine import Task, run_task
from .records import transcript
from .result import LoopError, TaskResult, is_amount, other_task

BUILT_IN = (EXEC, READ_FILE, WRITE_FILE, EDIT_FILE, LIST_FILES, SEARCH_FILES, VIEW_IMAGE, HTTP)
MAX_SHOWN = 1500  # characters of a question that surely fit onto a screen
MAX_TASK = 100_000  # bytes of the task's settings: they are a variable of the agent's environment
LIVING = ("starting", "running", "paused", "backing_off")
LONGEST_WINDOW = "31d"  # of a budget
WATCHED = ["TASK_STEP", "AGENT_EXITED", "AGENT_FAILED"]
ON_HOST = (
    "on_host: the model's commands run on this host with your rights, without a jail: they can read and change all "
    "that you can. You are asked before each."
)

OnStep = Callable[[dict[str, Any]], object]


class Me(NamedTuple):
    """The caller, as the kernel knows it."""

    agent_id: int
    name: str


class Options(NamedTuple):
    """How tasks are worked on; see :class:`~agentos_sdk.loop.AgenticLoop`."""

    budget: Budget
    model: str | None = None
    tools: Sequence[Tool] = ()
    instruction: str = INSTRUCTION
    text_protocol: bool | None = None
    workspace: str = "keep"
    workspace_mode: str = "direct"
    permissions: Any = "sandboxed"
    on_host: bool = False
    on_step: OnStep | None = None
    confirm: Callable[[str], bool] | None = None
    depth: int = 0
    is_steered: bool = False
    said: tuple[int, str] | None = None
    limits: Mapping[str, object] | None = None
    compact: bool = False
    compact_at: int | None = None


def drive(options: Options, me: Me, text: str, task_id: str | None, is_resumed: bool = False) -> Work[TaskResult]:
    """Work on a task, and return its result; raises :class:`LoopError` if that isn't possible here."""
    kind = yield from caller_kind(me)
    if kind == "guest" and not options.on_host:
        raise LoopError("a guest's task needs on_host=True: only the operator and agents may start and watch its agent")
    if kind == "operator" and not options.on_host:
        return (yield from _run_in_agent(options, text, task_id, is_resumed))
    if options.on_host and kind != "agent":
        print(ON_HOST, file=sys.stderr)
        options = options._replace(confirm=options.confirm or ask_user)
    task_id = task_id or (yield from _find_open_task(text))
    tools = yield from _tools_of(options, me.agent_id if kind == "agent" else None)
    task = Task(
        task_id,
        text,
        me.name,
        options.instruction,
        tools,
        options.budget,
        options.model,
        options.depth,
        options.text_protocol,
        os.getcwd() if kind == "operator" else None,
        options.confirm if kind != "agent" else None,
        options.is_steered,
        options.said,
        options.compact_at,
    )
    return (yield from run_task(task, _reporter(task_id, options.on_step)))


def caller_kind(me: Me) -> Work[Literal["operator", "agent", "guest"]]:
    """What the caller is: the kernel lists an agent by its id, and shows approvals to the operator alone."""
    agents = yield Call(Op.LIST, {})
    if isinstance(agents, dict):
        raise LoopError(f"{agents['code']}: {agents['error']}")
    if any(each["id"] == me.agent_id for each in agents):
        return "agent"
    approvals = yield Call(Op.APPROVALS, {})
    return "operator" if approvals["success"] else "guest"


def ask_user(text: str) -> bool:
    """Ask on the terminal whether a call may be made."""
    try:
        return input(f"{printable(text)}\nallow? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # nobody is there to allow it
        return False


def printable(text: str) -> str:
    """The text with every character escaped that a terminal might not show as it is, such as those for direction.

    Of a text that would not fit onto a screen, its length is said below it.
    """
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    return shown if len(shown) <= MAX_SHOWN else f"{shown}\n({len(shown)} characters: scroll up to see them all)"


def _tools_of(options: Options, agent_id: int | None) -> Work[list[Tool]]:
    subagents = () if options.on_host or options.depth >= MAX_AGENTS_DEEP else (SPAWN,)
    foreign = yield from find_foreign_tools(agent_id)
    tools = {tool.name: tool for tool in (*foreign, *BUILT_IN, *subagents, *options.tools)}
    return list(tools.values())


def _reporter(task_id: str, on_step: OnStep | None) -> Callable[[dict[str, Any]], Work[None]]:
    """Publishes each step as an event ``TASK_STEP``; if that is refused, the records still have all."""
    may_emit = True

    def report(step: dict[str, Any]) -> Work[None]:
        nonlocal may_emit
        step = {"task": task_id, **step}
        if on_step is not None:
            on_step(step)
        if may_emit:
            reply = yield Call(Op.EMIT, {"event_type": "TASK_STEP", "data": step})
            if not reply["success"]:
                print(f"no more TASK_STEP events: {reply['code']}: {reply['error']}", file=sys.stderr)
                may_emit = False

    return report


def _find_open_task(text: str) -> Work[str]:
    """The id of the caller's unfinished task with this text, which goes on; otherwise a new one."""
    key = f"task-open/{sha256(text.encode()).hexdigest()[:32]}"
    found = yield from _checked(Call(Op.FETCH, {"key": key, "scope": "agent"}))
    if found["exists"]:
        ended = yield from _checked(Call(Op.FETCH, {"key": f"task/{found['value']}/end", "scope": "agent"}))
        if not ended["exists"]:
            return str(found["value"])
    task_id = f"{uuid4().hex[:11]}f"  # of digits alone, no mask of a replay would take it for hexadecimal
    fields = {"key": key, "value": task_id, "scope": "agent", "if_version": found["version"]}
    yield from _checked(Call(Op.STORE, fields))
    return task_id


# -- The operator's tasks ----------------------------------------------------------------------------------------------


def _run_in_agent(options: Options, text: str, name: str | None, is_resumed: bool) -> Work[TaskResult]:
    if options.tools:
        names = ", ".join(tool.name for tool in options.tools)
        raise LoopError(
            f"tools: {names} are functions of this process, and the task runs in a jail: write an agent that has them "
            "(docs/how-to/build-your-own-agent.md), or give on_host=True"
        )
    if is_resumed and name is not None and not text:
        ended = yield from _checked(Call(Op.FETCH, {"key": f"task/{name}/end", "scope": "agent", "agent": name}))
        if ended["exists"]:
            return _result_of(name, ended["value"])
    name = name or (yield from next_task_name())
    if is_resumed:
        kept = yield from _checked(Call(Op.FETCH, {"key": f"task-spawn/{name}", "scope": "agent"}))
        if not kept["exists"]:
            raise LoopError(f"there is no task {name!r}")
        fields = kept["value"]
        if text:
            fields, text = yield from _add_task(options, fields, name, text)
    else:
        fields = spawn_fields(options, text, name)
        kept = yield from _checked(Call(Op.FETCH, {"key": f"task-spawn/{name}", "scope": "agent"}))
        if kept["exists"] and (former := json.loads(kept["value"]["env"]["LOOP_TASK"])["task"]) != text:
            raise other_task(name, former)
        new = {"key": f"task-spawn/{name}", "value": fields, "scope": "agent", "if_version": kept["version"]}
        yield from _checked(Call(Op.STORE, new))
    running = yield Call(Op.INSPECT, {"name": name})
    if running["success"] and (running["state"] in LIVING or (yield from _is_between_lives(running))):
        spawned = running
    else:
        spawned = yield from _checked(Call(Op.SPAWN, fields))
    if is_resumed and text:
        yield from _checked(Call(Op.SEND, {"to": spawned["id"], "message": text}))
    last: dict[str, Any] = {}

    def note(step: dict[str, Any]) -> None:
        if step.get("task") != name:  # something else in its jail has emitted it
            return
        last.clear()
        last.update(step)
        if options.on_step is not None:
            options.on_step(step)

    reason = yield from _watch(spawned["id"], note)
    ended = yield from _checked(Call(Op.FETCH, {"key": f"task/{name}/end", "scope": "agent", "agent": name}))
    if not ended["exists"]:
        if last.get("kind") == "end" and last.get("status") in ("stopped", "failed"):  # without a record, or it failed
            return _result_of(name, {field: last.get(field) for field in TaskResult._fields})
        why = f"its agent ended before the task: {reason}; agentos logs {name} has its output"
        return TaskResult("failed", "", name, name, 0, 0, None, why)
    return _result_of(name, ended["value"])


def _result_of(name: str, record: Any) -> TaskResult:
    """The result of the operator's task; the agent that stored it may have written another name into it."""
    return TaskResult.from_record(record)._replace(task_id=name, agent=name)


def spawn_fields(options: Options, text: str, name: str) -> dict[str, Any]:
    """The fields of SPAWN for the agent of a task. Its budget also holds for what it spawns, as the kernel counts."""
    settings = json.dumps(
        {
            "id": name,
            "task": text,
            "budget": options.budget._asdict(),
            "model": options.model,
            "instruction": options.instruction,
            "text_protocol": options.text_protocol,
            "is_steered": True,
        }
    )
    if len(settings.encode()) > MAX_TASK:
        raise LoopError(f"task: expected at most {MAX_TASK} bytes, got {len(settings.encode())}: put it into a file")
    return {
        "name": name,
        "command": PROGRAM,
        "env": {"LOOP_TASK": settings},
        "workspace": options.workspace,
        **({"workspace_mode": options.workspace_mode} if options.workspace_mode != "direct" else {}),
        "permissions": options.permissions,
        "restart": "transient",
        **({"limits": dict(options.limits)} if options.limits else {}),
        **_llm_budget(options.budget),
    }


def _llm_budget(budget: Budget) -> dict[str, Any]:
    line = {name: amount for name in ("tokens", "money") if (amount := getattr(budget, name)) is not None}
    return {"llm": {"budget": [{**line, "per": LONGEST_WINDOW}]}} if line else {}


def _add_task(options: Options, fields: dict[str, Any], name: str, text: str) -> Work[tuple[dict[str, Any], str]]:
    """Let a task that is over go on with the same conversation, and as much budget once more.

    Returns its fields of SPAWN, and the text, if the task isn't over and is to be told by a message.
    """
    ended = yield from _checked(Call(Op.FETCH, {"key": f"task/{name}/end", "scope": "agent", "agent": name}))
    if not ended["exists"]:
        return fields, text
    began = yield from _checked(Call(Op.FETCH, {"key": f"task/{name}", "scope": "agent", "agent": name}))
    settings = json.loads(fields["env"]["LOOP_TASK"])
    used = _result_of(name, ended["value"])
    at = began["value"].get("at") if isinstance(began["value"], dict) else None
    age = time.time() - at if is_amount(at) else 0.0
    former = Budget.of(settings["budget"])
    tokens, cost = _believable(used.tokens, former.tokens), _believable(used.cost or 0.0, former.money)
    spent = (used.steps, tokens, cost, age)
    larger = Budget.of(
        {name: each and each + past for name, each, past in zip(Budget._fields, options.budget, spent, strict=True)}
    )
    next_step = used.steps + 1
    settings |= {"budget": larger._asdict(), "said": [next_step, text]}
    settings["compact_at"] = next_step if options.compact else None
    settings["model"] = options.model or settings["model"]
    fields = {**fields, "env": {"LOOP_TASK": json.dumps(settings)}, **_llm_budget(larger)}
    kept = {"key": f"task-spawn/{name}", "value": fields, "scope": "agent"}
    yield from _checked(Call(Op.STORE, kept))
    return fields, ""


def _believable(used: float, budget: float | None) -> float:
    """What an agent's own record says that it has used, of which the kernel let it use hardly more than its budget.

    Otherwise a larger number would enlarge the budget that the kernel enforces.
    """
    return used if budget is None else min(used, 2 * budget)


def next_task_name() -> Work[str]:
    """The name of a new task's agent, ``task-N``: no two tasks of this kernel's state have the same."""
    while True:
        found = yield from _checked(Call(Op.FETCH, {"key": "task-last", "scope": "agent"}))
        number = (found["value"] or 0) + 1
        fields = {"key": "task-last", "value": number, "scope": "agent", "if_version": found["version"]}
        stored = yield Call(Op.STORE, fields)
        if stored["success"]:
            return f"task-{number}"
        if stored["code"] != "conflict":
            raise LoopError(f"task-last: {stored['code']}: {stored['error']}")


def _watch(agent: int, on_step: OnStep | None) -> Work[str]:
    """Pass on the agent's steps until it has ended; returns why it has."""
    fields: dict[str, Any] = {"event_types": WATCHED, "agents": [agent]}
    events = yield OpenStream(Op.SUBSCRIBE, {**fields, "since": 0})
    reason, last = None, 0
    while True:
        is_last, page = yield NextPiece(events)
        if is_last:
            raise LoopError(f"the events of the agent have ended: {page.get('error')}")
        # Those of another boot are of an agent that had this id in an earlier run of the kernel.
        new = [event for event in page["events"] if event["boot"] == page["boot"] and event["seq"] > last]
        if reason is not None and not new and page["events"]:
            return reason
        for event in new:
            last = event["seq"]
            if event["type"] != "TASK_STEP":
                reason = reason or (yield from _find_end(agent))
            elif on_step is not None and isinstance(event["data"], dict):
                on_step(event["data"])
        if reason is not None and new:  # it is over: after the last event come the further ones, or there are none
            events = yield OpenStream(Op.SUBSCRIBE, {**fields, "since": last - 1, "boot": page["boot"]})


def _is_between_lives(agent: Reply) -> Work[bool]:
    """Whether an agent that isn't living is about to be restarted, so that its name is taken."""
    return agent["state"] == "exited" and (yield from _find_end(agent["id"])) is None


def _find_end(agent: int) -> Work[str | None]:
    """Why an agent has ended for good, after a life of it has ended; None if it is restarted."""
    while True:
        ended = yield Call(Op.WAIT, {"id": agent, "timeout": 0.5})
        if ended["success"]:
            return str(ended["reason"])
        found = yield from _checked(Call(Op.INSPECT, {"id": agent}))
        if found["state"] in LIVING:
            return None


def read_transcript(me: Me, task_id: str) -> Work[list[dict[str, Any]]]:
    """The transcript of a task: the caller's own, or for the operator that of the task's agent."""
    kind = yield from caller_kind(me)
    agent = {}
    if kind == "operator":
        spawned = yield from _checked(Call(Op.FETCH, {"key": f"task-spawn/{task_id}", "scope": "agent"}))
        agent = {"agent": task_id} if spawned["exists"] else {}  # otherwise it ran on the host
    records: dict[str, Any] = {}
    prefix, after = f"task/{task_id}", ""
    while after is not None:
        page = yield from _checked(Call(Op.KEYS, {"prefix": prefix, "scope": "agent", "after": after, **agent}))
        for key in page["keys"]:
            if key == prefix or key.startswith(f"{prefix}/"):
                found = yield from _checked(Call(Op.FETCH, {"key": key, "scope": "agent", **agent}))
                records[key[len(prefix) + 1 :]] = found["value"]
        after = page["next"]
    if "" not in records:
        raise LoopError(f"there is no task {task_id!r}")
    try:
        return list(transcript(records))
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ):  # whatever runs in the agent's jail could have written them
        raise LoopError(f"the records of {task_id} are no transcript: something else has stored them") from None


def _checked(call: Call) -> Work[Reply]:
    reply: Reply = yield call
    if not reply["success"]:
        raise LoopError(f"{reply['code']}: {reply['error']}")
    return reply
