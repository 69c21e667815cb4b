"""Agents with the loop, and a model that does what the task says: rules of the offline provider."""

import contextlib
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, running

PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
USE = r"""
[[rule]]
match = '^(?s:Result of (\w+):\n(.*))$'
reply = '{"action": "done", "args": {"summary": "\1 is over"}}'
"""


def rule(match: str, *calls: tuple[str, dict[str, Any]], reply: str = "", **more: object) -> str:
    """A rule as TOML: an answer with these tool calls."""
    lines = ["[[rule]]", f"match = {text(match)}"]
    if reply:
        lines.append(f"reply = {text(reply)}")
    if calls:
        made = ", ".join(f"{{ name = {text(name)}, arguments = {table(given)} }}" for name, given in calls)
        lines.append(f"tool_calls = [{made}]")
    lines += [f"{key} = {value if isinstance(value, int) else text(str(value))}" for key, value in more.items()]
    return "\n".join(lines) + "\n"


def text(value: str) -> str:
    return "'''\n" + value + "'''"


def table(value: object) -> str:
    """A value as inline TOML."""
    match value:
        case dict():
            return "{ " + ", ".join(f'"{key}" = {table(each)}' for key, each in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(table, value)) + "]"
        case bool():
            return str(value).lower()
        case str():
            return text(value)
    return str(value)


def done(summary: str = "done", **more: object) -> tuple[str, dict[str, Any]]:
    return "done", {"summary": summary, **more}


@contextlib.contextmanager
def kernel_with(*rules: str, llm: str = "", more: str = "") -> Iterator[Kernel]:
    """A kernel whose model answers by these rules; ``llm`` is more of its table, ``more`` of the file."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("\n".join(rules))
        file.flush()
        Path(file.name).chmod(0o644)
        offline = f'[llm.offline]\nrules = "{file.name}"\n'
        with running(f'[llm]\nprovider = "offline"\ndefault_budget = "none"\n{llm}\n{offline}{more}') as kernel:
            yield kernel


def ended(client: AgentOSClient, agent: str, task_id: str) -> dict[str, Any]:
    """The record of a task's end."""
    found = client.fetch(f"task/{task_id}/end", "agent", agent=agent)
    assert found["exists"], client.logs(agent, tail=50)["lines"]
    value: dict[str, Any] = found["value"]
    return value
