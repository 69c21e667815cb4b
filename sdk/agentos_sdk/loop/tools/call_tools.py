"""Tools that are system calls: exec, http, spawn_subagent, and the tools of MCP servers that the kernel runs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from agentos_sdk.loop.engine.effects import Call, NextPiece, OpenStream, Work
from agentos_sdk.loop.engine.result import LoopError, TaskResult
from agentos_sdk.opcodes import Op

from .tools import Context, Tool, ToolError, checked, parameters, shorten

EXEC_TIMEOUT = 120.0  # seconds, unless the model names another
MAX_TIMEOUT = 3600.0  # seconds: EXEC takes no more
HTTP_TIMEOUT = 60.0  # seconds
MAX_DEPTH = 2  # of subagents: the task's agent, and theirs
MAX_KEPT_OUTPUT = 16_000  # characters of a running command's output that survive a crash
FIRST_SAVES, SAVE_INTERVAL = 10, 1.0  # pieces of output that are saved at once; seconds between later ones
MAX_SUBAGENT_STEPS = 100
AGENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RESULT_LINE = "task result: "  # begins the line by which a subagent returns its result


def _exec(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    wanted = arguments.get("timeout", EXEC_TIMEOUT)
    left = context.spent.left().get("time", MAX_TIMEOUT)
    # EXEC takes 0 as "no timeout", which would undo the task's budget.
    timeout = float(min(wanted if wanted > 0 else EXEC_TIMEOUT, left, MAX_TIMEOUT))
    cwd = {"cwd": context.directory} if context.directory is not None else {}
    stream = yield OpenStream(Op.EXEC, {"command": arguments["command"], "timeout": timeout, **cwd})
    output, pieces, saved_at = "", 0, 0.0
    while True:
        is_last, body = yield NextPiece(stream)
        if is_last:
            break
        output = shorten(output + body["text"])
        pieces += 1
        if pieces <= FIRST_SAVES or time.monotonic() - saved_at >= SAVE_INTERVAL:
            yield from context.save(f"{place}/output", {"text": shorten(output, MAX_KEPT_OUTPUT)})
            saved_at = time.monotonic()
    if not body["success"]:
        raise ToolError(f"{body.get('code')}: {body.get('error')}")
    if body["timed_out"]:
        raise ToolError(f"stopped after {timeout:g} s; output so far:\n{output}")
    if body["exit_code"]:
        raise ToolError(f"exit status {body['exit_code']}\n{output}")
    return output or "exit status 0, no output"


def _http(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    fields = {name: arguments.get(name) for name in ("url", "method", "headers", "body")}
    given = {name: value for name, value in fields.items() if value is not None}
    reply = yield from checked(Call(Op.HTTP, {**given, "timeout": HTTP_TIMEOUT}))
    body = reply["body"] if reply["encoding"] == "utf-8" else f"[{len(reply['body'])} characters of base64]"
    kind = reply["headers"].get("content-type", "no content-type")
    return shorten(f"status {reply['status_code']}, {kind}\n{body}")


def work_elsewhere(context: Context, arguments: dict[str, Any], place: str) -> Work[TaskResult]:
    """Let a subagent work on the task in ``arguments``; raises :class:`ToolError` if it didn't do it."""
    name, iterations = subagent_name(context, place), min(arguments.get("iterations", 10), MAX_SUBAGENT_STEPS)
    settings = {
        "id": name,
        "task": arguments["task"],
        "depth": context.depth + 1,
        "model": context.model,
        "budget": {**context.spent.left(context.shares), "iterations": iterations},
    }
    spawned = yield from checked(
        Call(Op.SPAWN, {"name": name, "command": PROGRAM, "env": {"LOOP_TASK": json.dumps(settings)}})
    )
    ended = yield from checked(Call(Op.WAIT, {"id": spawned["id"]}))
    logs = yield from checked(Call(Op.LOGS, {"id": spawned["id"], "tail": 100}))
    result = find_result([line["text"] for line in logs["lines"]])
    if result is None:
        raise ToolError(f"{name} ended without a result: {ended['reason']}")
    used = {"tokens": result.tokens, "cost": result.cost}
    yield from context.save(f"{place}/spent", used)
    context.spent.add(used)
    if not result.success:
        raise ToolError(_describe(name, result))
    return result


