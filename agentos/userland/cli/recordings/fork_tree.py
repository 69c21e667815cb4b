"""``agentos fork REC@N --tree``: all agents of a recording go on live at the moment at which a question was asked."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click
from attrs import asdict

from agentos.recordings.format import SUFFIX
from agentos.recordings.reader import RecordedCall, Recording
from agentos.userland.cli.common import Failed, kernel, print_json, print_table, printable
from agentos.userland.cli.permissions.permissions import held_lines
from agentos_sdk import AgentOSClient
from agentos_sdk.testing.replays import wait_replay

from .fork import STOPPED, Moment, confirm, show_notes
from .forked import Fork, Former, check_fork, describe_fork
from .recordings import readable

HEADER = ["FORK", "IN PLACE OF", "VERDICT", "COST", "TOKENS", "DIFFERS", "END", "RECORDING"]

Forked = Mapping[str, Fork]  # the members of one fork, by their recorded lives


def fork_tree(moment: Moment, check: str | None, yes: bool, path: str | None, as_json: bool) -> int:
    """Have all lives go on live at the question, one fork after the other; the exit status.

    ``check`` is a command line that judges each, in the files of the agent that had asked the question.
    """
    recorded, whole = moment.recorded, moment.recording
    formers = read_formers(whole, recorded, moment.fields)
    found, told = list[Forked](), list[Mapping[str, Any]]()
    with kernel(path) as client:
        if not as_json:
            show_rights(client, whole, moment.text)
        if not yes:
            confirm(len(moment.models))
        for model in moment.models:
            name = moment.begin(client, model=model, hold=True if check is not None else None)
            try:
                told.append(wait_replay(client, name))
                found.append(judge(client, told[-1], model, formers, recorded.life, check))
            except KeyboardInterrupt:
                return STOPPED
            client.replay_stop(name)
    if as_json:
        forks = [
            {**one, "members": {life: asdict(fork) for life, fork in members.items()}}
            for one, members in zip(told, found, strict=True)
        ]
        print_json({"recorded": recorded.reply, "forks": forks})
    else:
        show_table(found, {life: formers[life] for life in formers if any(life in one for one in found)})
    return 0 if any(is_good(members) for members in found) else 1


def read_formers(recording: Recording, recorded: RecordedCall, fields: Mapping[str, Any]) -> Mapping[str, Former]:
    """All lives of a recording by their names, each with the calls that are answered in a fork at ``recorded``."""
    with readable():
        calls = [*recording.calls()]
    answered = {call.begin for call in calls if call.end < fields["until"]}
    if "edits" in fields:
        answered.add(recorded.begin)
    by_life = dict[str, list[RecordedCall]]()
    for call in calls:
        by_life.setdefault(call.life, []).append(call)
    masks = recording.manifest.masks
    return {
        life.life: Former(by_life.get(life.life, []), answered, masks, recorded.begin)
        for life in recording.manifest.lives
    }


def judge(
    client: AgentOSClient,
    told: Mapping[str, Any],
    model: str | None,
    formers: Mapping[str, Former],
    asked: str,
    check: str | None,
) -> Forked:
    """The members of a fork that has ended; that in place of the life ``asked`` is checked."""
    found = {one["life"]: describe_fork(one["agent"], model or "", one, formers[one["life"]]) for one in told["lives"]}
    if check is not None:
        try:
            if asked not in found:
                raise Failed(f"--check: {asked} was being spawned then and is new here: fork at a later question")
            if is_good(found):
                found[asked] = check_fork(client, found[asked], check)
        finally:
            for one in found.values():  # the jails that were kept for it
                client.kill(name=one.name, grace=0)
    return found


def is_good(members: Forked) -> bool:
    return all(one.is_good for one in members.values())


def show_rights(client: AgentOSClient, recording: Recording, moment: str) -> None:
    """Tell what the live part may do: an agent that another one spawned has at most that one's rights."""
    click.echo(printable(f"all agents go on live at {moment}: what follows is done, with the rights of today"))
    for name in sorted({life.agent for life in recording.manifest.lives}):
        agent = client.inspect(name=name)
        rights = client.get_permissions(agent["id"]) if agent["success"] else agent
        for line in held_lines(rights) if rights["success"] else ["what its spawner may do, at most"]:
            click.echo(printable(f"  {name}: {line}"))


def show_table(found: Sequence[Forked], formers: Mapping[str, Former]) -> None:
    """Print the members of each fork below the recorded lives, then what is to be known about them."""
    rows = [["(recorded)", life, "-", *former.format_use(), "-", "-", "-"] for life, former in formers.items()]
    lives = [(life, one) for members in found for life, one in members.items()]
    print_table([*rows, *(describe(life, one) for life, one in lives)], HEADER, ("FORK", "DIFFERS", "END"))
    show_notes([(f"{life}: ", one) for life, one in lives])


def describe(life: str, one: Fork) -> list[str]:
    """The row of a member."""
    made = os.path.basename(one.recording).removesuffix(SUFFIX) if one.recording is not None else "-"
    return [one.name, life, one.verdict, *one.format_use(), one.format_difference(), one.end or "-", made]
