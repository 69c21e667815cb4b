"""``agentos task --attempts``: several agents work on one task at once, and a table tells what each has come to."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import click

from agentos.userland.cli.common import check_reply, plural, print_json_line, print_table, printable
from agentos.userland.task.attempts import Attempts, Checked, Size, check, find_loop_jail, measure_diff
from agentos.userland.task.programs import LOOP
from agentos.userland.task.records import TaskNote
from agentos.userland.task.running import RunningTask
from agentos.userland.task.usage import find_use
from agentos_sdk import AgentOSClient
from agentos_sdk.loop import TaskResult

from .begin import Begun
from .follow import explain_error
from .screen import show_task

SOLVED, UNSOLVED, STOPPED = 0, 1, 130  # exit status
HEADER = ["ATTEMPT", "BY", "VERDICT", "COST", "TOKENS", "DIFF"]


class Row(NamedTuple):
    """What has come of one attempt; ``status`` is the task's own, ``exit_code`` the check's, None without one."""

    attempt: str
    by: str
    solved: bool
    verdict: str
    status: str
    exit_code: int | None
    reason: str
    cost: float | None
    tokens: int
    size: Size


def attempt(client: AgentOSClient, begun: Sequence[Begun], command: str | None, path: str | None, how: Any) -> int:
    """Let all work, show them until the last is over, and then the table; returns the exit status.

    ``how`` has ``as_json`` and ``quiet``.
    """
    checks: dict[str, Checked] = {}
    works = {one.note.name: partial(_work, one, command, checks) for one in begun}
    running = Attempts(client.socket_path, works)
    show_task(running, path, **how)
    rows = [
        judge(client, one.note, task, checks.get(one.note.name)) for one, task in zip(begun, running.tasks, strict=True)
    ]
    if how["as_json"]:
        found = [{**row._asdict(), "size": row.size._asdict()} for row in rows]
        print_json_line({"kind": "attempts", "attempts": found})
    else:
        print_table([table_row(row) for row in rows], HEADER)
        for row in rows:
            if row.reason:
                click.echo(f"{row.attempt}: {printable(row.reason)}")
        click.echo(describe_choice(rows))
    if any(row.solved for row in rows):
        return SOLVED
    return STOPPED if all(row.status == "stopped" for row in rows) else UNSOLVED


def _work(
    begun: Begun, command: str | None, checks: dict[str, Checked], client: AgentOSClient, running: RunningTask
) -> TaskResult:
    """Work on an attempt, and check it; what the check says is in ``checks``."""
    result = begun.work(client, running)
    if command is not None:
        checks[running.name] = check(client, running, begun.jail or find_loop_jail(client, running.name), command)
    return result


def judge(client: AgentOSClient, note: TaskNote, task: RunningTask, checked: Checked | None) -> Row:
    """What has come of an attempt; one that couldn't be worked on has failed alone."""
    by = note.by or LOOP
    if task.result is None:
        status = "stopped" if task.is_killed else "failed"
        reason = str(explain_error(client, note, task.error or ""))
        return Row(note.name, by, False, status, status, None, reason, None, 0, Size())
    status, reason = ("stopped", "") if task.is_killed else (task.result.status, task.result.reason)
    solved, verdict = status == "done", status
    if checked is not None and status != "stopped":
        solved = checked.exit_code == 0
        verdict = checked.verdict + (f", {status}" if status != "done" else "")
        reason = reason or checked.why
    tokens, cost = find_use(client, note)
    size = measure_diff(check_reply(client.diff(note.name, content=True)))
    exit_code = checked.exit_code if checked is not None else None
    return Row(note.name, by, solved, verdict, status, exit_code, reason, cost, tokens, size)


def table_row(row: Row) -> list[str]:
    size = row.size
    diff = f"{plural(size.paths, 'path')} +{size.added} -{size.removed}" if size.paths else "none"
    cost = "?" if row.cost is None else f"{row.cost:.4g}"
    return [row.attempt, row.by, row.verdict, cost, f"{row.tokens:,}", diff]


def describe_choice(rows: Sequence[Row]) -> str:
    """What to type next: the cheapest attempt that has solved the task is the one to take."""
    changed = [row for row in rows if row.size.paths]
    if not changed:
        return "no file was changed"
    solved = [row for row in changed if row.solved]
    if not solved:
        thrown = " ".join(f"{row.attempt}@start" for row in changed)
        first = changed[0].attempt
        return f"none has solved it: `agentos diff {first}` shows one, `agentos rollback {thrown}` throws them away"
    best = min(solved, key=lambda row: (row.cost or 0.0, row.tokens))
    text = f"`agentos diff {best.attempt}` shows an attempt, `agentos apply {best.attempt}` takes it"
    others = " ".join(f"{row.attempt}@start" for row in changed if row is not best)
    return text + (f", `agentos rollback {others}` throws the others away" if others else "")
