"""``agentos fork REC@N --tree``: all agents of a recording go on live at the moment at which a question was asked."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentos.recordings.reader import Recording, read_recording
from agentos.userland.cli.common import Failed, kernel, print_json, print_table, printable
from agentos.userland.cli.permissions.permissions import held_lines
from agentos_sdk import AgentOSClient
from agentos_sdk.testing.replays import wait_replay

from .ask import find_question
from .fork import GOOD, STOPPED, Answer, confirm, describe_moment, explain, list_wanted
from .recordings import open_recording, readable

HEADER = ["FORK", "IN PLACE OF", "VERDICT", "END", "RECORDING"]


def fork_tree(
    moment: str,
    answer: Answer | None,
    models: Sequence[str],
    times: int,
    yes: bool,
    path: str | None,
    as_json: bool,
) -> int:
    """Have all lives go on live at the question ``REC@N``, one fork after the other; the exit status."""
    name, _, number = moment.rpartition("@")
    recorded = find_question(name, int(number))
    whole = open_recording(name, None)
    fields, wanted = describe_moment(whole, recorded, answer), list_wanted(models, times)
    found = list[Mapping[str, Any]]()
    with kernel(path) as client:
        if not as_json:
            show_rights(client, whole, moment)
        if not yes:
            confirm(len(wanted))
        for model in wanted:
            begun = client.replay_start(**fields, model=model)
            if not begun["success"]:
                raise Failed(explain(begun["error"], answer, recorded.begin), begun)
            try:
                found.append(wait_replay(client, begun["name"]))
            except KeyboardInterrupt:
                return STOPPED
            client.replay_stop(begun["name"])
    if as_json:
        print_json({"recorded": recorded.reply, "forks": found})
    else:
        show_table(found)
    return 0 if any(fork["verdict"] in GOOD for fork in found) else 1


def show_rights(client: AgentOSClient, recording: Recording, moment: str) -> None:
    """Tell what the live part may do: an agent that another one spawned has at most that one's rights."""
    click.echo(printable(f"all agents go on live at {moment}: what follows is done, with the rights of today"))
    for name in sorted({life.agent for life in recording.manifest.lives}):
        agent = client.inspect(name=name)
        rights = client.get_permissions(agent["id"]) if agent["success"] else agent
        for line in held_lines(rights) if rights["success"] else ["what its spawner may do, at most"]:
            click.echo(printable(f"  {name}: {line}"))


def show_table(found: Sequence[Mapping[str, Any]]) -> None:
    """Print the members of each fork, then what is to be known about them."""
    rows = [describe(one) for fork in found for one in fork["lives"]]
    print_table(rows, HEADER, ("FORK", "END"))
    for fork in found:
        for one in fork["lives"]:
            why = one["divergence"] or one["error"] or ""
            for line in why.split("\n") if why else ():
                click.echo(printable(f"{one['agent']}: {line}"))
    lives = [one for fork in found for one in fork["lives"]]
    told = [f"{one['life']}: {note}" for one in lives for note in one["notes"] if not note.startswith("live: ")]
    for note in dict.fromkeys(told):
        click.echo(printable(f"note: {note}"))


def describe(one: Mapping[str, Any]) -> list[str]:
    """The row of a member."""
    if one["recording"] is None:
        return [one["agent"], one["life"], one["verdict"], "-", "-"]
    with readable():
        made = read_recording(one["recording"])
    name = made.manifest.name
    return [one["agent"], one["life"], one["verdict"], str(made.manifest.lives[0].exit or "-"), name]
