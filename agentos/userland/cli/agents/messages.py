"""``agentos send`` and ``agentos call``: sends a message to an agent, or makes any system call."""

import json

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import (
    Failed,
    agent_fields,
    check_reply,
    kernel,
    kernel_options,
    print_json,
    print_result,
    socket_option,
)
from agentos_sdk.opcodes import Op


@click.command()
@click.argument("name", shell_complete=completed.agents)
@click.argument("message")
@kernel_options
def send(name: str, message: str, socket_path: str | None, as_json: bool) -> None:
    """Put MESSAGE into the mailbox of NAME (or of that id).

    MESSAGE is JSON, or else plain text.
    """
    to = agent_fields(name, by_id="to", by_name="to_name")
    with kernel(socket_path) as client:
        reply = check_reply(client.send_message(parse_message(message), **to))
    print_result(f"delivered to {name} (id {reply['delivered_to']})", reply, as_json)


@click.command()
@click.argument("op")
@click.argument("body", default="{}")
@socket_option
def call(op: str, body: str, socket_path: str | None) -> None:
    """Make the system call OP with the JSON object BODY.

    OP is a name such as LIST, or a number such as 0x12.
    """
    try:
        number = Op[op.upper()].value if not op[:1].isdigit() else int(op, 0)
        if not 0 <= number <= 255:
            raise ValueError(op)
    except (KeyError, ValueError):
        raise Failed(f"there is no system call {op!r}: see docs/reference/calls") from None
    with kernel(socket_path) as client:
        reply = client.call(number, body.encode(), wait=None)
    try:
        answer = json.loads(reply)
    except ValueError:
        click.echo(reply)  # the replies of NOOP and EXIT are bytes
        return
    print_json(answer)
    if isinstance(answer, dict) and answer.get("success") is False:
        raise SystemExit(1)


def parse_message(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise Failed("JSON that is nested too deeply") from None
