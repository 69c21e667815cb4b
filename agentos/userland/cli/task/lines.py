"""The steps of a task as lines for people: thoughts, tool calls, and the beginnings of their results.

Text of the model or a tool never stands in the first column: there it could pass for a request for approval.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from agentos.userland.cli.approvals.approvals import wrap_line
from agentos.userland.cli.columns import cut_middle
from agentos.userland.cli.common import plural, printable
from agentos_sdk.loop import TaskResult

FOLDED = 4  # lines of a result that are shown
MAX_LISTED = 20  # commands at the end
REFUSED = re.compile(r"[a-z_]+: ")  # a failed call's code begins the result

Step = Mapping[str, Any]


def step_lines(step: Step, width: int) -> Iterator[str]:
    """What a step is, with colours. Text of the model and of tools is escaped."""
    match step:
        case {"kind": "thought", "text": str(text)}:
            yield from wrap(text, width)
        case {"kind": "call", "call": name, "arguments": arguments}:
            yield click.style(fit(printable(f"● {describe_call(name, arguments)}"), width), fg="cyan")
        case {"kind": "output", "text": str(text)}:
            yield from (f"  {row}" for row in break_line(printable(text), width - 2))
        case {"kind": "asked", "step": int(number)}:
            yield click.style(f"● {plural(number, 'answer')} of the model", fg="cyan")
        case {"kind": "check", "text": str(text)}:
            yield click.style(fit(printable(f"● check: {text}"), width), fg="cyan")
        case {"kind": "result", "ok": ok, "result": result}:
            yield from (click.style(line, fg=None if ok else "red", dim=ok) for line in fold(str(result), width))
        case {"kind": "trimmed", "before": before, "after": after}:
            yield fit(
                f"» of the conversation about {after:,} of {before:,} tokens are left, the rest is a summary", width
            )
        case {"kind": "told", "text": str(text)}:
            yield from (click.style(line, bold=True) for line in wrap(text, width, "you: "))


def describe_call(name: str, arguments: Any) -> str:
    """``exec python3 a.py``, ``write_file a.py``: the call with what it is about."""
    if not isinstance(arguments, Mapping):
        return f"{name} {arguments}"
    if name == "exec":
        return f"exec {arguments.get('command')}"
    if isinstance(path := arguments.get("path"), str) and name.endswith("_file"):
        return f"{name} {path}"
    return f"{name} {json.dumps(arguments, ensure_ascii=False)}" if arguments else name


def fold(text: str, width: int) -> Iterator[str]:
    """The first lines of a result, and how many more there are."""
    lines = text.rstrip("\n").split("\n")
    for line in lines[:FOLDED]:
        yield fit(f"  {printable(line)}".rstrip(), width)
    if len(lines) > FOLDED:
        yield f"  … {plural(len(lines) - FOLDED, 'more line')}"


def wrap(text: str, width: int, begin: str = "» ") -> Iterator[str]:
    """Text of the model in lines of at most ``width`` columns, none of which begins in the first column."""
    for line in printable_lines(text):
        words = textwrap.wrap(line, width - 2, break_on_hyphens=False) or [""]
        rows = words if line.isascii() else [row[2:] for row in wrap_line(line, width)]
        for row in rows:
            yield f"{begin}{row.lstrip()}".rstrip()
            begin = "  "


def break_line(line: str, width: int) -> list[str]:
    """A line of a program in rows, with its spaces."""
    if line.isascii():
        return textwrap.wrap(line, width, drop_whitespace=False, break_on_hyphens=False) or [""]
    return list(wrap_line(line, width, "", ""))


def printable_lines(text: str) -> list[str]:
    return [printable(line) for line in text.strip().split("\n")] if text.strip() else []


def fit(text: str, width: int) -> str:
    """A line of at most ``width`` columns; a character outside ASCII may take two, and a tab becomes spaces."""
    text = cut_middle(text.expandtabs(), width)
    while len(text) + sum(not char.isascii() for char in text) > width:
        text = cut_middle(text, len(text) - 1)
    return text


def describe_use(steps: int, tokens: int, cost: float | None) -> str:
    """``3 steps, 2,811 tokens``; the cost is in the kernel's currency."""
    spent = f", cost {cost:.4g}" if cost is not None else ""
    return f"{plural(steps, 'step')}, {plural(tokens, 'token').replace(str(tokens), f'{tokens:,}')}{spent}"


def result_lines(result: TaskResult, width: int, goes_on: bool = True) -> Iterator[str]:
    """How a task has ended: its summary, then a line with what it has used. ``goes_on``: it can, if it was stopped."""
    yield from wrap(result.summary, width)
    colour = {"done": "green", "stopped": "yellow"}.get(result.status, "red")
    why = f": {printable(result.reason)}" if result.reason else ""
    use = describe_use(result.steps, result.tokens, result.cost)
    agent = printable(result.agent)
    yield f"{click.style(f'{agent}: {result.status}', fg=colour)}{why} ({use})"
    if result.status == "stopped" and goes_on:
        yield f"`agentos task --resume {agent}` goes on with it"


def find_commands(transcript: Sequence[Step]) -> list[str]:
    """The commands that a task has run; those that the kernel has refused weren't."""
    called = [line for line in transcript if line.get("call") == "exec"]
    calls = [line["arguments"] for line in called if line.get("ok") or not REFUSED.match(str(line.get("result", "")))]
    return [str(given["command"]) for given in calls if isinstance(given, Mapping) and "command" in given]


def command_lines(commands: Sequence[str], width: int) -> Iterator[str]:
    """The commands that a task has run, for people."""
    if not commands:
        return
    yield f"{plural(len(commands), 'command')} run:"
    for command in commands[:MAX_LISTED]:
        yield fit(f"  $ {printable(command)}", width)
    if len(commands) > MAX_LISTED:
        yield f"  … and {len(commands) - MAX_LISTED} more"
