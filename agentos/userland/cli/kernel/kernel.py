"""``agentos shutdown`` and ``agentos status``: the kernel as a whole."""

import os
import select
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from agentos.userland.cli.agents.agents import describe_unavailable
from agentos.userland.cli.agents.inspect import wrap_beside
from agentos.userland.cli.columns import text_width
from agentos.userland.cli.common import check_reply, kernel, kernel_options, print_json, print_result, printable
from agentos.userland.cli.common import socket_path as find_socket
from agentos.userland.cli.times import format_time
from agentos_sdk import AgentOSClient
from agentos_sdk.encoding.quantities import duration

NEEDS_ATTENTION = 3  # exit status of ``agentos status``
ENDED = ("failed", "restarts")  # kinds of problems of agents that have ended
MOST_QUOTED = 20  # of them
QUOTED_TAIL = 20  # lines of output, in which the last one of stderr is looked for


@click.command()
@click.option("--grace", type=float, metavar="SECONDS", help="Between SIGTERM and SIGKILL, for each agent, at most.")
@kernel_options
def shutdown(grace: float | None, socket_path: str | None, as_json: bool) -> None:
    """Stop all agents in order, and then the kernel.

    Returns when the kernel has ended.
    """
    with kernel(socket_path) as client:
        ends = watch_process(find_socket(socket_path))
        reply = check_reply(client.shutdown(grace=grace))
    if ends is not None:
        select.select([ends], [], [])
    print_result("the kernel has stopped" if ends is not None else "the kernel is stopping", reply, as_json)


@click.command()
@kernel_options
def status(socket_path: str | None, as_json: bool) -> None:
    """Show how the kernel is, and what needs attention.

    The exit status is 0 if nothing does, 3 if something does, and 1 if no kernel answers.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.status())
        quotes = {} if as_json else quote_ended(client, reply["attention"])
        states = [] if as_json else read_model_states(client, reply)
    if as_json:
        print_json(reply)
    else:
        width = text_width()
        for label, value in status_facts(reply, states, quotes):
            for line in wrap_beside(label.ljust(11), printable(value), width):
                click.echo(line)
    sys.exit(NEEDS_ATTENTION if reply["attention"] else 0)


def watch_process(path: str) -> int | None:
    """A pidfd of the process that listens at a socket; None if it can't be seen, as from another container."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        pid, _, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def quote_ended(client: AgentOSClient, attention: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By agent that was given up or is in backoff, the last line that it wrote to stderr in its last life."""
    names = [one["name"] for one in attention if one["kind"] in ENDED]
    logs = {name: client.logs(name=name, tail=QUOTED_TAIL) for name in names[:MOST_QUOTED]}
    return {name: find_last_error(reply["lines"]) for name, reply in logs.items() if reply["success"]}


def find_last_error(lines: Sequence[Mapping[str, Any]]) -> str:
    """The last line on stderr before the kernel's note of the last end, and behind the one of the end before."""
    ends = [at for at, line in enumerate(lines) if line["stream"] == "kernel" and line["text"].startswith("ended")]
    life = lines[ends[-2] if len(ends) > 1 else 0 : ends[-1] if ends else None]
    return next((line["text"] for line in reversed(life) if line["stream"] == "stderr" and line["text"].strip()), "")


def read_model_states(client: AgentOSClient, found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """States of all models; of the default one alone, for a caller that may not know more."""
    reply = client.metrics()
    if reply["success"]:
        states: Sequence[Mapping[str, Any]] = reply["metrics"]["llm"]["providers"]
        return states
    return [found["model"]] if found["model"] is not None else []


def status_facts(
    found: Mapping[str, Any], models: Sequence[Mapping[str, Any]], quotes: Mapping[str, str] = {}
) -> Iterator[tuple[str, str]]:
    """Labels and values, in the order shown."""
    yield "state", "needs attention:" if found["attention"] else "in order"
    for problem in list_problems(found["attention"], quotes):
        yield "", f"- {problem}"
    yield "kernel", f"{found['kernel_version']}, up for {duration(found['up_ms'] / 1000)}"
    yield "agents", ", ".join(f"{count} {state}" for state, count in found["agents"].items()) or "none"
    yield "model", ", ".join(map(describe_model, models)) or "none"
    yield "isolation", found["isolation"] or "is being tried"
    yield "audit", describe_audit(found["audit"])
    if found["config"] is not None:
        yield "config", found["config"]


def list_problems(attention: Sequence[Mapping[str, Any]], quotes: Mapping[str, str] = {}) -> Iterator[str]:
    """A line for each problem, with what ended agents wrote last; agents that lack the same layers share one."""
    lacking: dict[str, list[str]] = {}
    for problem in attention:
        if problem["kind"] == "isolation":
            lacking.setdefault(problem["text"].removeprefix(f"{problem['name']}: "), []).append(problem["name"])
        else:
            quote = quotes.get(problem["name"], "") if problem["kind"] in ENDED else ""
            yield f"{problem['text']}; on stderr: {quote}" if quote else problem["text"]
    yield from (f"{missing}: {', '.join(names)}" for missing, names in lacking.items())


def describe_model(model: Mapping[str, Any]) -> str:
    return f"{model['model']} by {model['name']}" if model["state"] == "ok" else describe_unavailable(model)


def describe_audit(audit: Mapping[str, Any]) -> str:
    """What the kernel knows of its audit log; only ``agentos audit verify`` reads all of it."""
    at = format_time(audit["checked_at"])
    end = "sound" if audit["problem"] is None else "checked"
    return f"{audit['entries']} entries; its end was {end} at the kernel's start, {at}"
