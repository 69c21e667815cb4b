"""``agentos task``: lets a jailed agent work on a task, and shows what it does."""

import sys

import click

from agentos.userland.cli.approvals.approvals import is_terminal
from agentos.userland.cli.common import Failed, kernel, kernel_options
from agentos.userland.task.attempts import share
from agentos.userland.task.programs import BadProgram
from agentos.userland.task.repository import BadDirectory
from agentos_sdk.loop.engine.result import LoopError

from .begin import begin, go_on, prepare, say, say_first
from .follow import follow
from .options import check_attempts, check_directory, find_programs, make_permissions, parse_budget, read_text
from .tasks import find_task


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
