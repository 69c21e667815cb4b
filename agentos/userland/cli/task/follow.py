"""Shows a task until it is over, and what it has done."""

from collections.abc import Mapping
from typing import Any

import click

from agentos.userland.cli.columns import text_width
from agentos.userland.cli.common import Failed, print_json_line
from agentos.userland.task.records import TaskNote, forget_note, has_begun
from agentos.userland.task.running import RunningTask
from agentos_sdk import AgentOSClient, AgentOSError
from agentos_sdk.loop import AgenticLoop, TaskResult
from agentos_sdk.loop.engine.result import LoopError

from .begin import Begun, printable_lines, say
from .changes import change_lines, describe_next, review
from .lines import command_lines, find_commands, result_lines
from .screen import describe_waiting_request, show_task

STATUS = {"done": 0, "failed": 1, "budget": 2, "stopped": 130}
WAITS = 3


def follow(
    client: AgentOSClient, begun: Begun, path: str | None, reviews: bool, as_json: bool = False, quiet: bool = False
) -> int:
    """Show a task until it is over, then what it has done; returns the exit status. ``reviews``: ask to apply that."""
    name = begun.note.name
    running = RunningTask(client.socket_path, name, begun.work)
    request = show_task(running, path, as_json, quiet)
    if request is not None:
        fields = {"kind": "waiting", "task": name, "request": request}
        advice = f"`agentos approve {request['id']}`, then `agentos task --resume {name}`"
        print_json_line(fields) if as_json else say(f"{name} {describe_waiting_request(request)}: {advice}")
        return WAITS
    if running.error is not None:
        failed = explain_error(client, begun.note, running.error)
        if not running.is_killed:
            raise failed
        say(str(failed))
        return STATUS["stopped"]
    result = running.result
    assert result is not None, "it is over without an error"
    if running.is_killed:
        result = result._replace(status="stopped", reason="it was ended")
    if not as_json and not quiet and result.summary == running.said:
        result = result._replace(summary="")  # a step has shown it
    changes = find_changes(client, begun.note)
    show_end(client, begun.note, result, changes, as_json, quiet)
    if reviews and changes is not None:
        return review(client, name) or STATUS[result.status]
    if changes is not None and changes["changes"]:
        if as_json or quiet:
            say(f"{begun.note.directory} is as it was: {describe_next(name)}")
        else:
            click.echo(describe_next(name))
    return STATUS[result.status]


def explain_error(client: AgentOSClient, note: TaskNote, error: str) -> Failed:
    """Why a task couldn't be worked on; one that wasn't begun is forgotten."""
    try:
        if note.by or not has_begun(client, note.name):
            forget_note(client, note)
            return Failed(error)
    except AgentOSError:
        pass  # the kernel has ended, which is the error
    if note.by:
        return Failed(error, {"code": "unavailable"})
    return Failed(f"{error}; `agentos task --resume {note.name}` goes on", {"code": "unavailable"})


def find_changes(client: AgentOSClient, note: TaskNote) -> Mapping[str, Any] | None:
    """What a task has changed in its overlay, as DIFF answers; None if it has none."""
    if note.mode != "overlay":
        return None
    reply = client.diff(note.name)
    if reply["success"]:
        return reply
    say(f"it isn't known which files were changed: {reply['error']}")
    return None


def show_end(
    client: AgentOSClient,
    note: TaskNote,
    result: TaskResult,
    changes: Mapping[str, Any] | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show the result, the files that were changed, and the commands."""
    try:
        commands = [] if note.by else find_commands(AgenticLoop(client).transcript(note.name))
    except LoopError as error:
        commands = []
        say(str(error))
    if as_json:
        listed = changes and {name: changes[name] for name in ("changes", "more", "digest")}
        print_json_line({"kind": "result", **result._asdict(), **(listed or {}), "commands": commands})
        return
    if quiet:
        click.echo(printable_lines(result.summary or result.reason))
        return
    for line in result_lines(result, text_width(), goes_on=not note.by):
        click.echo(line)
    if changes is not None:
        for line in change_lines(changes, note.directory):
            click.echo(line)
    for line in command_lines(commands, text_width()):
        click.echo(line)
