"""``agentos task undo``: restores the files of a task's directory."""

from collections.abc import Iterator

import click

from agentos.userland.cli.common import Failed, kernel, plural, print_json, printable
from agentos.userland.task.directory import TaskDirectory, Undone
from agentos.userland.task.saved_files import SaveError

from .lines import SIGNS
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


def show_undone(directory: str, done: Undone, as_json: bool = False) -> None:
    """Show what was restored, and what wasn't."""
    if as_json:
        restored, left = ([each._asdict() for each in changes] for changes in (done.done, done.left))
        rest = {"kept": done.kept or None, "lost": done.lost, "discarded": done.discarded}
        print_json({"restored": restored, "left": left, **rest})
    else:
        click.echo(f"{plural(len(done.done), 'file')} restored in {printable(directory)}")
        for change in done.left:
            click.echo(
                f"  {SIGNS[change.what]} {printable(change.path)} was changed after the task, and is left as it is"
            )
        if done.discarded:
            click.echo(f"{plural(done.discarded, 'change')} discarded in the agent's copy of it")
        for line in kept_lines(done):
            click.echo(line)


def kept_lines(done: Undone) -> Iterator[str]:
    """Where the files are that undo has replaced, if changes of the user's may be among them."""
    if done.kept:
        yield f"the end of the task isn't known, so the files that were replaced are kept in {printable(done.kept)}"
    if done.lost:
        yield f"{plural(done.lost, 'file')} of the task couldn't be kept"
