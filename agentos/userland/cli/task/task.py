"""``agentos task``: lets a jailed agent work on a task, and shows what it does."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import click

from agentos.userland.cli.approvals.approvals import is_terminal
from agentos.userland.cli.common import (
    Failed,
    kernel,
    kernel_options,
    print_json_line,
    printable,
    text_width,
    wrap_error,
)
from agentos.userland.task.attempts import share
from agentos.userland.task.images import name_images
from agentos.userland.task.programs import BadProgram, Program, run_program, spawn_fields
from agentos.userland.task.records import TaskNote, begin_note, forget_note, has_begun, store_note
from agentos.userland.task.repository import (
    BadDirectory,
    add_notes,
    check_repository,
    describe_changes,
    describe_git,
    measure,
    read_notes,
    real_directory,
)
from agentos.userland.task.running import RunningTask
from agentos_sdk import AgentOSClient, AgentOSError
from agentos_sdk.loop import AgenticLoop, TaskResult
from agentos_sdk.loop.blocking_driver import BlockingDriver
from agentos_sdk.loop.engine.driving import caller_kind, next_task_name
from agentos_sdk.loop.engine.result import LoopError

from .changes import change_lines, describe_next, review
from .lines import command_lines, find_commands, result_lines
from .options import (
    check_attempts,
    check_directory,
    find_programs,
    make_permissions,
    parse_budget,
    read_text,
)
from .screen import describe_waiting_request, show_task
from .tasks import find_task

STATUS = {"done": 0, "failed": 1, "budget": 2, "stopped": 130}
WAITS = 3
MORE_BYTES, MORE_ENTRIES = 1 << 30, 100_000  # that a task may add to a directory


@click.command()
@click.argument("words", nargs=-1, metavar="{[TEXT] | undo ID}")
@click.option("--dir", "directory", metavar="PATH", help="Work on this directory; it changes with `agentos apply`.")
@click.option("--in-place", is_flag=True, help="Change --dir itself, at once; nothing can be undone.")
@click.option("--level", metavar="LEVEL|SET|JSON|FILE.json", help="What the agent may do. Default: sandboxed.")
@click.option("--ask", is_flag=True, help="Ask before each file that it writes and each command that it runs.")
@click.option("--model", metavar="NAME", help="A model or an alias; default: the kernel's.")
@click.option(
    *("--budget", "budget"),
    multiple=True,
    metavar="NAME=AMOUNT",
    help="iterations=30, tokens=50000, money=0.5 or time=10m; repeatable. Default: iterations=20.",
)
@click.option("--resume", metavar="ID", help="Go on with this task; TEXT says what is to be done next.")
@click.option("--continue", "continued", is_flag=True, help="Go on with the last task.")
@click.option("--with", "by", multiple=True, metavar="PROGRAM", help="A coding agent, by its preset; repeatable.")
@click.option("--attempts", type=click.IntRange(2, 32), metavar="N", help="Let so many agents try it at once.")
@click.option("--check", metavar="COMMAND", help="Judges each attempt: a command line, run in its jail.")
@click.option("--review", is_flag=True, help="At the end show the changes of --dir, and apply them after a y.")
@click.option("-p", "--print", "quiet", is_flag=True, help="Print the result alone, for scripts.")
@kernel_options
def task(
    words: tuple[str, ...],
    directory: str | None,
    in_place: bool,
    level: str | None,
    ask: bool,
    model: str | None,
    budget: tuple[str, ...],
    resume: str | None,
    continued: bool,
    by: tuple[str, ...],
    attempts: int | None,
    check: str | None,
    review: bool,
    quiet: bool,
    as_json: bool,
    socket_path: str | None,
) -> None:
    """Let an agent work on a task until it is done.

    TEXT is the task in plain words. Without TEXT it is read from stdin; on a terminal it is a conversation: each line
    is what to do next.

    The agent is called task-1, task-2 …, and works in a jail: in a workspace of its own, or with --dir in an overlay
    of that directory, whose changes `agentos diff task-1` shows and `agentos apply task-1` makes. Ctrl-C stops it
    after its step, and refuses what waits for approval; a second one ends it.

    The exit status is 0 when the task is done, 1 when it failed, 2 when its budget is used up, 3 when it waits for an
    approval that no terminal can give or --review has left changes, and 130 when it was stopped.

    With --attempts several agents work at once, each in an overlay of its own; tokens and money of --budget are for all
    together. At the end a table compares them. The exit status is 0 if one has passed --check, or without it is done.

    --with runs another coding agent, which has to be installed, in the jail; with several each makes attempts in turn.
    """
    if words[:1] == ("undo",) and len(words) == 2:
        from .undo import undo

        undo(words[1], socket_path, as_json)
        return
    if len(words) > 1:
        raise click.UsageError("TEXT: expected one argument: write the task in quotation marks")
    parsed = parse_budget(budget)
    goes_on = resume is not None or continued
    attempts = attempts or (len(by) if len(by) > 1 else None)
    check_directory(directory, in_place, goes_on, review, quiet or as_json)
    if goes_on and (directory is not None or level is not None or ask or model is not None or by):
        raise click.UsageError("--resume and --continue keep directory, permissions, model and program of the task")
    check_attempts(by, attempts, check, directory is None or in_place or review or goes_on)
    options = {"model": model, "budget": parsed, "permissions": make_permissions(level, ask)}
    mode = "direct" if in_place else "overlay"
    talks = not (words or goes_on or quiet or as_json or by or attempts) and is_terminal()
    text = "" if talks else read_text(words, needed=not goes_on)
    with kernel(socket_path) as client:
        try:
            if talks:
                from .conversation import TaskConversation

                sys.exit(TaskConversation(client, socket_path, directory, mode, review, options).serve())
            if goes_on:
                begun = go_on(client, find_task(client, resume), text, {"budget": parsed})
            else:
                # Others ask much that is no step, so that the default is the loop's alone.
                calls = parsed.iterations if any(each.startswith("iterations=") for each in budget) else None
                programs = find_programs(client, by, model, calls, directory)
                options["budget"] = share(parsed, attempts or 1)
                prepared = prepare(client, text, directory, mode, options, say if as_json or quiet else say_first)
                several = [begin(client, prepared, programs[number % len(programs)]) for number in range(attempts or 1)]
                if attempts is not None:
                    from .attempts import attempt

                    sys.exit(attempt(client, several, check, socket_path, {"as_json": as_json, "quiet": quiet}))
                begun = several[0]
            sys.exit(follow(client, begun, socket_path, review, as_json, quiet))
        except (LoopError, BadDirectory, BadProgram) as error:
            raise Failed(str(error)) from None
        except KeyboardInterrupt:
            sys.exit(130)


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
        options = {**options, "workspace_mode": mode, "limits": {"disk": MORE_BYTES, "inodes": MORE_ENTRIES}}
    else:
        say(f"{path} itself is changed, at once, and nothing of it can be undone")
        if (changes := describe_changes(path)) is not None:
            say(changes)
        size, entries = measure(path)
        options = {**options, "limits": {"disk": size + MORE_BYTES, "inodes": entries + MORE_ENTRIES}}
    said, for_model = describe_git(path)
    if said:
        warn(said)
    notes = read_notes(path)
    if notes.said:
        say(notes.said)
    whole = add_notes(f"{text}\n\n({for_model})" if for_model else text, notes)
    return Prepared(asked, text, whole, path, mode, {**options, "workspace": path})


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
    text = name_images(text, note.directory or None)
    if note.saved:
        from .undo import check_former

        say(check_former(note))

    def work(client: AgentOSClient, running: RunningTask) -> TaskResult:
        loop = AgenticLoop(client, on_step=running.note, **options)
        return loop.resume(note.name, text, compact=compact)

    return Begun(note, work)


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


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def say(text: str) -> None:
    """Something the user should know, on stderr."""
    click.secho(wrap_error(f"agentos: {printable(text)}"), fg="yellow", err=True)
