"""``agentos mcp``: AgentOS as an MCP server with its clients, and the MCP servers of agents."""

from collections.abc import Sequence
from pathlib import Path

import click

from .clients import clients, revoke, token
from .install import install
from .rights import kernel_state_option
from .servers import add, remove, servers, unpin

DEFAULT_HTTP = "127.0.0.1:8766"


@click.group(invoke_without_command=True)
@click.option("--client", metavar="NAME", help="Serve the client of this entry over stdin and stdout.")
@click.option(
    "--http",
    "http",
    is_flag=False,
    flag_value=DEFAULT_HTTP,
    metavar="[HOST:PORT]",
    help=f"Serve clients with a token over HTTP, at http://HOST:PORT/mcp; default: {DEFAULT_HTTP}.",
)
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A further name of this server over HTTP.")
@click.option("--insecure-listen", is_flag=True, help="Allow another address than the loopback's, without TLS.")
@click.option("--standalone", is_flag=True, help="Start a kernel where none runs, and end it with this server.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="The file of --standalone's kernel.")
@kernel_state_option
@click.option("--socket", "socket", metavar="PATH", help="The kernel's socket.")
@click.pass_context
def mcp(
    ctx: click.Context,
    client: str | None,
    http: str | None,
    hosts: Sequence[str],
    insecure_listen: bool,
    standalone: bool,
    config: Path | None,
    state_dir: Path | None,
    socket: str | None,
) -> None:
    """Serve MCP clients, and give agents the tools of MCP servers.

    Without a COMMAND this is the server that an MCP client such as Claude Desktop starts: `agentos mcp --client NAME`,
    or with --http one for many. Make a client's entry with `agentos mcp install`, or for HTTP with `agentos mcp token`.
    The tools of an MCP server are for agents after `agentos mcp add`.
    """
    if ctx.invoked_subcommand is not None:
        return
    from .serve import ServeOptions, serve

    serve(ServeOptions(client, http, tuple(hosts), insecure_listen, standalone, config, state_dir, socket))


for command in (install, clients, revoke, token, add, servers, unpin, remove):
    mcp.add_command(command)
