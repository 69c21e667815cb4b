"""Runs an MCP server: over stdin and stdout for one client, or over HTTP for those with a token."""

import importlib.util
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import click
from attrs import frozen

from agentos.services.logs.kernel_limit import KernelLimit
from agentos.userland.cli.common import Failed, print_error, without_collections
from agentos_sdk.project import describe_missing_kernel

from .rights import entry_errors, find_kernel_socket, find_place

NO_SDK = "`agentos mcp` needs the package mcp, version 2.3 or later: pip install '.[mcp]' in AgentOS's repository"


@frozen
class ServeOptions:
    """What was typed; see the options of `agentos mcp`."""

    client: str | None
    http: str | None
    hosts: Sequence[str]
    insecure_listen: bool
    standalone: bool
    config: Path | None
    state_dir: Path | None
    socket: str | None


def serve(given: ServeOptions) -> None:
    """Serve until the client closes stdin, or until interrupted. On stdout is MCP alone; the rest goes to stderr."""
    check_options(given)
    if importlib.util.find_spec("mcp") is None:
        raise Failed(NO_SDK)
    # Before the SDK is imported: it would set up a log of its own.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="agentos: %(message)s")
    place = find_place(given.state_dir)
    path = find_kernel_socket(given.socket, place, given.state_dir is not None)
    with KernelLimit():  # clients cause lines
        if given.client is not None:
            run(given, place, path, serve_client(given.client, place, path))
        else:
            run(given, place, path, serve_http(given, place, path))


def check_options(given: ServeOptions) -> None:
    if given.client is not None and given.http is not None:
        raise click.UsageError("--client is served over stdin and stdout: leave it or --http out")
    if given.http is None and given.client is None:
        raise Failed(
            "an MCP client starts this server with --client NAME: make an entry with "
            "`agentos mcp install claude-desktop` (`agentos mcp clients` lists them), or say --http"
        )
    if given.http is None and (given.hosts or given.insecure_listen):
        raise click.UsageError("--allow-host and --insecure-listen are for --http")
    if given.config is not None and not given.standalone:
        raise click.UsageError("--config is the file of the kernel that --standalone starts: say both, or neither")


def serve_client(name: str, place: Path, path: str) -> Callable[[], Awaitable[None]]:
    """The server of one entry. Raises :class:`Failed` if there is none."""
    from agentos.userland.mcp import clients

    with entry_errors(place):
        entry = clients.load(place, name)
    if entry is None:
        make = f"make it with `agentos mcp install CLIENT --name {name}`"
        raise Failed(f"no MCP client is called {name!r} in {place}: {make}", {"code": "not_found"})
    if entry.transport != "stdio":
        raise Failed(f"the MCP client {name!r} has a token: it is served by `agentos mcp --http`")

    async def server() -> None:
        with without_collections():
            from agentos.userland.mcp.transports import stdio  # 1 s, with the SDK of MCP

        await stdio.serve(entry, path, place)

    return server


def serve_http(given: ServeOptions, place: Path, path: str) -> Callable[[], Awaitable[None]]:
    """The server of all clients with a token. Raises :class:`Failed` if it can't listen."""
    with without_collections():
        from agentos.userland.mcp.transports import http

    assert given.http is not None
    try:
        host, port = http.parse_address(given.http)
        options = http.HTTPOptions(host, port, given.hosts, given.insecure_listen)
        listener = http.open_listener(options)
    except http.HTTPError as error:
        raise Failed(str(error)) from None
    if given.insecure_listen:
        say("there is no TLS here: whoever reads the network can read tokens, and act as these clients")
    return lambda: http.serve(listener, options, path, place, lambda url: say(f"serving MCP at {url}"))


def run(given: ServeOptions, place: Path, path: str, server: Callable[[], Awaitable[None]]) -> None:
    """Run the server, with --standalone beside a kernel. Raises :class:`Failed` if there is none."""
    import trio

    from agentos.userland.mcp.transports import standalone

    async def run_with_kernel() -> None:
        async with trio.open_nursery() as nursery:
            options = standalone.KernelOptions(path, place, given.config)
            await nursery.start(standalone.keep_kernel, options, say)
            await server()
            nursery.cancel_scope.cancel()

    if not given.standalone and not standalone.is_listening(path):
        raise Failed(f"{describe_missing_kernel(path)}; or add --standalone", {"code": "unavailable"})
    if given.client is not None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # else trio waits for the thread in which the SDK reads stdin
    try:
        # ^C is raised in `serve` alone: hypercorn takes what is raised in a request for an error of the application.
        trio.run(run_with_kernel if given.standalone else server, restrict_keyboard_interrupt_to_checkpoints=True)
    except* standalone.StartFailed as errors:
        raise Failed(str(errors.exceptions[0])) from None
    except* KeyboardInterrupt:
        sys.exit(130)
    except* OSError as errors:
        raise Failed(str(errors.exceptions[0])) from None


def say(line: str) -> None:
    print_error(f"agentos: {line}")
