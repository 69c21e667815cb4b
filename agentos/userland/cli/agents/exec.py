"""``agentos exec``: runs a command in an agent's jail, or on the host; with a terminal if it is asked for."""

import sys
from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import Failed, agent_fields, kernel, kernel_options, print_json, read_stdin
from agentos.userland.cli.output_text import OutputPrinter
from agentos.userland.cli.terminal import SHELL, run_in_terminal
from agentos_sdk import AgentOSClient
from agentos_sdk.errors import NotFound, checked

from .spawn import SpawnCommand

DEFAULT_TIMEOUT = 30.0  # seconds, without a terminal
TIMED_OUT = 124  # exit status, as with timeout(1)
MAX_STDIN = 128 << 10  # bytes of input: as JSON they must fit into a call


class ProgramNotFound(Failed):
    """There is no such program in the jail."""

    exit_code = 127  # as in a shell
    code = "not_found"


@click.command(cls=SpawnCommand)
@click.argument(
    "words", nargs=-1, metavar="{NAME | --host} [--] COMMAND [ARGS]...", shell_complete=completed.agent_first
)
@click.option("-i", "--stdin", is_flag=True, help="Give it all of our standard input, text of up to 128 KiB.")
@click.option("-t", "--tty", is_flag=True, help="Give it a terminal, shown on ours; default COMMAND: a shell.")
@click.option("--host", is_flag=True, help="Run it on the host, as the kernel's user, and not in an agent's jail.")
@click.option("--timeout", type=float, metavar="SECONDS", help="Then it is killed; default: 30, with -t none.")
@click.option("--cwd", metavar="DIR", help="Its working directory, a path of the jail's; default: the agent's.")
@kernel_options
@click.pass_context
def exec(  # noqa: A001 - the command's name
    ctx: click.Context,
    words: tuple[str, ...],
    stdin: bool,
    tty: bool,
    host: bool,
    timeout: float | None,
    cwd: str | None,
    as_json: bool,
    socket_path: str | None,
) -> None:
    """Run COMMAND in the jail of the agent NAME.

    It runs within the agent's limits, and its exit status becomes ours. Without -t it has no terminal, its input is
    empty without -i, and its output is shown as it comes. With -t (or -it) each key goes to it, Ctrl-C as well. All
    that it started ends with it; so does the command when this is interrupted.
    """
    agent, command = split_words(ctx, words, host)
    if not command and not tty:
        raise click.UsageError("Missing argument 'COMMAND'.", ctx)
    if tty and as_json:
        raise click.UsageError("--json: a terminal's output is for people: expected it without -t", ctx)
    seconds = timeout if timeout is not None else 0.0 if tty else DEFAULT_TIMEOUT
    with kernel(socket_path) as client:
        try:
            if tty:
                fields = {"command": command or SHELL, "cwd": cwd, "timeout": seconds, **request_fields(agent)}
                reply = run_in_terminal(client.socket_path, fields)
            else:
                more = {"stdin": read_stdin(MAX_STDIN) if stdin else None, **agent}
                reply = (run_collected if as_json else run_streaming)(client, command, cwd, seconds, more)
        except NotFound as error:
            if agent and not client.inspect(**agent)["success"]:
                raise
            raise ProgramNotFound(f"{error}{shell_hint(command)}") from None
        except KeyboardInterrupt:
            sys.exit(130)  # closing our connection cancels the command
    if as_json:
        print_json(reply)
    elif reply["timed_out"]:
        click.secho(f"agentos: killed after {seconds:g} s", err=True)
    sys.exit(TIMED_OUT if reply["timed_out"] else reply["exit_code"])


def split_words(ctx: click.Context, words: tuple[str, ...], host: bool) -> tuple[dict[str, Any], list[str]]:
    """The fields that identify the agent, none with ``--host``, and the command."""
    if host:
        return {}, list(words)
    if not ctx.meta["named"]:
        raise click.UsageError("Missing argument 'NAME'. To run it on the host, as the kernel's user, say --host.", ctx)
    return agent_fields(words[0]), list(words[1:])


def request_fields(agent: dict[str, Any]) -> dict[str, Any]:
    """The same agent in a request's fields."""
    return {"id" if name == "agent_id" else name: value for name, value in agent.items()}


def shell_hint(command: list[str]) -> str:
    """A hint if a quoted command line was given as the name of a program."""
    is_line = len(command) == 1 and " " in command[0]
    return "; to give a line to a shell: agentos exec ... -- sh -c 'LINE'" if is_line else ""


def run_collected(
    client: AgentOSClient, command: list[str], cwd: str | None, timeout: float, more: dict[str, Any]
) -> dict[str, Any]:
    """The reply with all output that was kept."""
    return checked(client.exec(command, cwd, timeout, **more))


def run_streaming(
    client: AgentOSClient, command: list[str], cwd: str | None, timeout: float, more: dict[str, Any]
) -> dict[str, Any]:
    """Show the output as it comes, and return the reply."""
    with (
        OutputPrinter(err=False) as out,
        OutputPrinter(err=True) as err,
        client.exec_stream(command, cwd, timeout, **more) as parts,
    ):
        for part in parts:
            (err if part["stream"] == "stderr" else out).print(part["text"])
    assert parts.executed is not None, "the reply is the end of the stream"
    return parts.executed
