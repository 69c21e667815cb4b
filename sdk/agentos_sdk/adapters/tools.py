"""The tools that the adapters give to frameworks: those of the loop, and calls to the model and to other agents."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from agentos_sdk.loop.engine.budget import Budget, Spent
from agentos_sdk.loop.engine.effects import Call, Work
from agentos_sdk.loop.engine.result import TaskResult
from agentos_sdk.loop.tools.call_tools import EXEC, HTTP, SPAWN, foreign_tool, work_elsewhere
from agentos_sdk.loop.tools.file_tools import EDIT_FILE, LIST_FILES, READ_FILE, SEARCH_FILES, WRITE_FILE, apply_plan
from agentos_sdk.loop.tools.schema import mistakes
from agentos_sdk.loop.tools.tools import Context, Tool, ToolError, checked, parameters, shorten
from agentos_sdk.opcodes import Op

MAX_MESSAGES = 10  # that one receive_messages returns
MAX_WAIT = 600.0  # seconds


def _think(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    reply = yield from checked(Call(Op.THINK, {"prompt": arguments["question"], "model": arguments.get("model")}))
    return shorten(reply["content"])


def _send(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    yield from checked(Call(Op.SEND, {"to_name": arguments["to"], "message": arguments["message"]}))
    return f"sent to {arguments['to']}"


def _receive(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    timeout = float(max(0, min(arguments.get("timeout", 0), MAX_WAIT)))
    reply = yield from checked(Call(Op.RECV, {"max": MAX_MESSAGES, "timeout": timeout}, timeout))
    lines = [f"{each['from_name'] or each['from_id']}: {each['message']}" for each in reply["messages"]]
    return shorten("\n".join(lines)) if lines else "no message"


THINK = Tool(
    "think",
    "Ask the model a question of its own, outside of this conversation.",
    parameters("question", question=("string", "the whole question"), model=("string", "another model")),
    _think,
)
SEND_MESSAGE = Tool(
    "send_message",
    "Send a message to another agent.",
    parameters("to", "message", to=("string", "its name"), message=("string", "the text")),
    _send,
)
RECEIVE_MESSAGES = Tool(
    "receive_messages",
    f"Receive the oldest messages that other agents have sent, at most {MAX_MESSAGES}.",
    parameters(timeout=("number", "seconds to wait for the first one, 0 by default")),
    _receive,
)
ALL = (
    *(READ_FILE, WRITE_FILE, EDIT_FILE, LIST_FILES, SEARCH_FILES, EXEC, HTTP, SPAWN),
    *(THINK, SEND_MESSAGE, RECEIVE_MESSAGES),
)


def run_tool(tool: Tool, arguments: dict[str, Any]) -> Work[str]:
    """The result of a tool for the model; raises :class:`ToolError` with the text that the model is told."""
    if tool.is_checked and (wrong := list(mistakes(arguments, tool.parameters))):
        raise ToolError("; ".join(wrong))
    if tool.plan is not None:
        return (yield from apply_plan((yield from tool.plan(arguments))))
    return (yield from tool.act(_context(), arguments, _place()))


def run_subagent(task: str) -> Work[TaskResult]:
    """What came of a task that another agent has done, in a jail of its own; raises :class:`ToolError` if it didn't."""
    return (yield from work_elsewhere(_context(), {"task": task}, _place()))


def _context() -> Context:
    spent = Spent(Budget(iterations=None), time.time())
    return Context("subagent", "subagent", 0, None, os.getcwd(), _save_nothing, spent)


def _place() -> str:
    """A part of a subagent's name, which no other one of this kernel has."""
    return uuid4().hex[:12]


def _save_nothing(name: str, value: Mapping[str, Any]) -> Work[None]:
    return None
    yield


__all__ = [
    "ALL",
    "EDIT_FILE",
    "EXEC",
    "HTTP",
    "LIST_FILES",
    "READ_FILE",
    "RECEIVE_MESSAGES",
    "SEARCH_FILES",
    "SEND_MESSAGE",
    "SPAWN",
    "THINK",
    "WRITE_FILE",
    "Tool",
    "ToolError",
    "foreign_tool",
    "run_tool",
]
