"""``agentos fork``: agents that go on from a snapshot, or from a question of a recorded life."""

import sys

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import Failed, check_reply, kernel, kernel_options, print_result


@click.command()
@click.argument("moment", metavar="MOMENT", shell_complete=completed.agents)
@click.option("--only", is_flag=True, help="Of REC@N: ask this question alone, without an agent.")
@click.option("--edit", metavar="FILE", help="Of REC@N: its answer is the JSON object in FILE.")
@click.option("--say", metavar="TEXT", help="Of REC@N: its answer is TEXT.")
@click.option("--call", nargs=2, metavar="NAME ARGS", help="Of REC@N: its answer calls this tool.")
@click.option("--model", "models", multiple=True, help="Of REC@N: ask this model; may be repeated.")
@click.option("--times", type=click.IntRange(1, 100), default=1, help="Of REC@N: how often, each model.")
@click.option("--check", metavar="COMMAND", help="Of REC@N: judges each: a command line, run in its jail.")
@click.option("--tree", is_flag=True, help="Of REC@N: all agents of the recording go on live at that moment.")
@click.option("--yes", is_flag=True, help="Of REC@N: go on live without asking.")
@click.option("-n", "--count", type=click.IntRange(1, 32), help="How many: 1 without it, or one for each --name.")
@click.option("--name", "names", multiple=True, help="Call them so, and not NAME-1, NAME-2 ...; may be repeated.")
@kernel_options
def fork(
    moment: str,
    only: bool,
    edit: str | None,
    say: str | None,
    call: tuple[str, ...],
    models: tuple[str, ...],
    times: int,
    check: str | None,
    tree: bool,
    yes: bool,
    count: int | None,
    names: tuple[str, ...],
    socket_path: str | None,
    as_json: bool,
) -> None:
    """Go on from a snapshot, or from a question of a recorded life.

    MOMENT is NAME@LABEL, or NAME: from now. Each agent works in an overlay of its own, with the private keys of that
    moment, and has budgets of its own; the agent itself goes on.

    Or MOMENT is REC@N, the N-th question of a recording: the program runs again, gets the recorded answers up to there,
    and goes on live, at most ten at once; a table compares what comes of them. What it does then is done for real, with
    the rights that are printed. The exit status is 0 if one has passed --check, or without it came to the question as
    recorded. With --tree all agents of the recording go on live at the moment at which that question was asked, with
    the messages that were under way.
    """
    given = edit is not None or say is not None or bool(call) or check is not None or yes or tree
    if only:
        if given or count is not None or names:
            raise click.UsageError("--only asks and starts no agents: leave out all but --model and --times")
        from agentos.userland.cli.recordings.ask import ask_again

        ask_again(moment, models, times, socket_path, as_json)
        return
    if count is None and not names and is_recorded(moment, given or bool(models) or times > 1):
        from agentos.userland.cli.recordings.fork import choose_answer, fork_life, open_moment

        wanted = open_moment(moment, choose_answer(edit, say, call), models, times)
        if tree:
            from agentos.userland.cli.recordings.fork_tree import fork_tree

            sys.exit(fork_tree(wanted, check, yes, socket_path, as_json))
        sys.exit(fork_life(wanted, check, yes, socket_path, as_json))
    if given or models or times > 1:
        raise click.UsageError("--count and --name are of snapshots: REC@N has --times and --model")
    name, at, label = moment.partition("@")
    if not name or (at and not label):
        raise click.BadParameter(f"expected NAME, NAME@LABEL or REC@N, got {moment!r}", param_hint="MOMENT")
    with kernel(socket_path) as client:
        reply = check_reply(client.fork(name, label or None, count=count or len(names) or 1, names=list(names) or None))
    started = ", ".join(f"{one['name']} (id {one['id']})" for one in reply["agents"])
    print_result(f"{started}: from {moment}", reply, as_json)


def is_recorded(moment: str, must_be: bool) -> bool:
    """Whether it is a question of a recording: ``N`` is a number, and there is the recording."""
    from agentos.recordings.format import SUFFIX
    from agentos.userland.cli.recordings.recordings import find_recording

    name, _, number = moment.rpartition("@")
    if name and number.isdecimal() and (name.endswith(SUFFIX) or find_recording(name, None) is not None):
        return True
    if must_be and not (name and number.isdecimal()):
        raise click.BadParameter(f"expected REC@N, got {moment!r}", param_hint="MOMENT")
    if must_be:
        raise Failed(f"there is no recording {name!r}; `agentos recordings ls` lists them")
    return False
