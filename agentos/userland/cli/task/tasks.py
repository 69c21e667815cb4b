"""``agentos tasks``: lists the tasks of ``agentos task``."""

import click

from agentos.userland.cli.common import Failed, kernel, kernel_options, print_table
from agentos.userland.cli.times import format_time
from agentos.userland.task.records import TaskNote, find_end, find_note, is_running, list_notes
from agentos_sdk import AgentOSClient
from agentos_sdk.loop import TaskResult
from agentos_sdk.loop.engine.result import LoopError

HEADER = ["TASK", "STATUS", "SINCE", "TEXT", "DIRECTORY"]


@click.command()
@kernel_options
def tasks(socket_path: str | None, as_json: bool) -> None:
    """List the tasks of `agentos task`, the last one first."""
    with kernel(socket_path) as client:
        found = [{**note._asdict(), "status": find_status(client, note)} for note in list_notes(client)][::-1]
    rows = [
        [each["name"], each["status"], format_time(each["at"]), each["text"].split("\n")[0], each["directory"]]
        for each in found
    ]
    empty = "no task yet: `agentos task TEXT` begins one"
    print_table(rows, HEADER, ("TEXT", "DIRECTORY"), empty, found, as_json)


def find_status(client: AgentOSClient, note: TaskNote) -> str:
    """``running``, how the task has ended, or ``interrupted``: its end isn't known, and a loop can be resumed."""
    name = note.name
    if is_running(client, name):
        return "running"
    if note.by:
        return note.end or "interrupted"
    ended = find_end(client, name)
    if ended is None:
        return "interrupted"
    try:
        return TaskResult.from_record(ended).status
    except LoopError:  # something else in its jail has stored it
        return "failed"


def find_task(client: AgentOSClient, name: str | None) -> TaskNote:
    """A task by its name, or the last one."""
    if name is None:
        notes = list(list_notes(client))
        if not notes:
            raise Failed("there is no task yet: `agentos task TEXT` begins one", {"code": "not_found"})
        return notes[-1]
    note = find_note(client, name)
    if note is None:
        raise Failed(f"there is no task {name!r}: `agentos tasks` lists them", {"code": "not_found"})
    return note
