"""What the options of ``agentos task`` mean: the text, the permissions and the budget."""

import sys
from typing import Any

import click

from agentos.userland.cli.common import Failed, parse_permission_set, read_stdin
from agentos_sdk.loop import Budget

ASK = {"write": ["${workspace}/**"], "commands": ["*"], "domains": ["*"], "tools": ["*"]}
MAX_TASK = 64 << 10  # bytes of a task from stdin


def read_text(words: tuple[str, ...], needed: bool) -> str:
    """The task: the argument, or stdin."""
    if words and words[0] != "-":
        return words[0]
    if not words and (not needed or sys.stdin.isatty()):
        if needed:
            raise click.UsageError('TEXT: expected what to do, such as agentos task "Write a test for parse.py"')
        return ""
    text = read_stdin(MAX_TASK).strip()
    if not text:
        raise Failed("stdin: expected the task as text")
    return text


def make_permissions(level: str | None, ask: bool) -> Any:
    """The permissions of the task's agent; ``--ask`` adds to what they ask about."""
    wanted = parse_permission_set(level) if level is not None else "sandboxed"
    if not ask:
        return wanted
    given: dict[str, Any] = {"level": wanted} if isinstance(wanted, str) else wanted
    asked = given.get("ask")
    if not isinstance(asked, dict):
        return {**given, "ask": ASK if asked is None else asked}  # the kernel says what is wrong with another one
    return {**given, "ask": {**asked, **{kind: [*asked.get(kind, ()), *rules] for kind, rules in ASK.items()}}}


def parse_budget(given: tuple[str, ...]) -> Budget:
    """The budget of a task from ``NAME=AMOUNT``."""
    table: dict[str, object] = {}
    for item in given:
        name, equals, amount = item.partition("=")
        if not equals:
            raise Failed(f"--budget {item}: expected NAME=AMOUNT, such as tokens=50000")
        try:
            table[name] = float(amount) if name == "money" else int(amount)
        except ValueError:
            table[name] = amount
    try:
        return Budget.of(table)
    except ValueError as error:
        raise Failed(f"--{error}") from None
