"""``agentos task undo``: restores the files of a task's directory."""

import click

from agentos.userland.task.directory import Applied, TaskDirectory
from agentos.userland.task.saved_files import SaveError

from .common import Failed, kernel, plural, print_json, printable
from .task_lines import SIGNS
from .tasks import check_free, find_task


def undo(name: str, socket_path: str | None, as_json: bool) -> None:
    """Restore what the task's directory had before it; what was changed after the task stays."""
    with kernel(socket_path) as client:
        note = find_task(client, name)
        if not note.directory:
            raise Failed(f"{name} had no directory: only tasks with --dir can be undone")
        check_free(client, note.directory)
    try:
        done = TaskDirectory(note.directory, note.place).undo()
    except SaveError as error:
        raise Failed(str(error)) from None
    show_undone(note.directory, done, as_json)
    if done.left:
        raise SystemExit(1)


def show_undone(directory: str, done: Applied, as_json: bool = False) -> None:
    """Show what was restored, and what wasn't."""
    if as_json:
        print_json({"restored": [each._asdict() for each in done.done], "left": [each._asdict() for each in done.left]})
    else:
        click.echo(f"{plural(len(done.done), 'file')} restored in {printable(directory)}")
        for change in done.left:
            click.echo(
                f"  {SIGNS[change.what]} {printable(change.path)} was changed after the task, and is left as it is"
            )
