"""``agentos http``: sends a request as the operator, or by the rules of an agent."""

import base64
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import (
    Failed,
    agent_fields,
    check_reply,
    kernel,
    kernel_options,
    print_json,
    printable,
    read_stdin,
)
from agentos_sdk import AgentOSClient

from .inspect import is_restrictive

MAX_DATA = 4 << 20  # bytes of a body from stdin


@click.command()
@click.argument("method")
@click.argument("url")
@click.option("-H", "--header", "lines", multiple=True, metavar="'NAME: VALUE'", help="A header; repeatable.")
@click.option("--data", metavar="TEXT", help="The body; - for our standard input.")
@click.option(
    "--as", "agent", metavar="AGENT", shell_complete=completed.agents, help="Send it only if AGENT might, by its rules."
)
@click.option("--timeout", type=float, metavar="SECONDS", help="How long all of it may take. Default: 30.")
@click.option("--max-redirects", type=int, metavar="N", help="How many redirects to follow at most. Default: 5.")
@kernel_options
def http(
    method: str,
    url: str,
    lines: tuple[str, ...],
    data: str | None,
    agent: str | None,
    as_json: bool,
    socket_path: str | None,
    **options: Any,
) -> None:
    """Send an HTTP request to URL and show the response.

    The kernel sends it, as for an agent. With --as the rules of AGENT decide: on its redirects and addresses, too. If a
    rule refuses it, or asks a person, nothing is sent and the rule is shown.
    """
    body = read_stdin(MAX_DATA) if data == "-" else data
    request: dict[str, Any] = {"method": method, "headers": parse_headers(lines), "body": body}
    with kernel(socket_path) as client:
        if agent is not None:
            take_rules(client, agent, {"url": url, **request})
        reply = client.http(url, **request, **options)
        if agent is None and reply.get("code") == "permission_denied":
            raise Failed(f"{reply['error']}; with --as AGENT the rules of that agent decide", reply)
        check_reply(reply)
    if as_json:
        print_json(reply)
        return
    content = base64.b64decode(reply["body"]) if reply["encoding"] == "base64" else reply["body"].encode()
    more = " of more" if reply["truncated"] else ""
    source = f" from {reply['url']}" if reply["url"] != url else ""
    click.secho(
        printable(f"{reply['status_code']}, {len(content)} bytes{more}{source}, {reply['elapsed_ms']:.0f} ms"),
        fg="bright_black",
        err=True,
    )
    print_content(content)


def parse_headers(lines: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise Failed(f"-H {line}: expected a name, a colon and a value")
        headers[name] = value.strip()
    return headers


def take_rules(client: AgentOSClient, agent: str, request: Mapping[str, Any]) -> None:
    """Limit this connection to the rules of an agent for good; fails if they don't allow the request without asking."""
    number = check_reply(client.inspect(**agent_fields(agent)))["id"]
    told = check_reply(client.explain(number, "HTTP", request))
    if told["decision"] != "allow":
        code = "permission_denied" if told["decision"] == "deny" else "approval_required"
        raise Failed(told["reason"], {"code": code, "rule": told["rule"]})
    own = check_reply(client.get_permissions(number))["permissions"]
    for given in (own, *own.pop("bounded_by")):
        if is_restrictive(given):
            check_reply(client.hello(permissions={key: value for key, value in given.items() if key != "name"}))


def print_content(content: bytes) -> None:
    """Write the body as it came; to a terminal only text, with control characters escaped, except newlines."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(content)
        return
    try:
        text = content.decode()
    except UnicodeDecodeError:
        click.secho("(not text: redirect the output to a file)", fg="bright_black", err=True)
        return
    click.echo("\n".join(map(printable, text.split("\n"))), nl=not text.endswith("\n"))
