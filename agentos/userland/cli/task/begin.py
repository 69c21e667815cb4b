"""Begins a task: what it is to do and in which directory, with a record for the operator."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import click

from agentos.userland.cli.common import Failed, printable, wrap_error
from agentos.userland.task.images import name_images
from agentos.userland.task.programs import Program, run_program, spawn_fields
from agentos.userland.task.records import TaskNote, begin_note, store_note
from agentos.userland.task.repository import (
    add_notes,
    check_repository,
    describe_changes,
    describe_git,
    measure,
    read_notes,
    real_directory,
)
from agentos.userland.task.running import RunningTask
from agentos_sdk import AgentOSClient
from agentos_sdk.loop import AgenticLoop, TaskResult
from agentos_sdk.loop.blocking_driver import BlockingDriver
from agentos_sdk.loop.engine.driving import caller_kind, next_task_name

MORE_BYTES, MORE_ENTRIES = 1 << 30, 100_000  # that a task may add to a directory


class Begun(NamedTuple):
    """A task that is to run: its record for the operator, and what does it."""

    note: TaskNote
    work: Callable[[AgentOSClient, RunningTask], TaskResult]
    jail: Mapping[str, Any] | None = None  # fields of SPAWN, of a program of others


class Prepared(NamedTuple):
    """What a new task is: as ``asked``, its ``text`` for the loop, and ``whole`` with what the model is told besides.

    ``options`` are those of the loop.
    """

    asked: str
    text: str
    whole: str
    directory: str
    mode: str
    options: Mapping[str, Any]


def say_first(text: str) -> None:
    """Tell the user what explains the steps that follow, where those are shown."""
    click.echo(printable_lines(text))


def prepare(
    client: AgentOSClient,
    text: str,
    directory: str | None,
    mode: str,
    options: Mapping[str, Any],
    warn: Callable[[str], None],
) -> Prepared:
    """Look at the directory of a new task, which it has by ``mode``. ``warn`` tells what won't work in it."""
    driver = BlockingDriver(client)
    if driver.run(caller_kind(driver.me())) != "operator":
        raise Failed("only the operator can start tasks: run this outside of an agent", {"code": "permission_denied"})
    path = real_directory(directory) if directory is not None else None
    asked, text = text, name_images(text, path)
    if path is None:
        return Prepared(asked, text, text, "", "", options)
    if mode == "overlay":
        check_repository(path)
        options = {**options, "workspace_mode": mode, "limits": more_than()}
    else:
        say(f"{path} itself is changed, at once, and nothing of it can be undone")
        if (changes := describe_changes(path)) is not None:
            say(changes)
        options = {**options, "limits": more_than(*measure(path))}
    said, for_model = describe_git(path)
    if said:
        warn(said)
    notes = read_notes(path)
    if notes.said:
        say(notes.said)
    whole = add_notes(f"{text}\n\n({for_model})" if for_model else text, notes)
    return Prepared(asked, text, whole, path, mode, {**options, "workspace": path})


def more_than(size: int = 0, entries: int = 0) -> Mapping[str, int]:
    """Limits for a workspace that has so many bytes and entries. Its files have no limit of their own beside them."""
    return {"disk": size + MORE_BYTES, "file_size": size + MORE_BYTES, "inodes": entries + MORE_ENTRIES}


def begin(client: AgentOSClient, prepared: Prepared, program: Program | None = None) -> Begun:
    """Give a task its name, and keep a note of it; without a program the loop works on it."""
    name = BlockingDriver(client).run(next_task_name())
    note = begin_note(name, prepared.text)._replace(directory=prepared.directory, mode=prepared.mode)
    options = prepared.options
    if program is not None:
        jail = spawn_fields(program, prepared.asked, name, options)
        note = note._replace(by=program.name)
        store_note(client, note)
        return Begun(note, partial(run_program, note=note, fields=jail, seconds=options["budget"].time), jail)
    store_note(client, note)

    def work(client: AgentOSClient, running: RunningTask) -> TaskResult:
        return AgenticLoop(client, on_step=running.note, **options).run(prepared.whole, task_id=name)

    return Begun(note, work)


def go_on(client: AgentOSClient, note: TaskNote, text: str, options: Mapping[str, Any], compact: bool = False) -> Begun:
    """Prepare to go on with a task; ``compact``: with a summary of what was said and done."""
    if note.by:
        raise Failed(f"{note.name} is one of {note.by}, of which no conversation is kept: begin a new task")
    if note.directory and not note.mode:
        raise Failed(f"{note.name} has worked on a copy of {note.directory}, as earlier releases did: begin a new task")
    text = name_images(text, note.directory or None)

    def work(client: AgentOSClient, running: RunningTask) -> TaskResult:
        loop = AgenticLoop(client, on_step=running.note, **options)
        return loop.resume(note.name, text, compact=compact)

    return Begun(note, work)


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def say(text: str) -> None:
    """Something the user should know, on stderr."""
    click.secho(wrap_error(f"agentos: {printable(text)}"), fg="yellow", err=True)
