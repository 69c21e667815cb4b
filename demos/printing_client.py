"""A client that shows its calls and their replies, for demos."""

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from agentos_sdk import AgentOSClient
from demos.stage import HERE, fill


class PrintingClient:
    """A client that prints each call as it would be written in Python, with its reply."""

    def __init__(self, client: AgentOSClient, name: str = "kernel") -> None:
        self.client = client
        self.name = name
        self.spawned_ids: list[int] = []  # ids of the agents that it spawned

    def __call__(self, method: str, *args: object, **named: object) -> Any:
        words = [
            *(repr(shorten_paths(value)) for value in args),
            *(f"{key}={shorten_paths(value)!r}" for key, value in named.items()),
        ]
        click.secho(f"{self.name}.{method}({', '.join(words)})", fg="green")
        reply = getattr(self.client, method)(*args, **named)
        if method == "spawn" and reply["success"]:
            self.spawned_ids.append(reply["id"])
        for row in reply if isinstance(reply, list) else [reply]:
            click.echo(fill(format_reply(row), "    ", "      "))
        return reply


@contextlib.contextmanager
def open_printing_client(socket: str) -> Iterator[PrintingClient]:
    """A :class:`PrintingClient` of the kernel at ``socket``; the agents that it spawned are killed at the end."""
    with AgentOSClient(socket) as client:
        printing = PrintingClient(client)
        try:
            yield printing
        finally:
            for number in printing.spawned_ids:
                client.kill(agent_id=number)


def format_reply(value: object) -> str:
    """A reply in few lines; long fields are abbreviated."""
    if not isinstance(value, dict):
        return repr(value)
    return "{" + ", ".join(f"{key!r}: {format_field(key, part)}" for key, part in value.items()) + "}"


def format_field(key: str, part: object) -> str:
    if key == "isolation" and isinstance(part, dict):
        return f"{{'level': {part['level']!r}, ...}}"
    return "[...]" if key == "stderr" else shorten(part)


def shorten(value: object) -> str:
    if isinstance(value, str) and "\n" in value:
        return repr(f"{shorten_paths(value.splitlines()[0])} ...")
    return repr(shorten_paths(value))


def shorten_paths(value: object) -> object:
    """Paths of the demos relative to the repository; other values are unchanged."""
    return value.replace(f"{HERE.parent}/", "") if isinstance(value, str) else value
