"""``agentos exec``: run a command in an agent's jail."""

import sys

import click

from .common import Failed, checked, json_option, kernel, plain, print_json, read_stdin, socket_option, target
from .spawn import SpawnCommand

TIMED_OUT = 124  # as with timeout(1)
MOST = 128 << 10  # bytes of input: as JSON they must fit into a call


class NoProgram(Failed):
    """There is no such program in the jail."""

    exit_code = 127  # as in a shell


@click.command(cls=SpawnCommand)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND [ARGS]...")
@click.option("-i", "--stdin", is_flag=True, help="Give it all of our standard input, text of up to 128 KiB.")
@click.option("--timeout", type=float, default=30.0, show_default=True, metavar="SECONDS", help="Then it is killed.")
@click.option("--cwd", metavar="DIR", help="Its working directory, a path of the jail's; default: the agent's.")
@json_option
@socket_option
def exec(  # noqa: A001 - the command's name
    name: str,
    command: tuple[str, ...],
    stdin: bool,
    timeout: float,
    cwd: str | None,
    as_json: bool,
    socket_path: str | None,
) -> None:
    """Run COMMAND in the jail of the agent NAME, within its limits, and end with its exit status.

    It has no terminal, its input is empty without --stdin, and its output is shown when it has ended. All that it
    started ends with it; so does the command when this is interrupted.
    """
    given = read_stdin(MOST) if stdin else None
    with kernel(socket_path) as client:
        try:
            reply = client.exec(list(command), cwd, timeout, stdin=given, **target(name))
            if reply.get("code") == "not_found" and client.inspect(**target(name))["success"]:
                raise NoProgram(str(reply["error"]))
        except KeyboardInterrupt:
            sys.exit(130)  # with our connection it is withdrawn
    checked(reply)
    if as_json:
        print_json(reply)
    else:
        show(reply["stdout"], err=False)
        show(reply["stderr"], err=True)
        if reply["truncated"]:
            click.secho("(it wrote more than 1 MiB to a stream: the rest was dropped)", fg="bright_black", err=True)
        if reply["timed_out"]:
            click.secho(f"agentos: killed after {timeout:g} s", err=True)
    sys.exit(TIMED_OUT if reply["timed_out"] else reply["exit_code"])


def show(text: str, err: bool) -> None:
    """As it came for a file or another program; for a terminal nothing in it is obeyed."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        text = "\n".join(map(plain, text.split("\n")))
    click.echo(text, nl=False, err=err)
