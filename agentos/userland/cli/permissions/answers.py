"""Remembered answers of persons: their lines in ``agentos permissions get``, and ``agentos permissions forget``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from agentos.userland.cli.common import check_reply, kernel, kernel_options, plural, print_result
from agentos.userland.cli.times import format_time


@click.command()
@click.argument("numbers", metavar="ID...", type=int, nargs=-1, required=True)
@kernel_options
def forget(numbers: Sequence[int], socket_path: str | None, as_json: bool) -> None:
    """Revoke remembered answers: the calls are asked about again.

    `agentos permissions get AGENT` shows the answers with their IDs.
    """
    with kernel(socket_path) as client:
        for number in numbers:
            reply = check_reply(client.decide(number, False, forget=True))
    print_result(f"{plural(len(numbers), 'answer')} forgotten", reply, as_json)


def answer_lines(answers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The answers, each with what ends it; none without answers."""
    if answers:
        yield "answers that are remembered"
    for one in answers:
        reason = f" ({one['reason']})" if one["reason"] else ""
        yield f"  {one['id']}  {'allow' if one['allow'] else 'deny'} {one['call']} {one['object']}{reason}"
        subject = "each agent of this name" if one["agent_id"] is None else f"the agent with the id {one['agent_id']}"
        until = f", until {format_time(one['until'])}" if one["until"] is not None else ""
        yield f"      for {subject}{until}"
        yield f"      answered by {one['by']}, {format_time(one['at'])}"
        yield f"      asked by {one['rule']}"
