"""``agentos task``: lets a jailed agent work on a task, and shows what it does."""

import sys
from collections.abc import Mapping
from typing import Any

import click

from agentos.userland.cli.approvals.approvals import is_terminal
from agentos.userland.cli.common import Failed, kernel, kernel_options
from agentos.userland.task.attempts import share
from agentos.userland.task.programs import BadProgram
from agentos.userland.task.repository import BadDirectory
from agentos_sdk import AgentOSClient
from agentos_sdk.loop import Budget
from agentos_sdk.loop.engine.result import LoopError

from .begin import begin, go_on, prepare, say, say_first
from .follow import follow
from .options import Order, check_order, find_programs, make_permissions, parse_budget, read_text
from .tasks import find_task


@click.command()
@click.argument("words", nargs=-1, metavar="[TEXT]")
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
def task(**given: Any) -> None:
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
    order = Order(**given)
    check_order(order)
    budget = parse_budget(order.budget)
    options = {"model": order.model, "budget": budget, "permissions": make_permissions(order.level, order.ask)}
    talks = order.has_no_text and is_terminal()
    text = "" if talks else read_text(order.words, needed=not order.goes_on)
    with kernel(order.socket_path) as client:
        try:
            if talks:
                from .conversation import TaskConversation

                talk = TaskConversation(client, order.socket_path, order.directory, order.mode, order.review, options)
                sys.exit(talk.serve())
            if order.goes_on:
                begun = go_on(client, find_task(client, order.resume), text, {"budget": budget})
                sys.exit(follow(client, begun, order.socket_path, order.review, order.as_json, order.quiet))
            sys.exit(begin_and_follow(client, order, text, budget, options))
        except (LoopError, BadDirectory, BadProgram) as error:
            raise Failed(str(error)) from None
        except KeyboardInterrupt:
            sys.exit(130)


def begin_and_follow(client: AgentOSClient, order: Order, text: str, budget: Budget, options: Mapping[str, Any]) -> int:
    """Work on a new task, or let several try it; returns the exit status."""
    # Others ask much that is no step, so that the default is the loop's alone.
    calls = budget.iterations if any(each.startswith("iterations=") for each in order.budget) else None
    programs = find_programs(client, order.by, order.model, calls, order.directory)
    options = {**options, "budget": share(budget, order.tries or 1)}
    warn = say if order.as_json or order.quiet else say_first
    prepared = prepare(client, text, order.directory, order.mode, options, warn)
    begun = [begin(client, prepared, programs[number % len(programs)]) for number in range(order.tries or 1)]
    if order.tries is None:
        return follow(client, begun[0], order.socket_path, order.review, order.as_json, order.quiet)
    from .attempts import attempt

    return attempt(client, begun, order.check, order.socket_path, {"as_json": order.as_json, "quiet": order.quiet})