def _spawn(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    result = yield from work_elsewhere(context, arguments, place)
    return _describe(subagent_name(context, place), result)


def _describe(name: str, result: TaskResult) -> str:
    return f"{name}: {result.status}. {result.summary} {result.reason}".strip()


def subagent_name(context: Context, place: str) -> str:
    """The name of the subagent of a call, and the id of its task: no other call of this agent's has the same."""
    task = "" if context.task_id == context.agent else f"-{context.task_id}"
    name = f"{context.agent}{task}-{place.replace('/', '-')}"
    if AGENT_NAME.fullmatch(name):
        return name
    return f"{context.agent[:47]}-{sha256(name.encode(errors='backslashreplace')).hexdigest()[:16]}"


def find_result(lines: Sequence[str]) -> TaskResult | None:
    """The result in a subagent's output, in the last line of its kind; None if there is none, or it is no result."""
    found = [line[len(RESULT_LINE) :] for line in lines if line.startswith(RESULT_LINE)]
    if not found:
        return None
    try:
        return TaskResult.from_record(json.loads(found[-1]))
    except (ValueError, RecursionError, LoopError):
        return None


PROGRAM = ("python3", "-m", "agentos_sdk.loop.program")
"""The command of an agent that works on the task in its environment."""

EXEC = Tool(
    "exec",
    "Run a bash command line in the working directory. The result is its output, stdout and stderr together.",
    parameters(
        "command", command=("string", "the command line"), timeout=("number", "seconds, at most 3600; 120 by default")
    ),
    _exec,
)
HTTP = Tool(
    "http",
    "Send an HTTP request, if the rules of the agent allow it.",
    parameters(
        "url",
        url=("string", "http:// or https://"),
        method=("string", "GET by default"),
        headers=("object", "of text"),
        body=("string", "the body"),
    ),
    _http,
)
SPAWN = Tool(
    "spawn_subagent",
    "Let another agent, in a jail and with a workspace of its own, work on a part of the task; returns its summary. "
    "It sees nothing of this conversation and no file of yours: say all that it needs. Several may work at once.",
    parameters("task", task=("string", "what to do"), iterations=("integer", "steps it may take, 10 by default")),
    _spawn,
    together=True,
)
DONE = "done"
DONE_PARAMETERS = parameters(
    "summary",
    summary=("string", "what was done, or why it can't be done"),
    success=("boolean", "false if the task can't be done; true by default"),
)
DONE_DESCRIPTION = {
    "name": DONE,
    "description": "End the task. Call it alone, when all is done and checked, or when it can't be done.",
    "parameters": DONE_PARAMETERS,
}


def find_foreign_tools(agent_id: int | None) -> Work[list[Tool]]:
    """The tools of MCP servers, if the kernel has such a call and the caller may make it.

    ``agent_id`` is the agent that calls, None for other callers. For most agents no rule allows it; EXPLAIN says that
    without the event that a denied call is.
    """
    if agent_id is not None:
        decided = yield Call(Op.EXPLAIN, {"agent": agent_id, "call": "TOOLS", "args": {}})
        if not decided["success"] or decided["decision"] == "deny":
            return []
    reply = yield Call(Op.TOOLS, {})
    if not reply["success"]:
        return []
    return [foreign_tool(each) for each in reply["tools"]]


def foreign_tool(described: dict[str, Any]) -> Tool:
    """A tool of an MCP server. The server writes its schema, which is shown to the model and isn't used here."""
    name = described["name"]

    def act(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
        reply = yield from checked(Call(Op.TOOL_CALL, {"tool": name, "arguments": arguments}))
        text = "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in reply["content"])
        if reply["is_error"]:
            raise ToolError(shorten(text))
        return shorten(text)

    return Tool(model_name(name), described["description"], described["input_schema"], act, is_checked=False)


def model_name(tool: str) -> str:
    """A name of at most 64 letters, digits, ``_`` and ``-``, as models take it, for ``SERVER.TOOL``."""
    name = re.sub(r"[^A-Za-z0-9_-]", "__", tool)
    return name if len(name) <= 64 else f"{name[:55]}_{sha256(tool.encode()).hexdigest()[:8]}"
