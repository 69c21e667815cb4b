"""``agentos task undo``: restores the directory of a task of an earlier release, which was copied before it."""

from pathlib import Path

import click

from agentos.userland.cli.common import Failed, kernel, plural, print_json, printable
from agentos.userland.task.former import COPY, UndoError, Undone
from agentos.userland.task.former import undo as undo_former
from agentos.userland.task.records import TaskNote, is_running

from .tasks import find_task

SIGNS = {"added": "A", "changed": "M", "removed": "D"}


def undo(name: str, socket_path: str | None, as_json: bool) -> None:
    """Restore what the task's directory had before it; what was changed after the task stays."""
    with kernel(socket_path) as client:
        note = find_task(client, name)
        if not note.saved:
            raise Failed(describe_other(note))
        if is_running(client, name):
            raise Failed(f"{name} works in {note.directory}: wait for its end, or `agentos kill {name}`")
    try:
        done = undo_former(note.directory, Path(note.saved))
    except UndoError as error:
        raise Failed(str(error)) from None
    show_undone(note.directory, done, as_json)
    if done.left:
        raise SystemExit(1)


def describe_other(note: TaskNote) -> str:
    """Why a task isn't one whose directory was copied, and what to do."""
    if not note.directory:
        return f"{note.name} had no directory: only tasks with --dir can be undone"
    if note.mode == "direct":
        return f"{note.name} has worked in place (--in-place): nothing of it can be undone"
    return (
        f"what {note.name} has changed is in an overlay: `agentos undo {note.name}` takes back what was applied, "
        f"`agentos rollback {note.name}@start` throws away the rest"
    )


def check_former(note: TaskNote) -> str:
    """What the user is to know before a task of an earlier release goes on; fails if it can't."""
    if (Path(note.saved) / COPY).is_dir():
        raise Failed(
            f"{note.name} has worked on a copy, {note.saved}/{COPY}, as earlier releases did: begin a new task"
        )
    return f"{note.name} goes on in {note.directory} itself: what it changes from now on can't be undone"


def show_undone(directory: str, done: Undone, as_json: bool) -> None:
    """Show what was restored, and what wasn't."""
    if as_json:
        restored, left = ([each._asdict() for each in changes] for changes in (done.done, done.left))
        print_json({"restored": restored, "left": left, "kept": done.kept or None})
        return
    click.echo(f"{plural(len(done.done), 'file')} restored in {printable(directory)}")
    for change in done.left:
        click.echo(f"  {SIGNS[change.what]} {printable(change.path)} was changed after the task, and is left as it is")
    if done.kept:
        kept = printable(done.kept)
        click.echo(f"the end of the task isn't known, so the files that were replaced are kept in {kept}")
