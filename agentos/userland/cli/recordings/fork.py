"""``agentos fork REC@N``: lives of a recorded agent that go on live at a question, side by side in one table."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import click
from attrs import asdict, frozen

from agentos.recordings.format import SUFFIX
from agentos.recordings.reader import RecordedCall, Recording
from agentos.userland.cli.approvals.approvals import is_terminal
from agentos.userland.cli.common import (
    Failed,
    check_reply,
    kernel,
    parse_object,
    plural,
    print_json,
    print_table,
    printable,
)
from agentos.userland.cli.permissions.permissions import held_lines
from agentos_sdk import AgentOSClient, AgentOSError
from agentos_sdk.testing.replays import wait_replay

from .ask import find_question
from .forked import Fork, Former, check_fork, describe_fork
from .recordings import open_recording, readable

AT_ONCE = 10  # the kernel runs no more
HEADER = ["FORK", "MODEL", "VERDICT", "COST", "TOKENS", "DIFFERS", "END"]
STOPPED = 130  # exit status

Json = dict[str, Any]


@frozen
class Answer:
    """Another answer to the question; ``source`` names the option, or the file, that it is from."""

    source: str
    reply: Json


def choose_answer(edit: str | None, say: str | None, call: Sequence[str]) -> Answer | None:
    """The answer that the options give, of which at most one may be there."""
    if sum(each is not None for each in (edit, say, call or None)) > 1:
        raise click.UsageError("--edit, --say and --call each give the whole answer: choose one of them")
    if say is not None:
        return Answer("--say", {"content": say, "tool_calls": [], "finish_reason": "stop"})
    if call:
        name, arguments = call
        made = {"id": "call_fork", "name": name, "arguments": parse_object("--call: ARGS", arguments)}
        return Answer("--call", {"content": "", "tool_calls": [made], "finish_reason": "tool_calls"})
    if edit is None:
        return None
    try:
        with click.open_file(edit, encoding="utf-8") as file:
            source = edit if edit != "-" else "--edit"
            return Answer(source, parse_object(source, file.read()))
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"--edit {edit}: {getattr(error, 'strerror', None) or 'expected text in UTF-8'}") from None


def fork_life(
    moment: str,
    answer: Answer | None,
    models: Sequence[str],
    times: int,
    check: str | None,
    yes: bool,
    path: str | None,
    as_json: bool,
) -> int:
    """Have the life of the question ``REC@N`` go on live there, for each model so many times; the exit status.

    ``check`` is a command line that judges each.
    """
    name, _, number = moment.rpartition("@")
    recorded = find_question(name, int(number))
    whole = open_recording(name, None)
    fields = {**describe_moment(whole, recorded, answer), "agent": recorded.life}
    with readable():
        calls = [*whole.calls(recorded.life)]
    answered = {call.begin for call in calls if call.begin < fields["until"]}
    former = Former(calls, answered, whole.manifest.masks, recorded.begin)
    wanted = list_wanted(models, times)
    with kernel(path) as client:
        agent = check_reply(client.inspect(name=recorded.life.rpartition("/")[0]))
        rights = check_reply(client.get_permissions(agent["id"]))
        if not as_json:
            show_rights(recorded, moment, rights)
        if not yes:
            confirm(len(wanted))
        if check is not None:
            fields["hold"] = True
        forks = Forks(client.socket_path, recorded, former, fields, answer, check)
        try:
            found = forks.run(wanted)
        except KeyboardInterrupt:
            return STOPPED
    if as_json:
        forked = list(map(asdict, found))
        print_json({"recorded": recorded.reply, "permissions": rights["permissions"], "forks": forked})
    else:
        life = next(life for life in whole.manifest.lives if life.life == recorded.life)
        show_table(name, forks.describe_recorded(life.exit or "no end is recorded"), found)
    return 0 if any(fork.is_good for fork in found) else 1


def describe_moment(recording: Recording, recorded: RecordedCall, answer: Answer | None) -> Json:
    """The fields of REPLAY_START that say where a recording goes on live, and with which answer."""
    fields: Json = {"path": str(recording.path.absolute()), "then": "live", "until": recorded.begin}
    if answer is not None:
        fields |= {"until": recorded.begin + 1, "edits": {str(recorded.begin): answer.reply}}
    return fields


def list_wanted(models: Sequence[str], times: int) -> Sequence[str | None]:
    """The model of each fork; None: the one that its program asks for."""
    return [model or None for model in models or [""] for _ in range(times)]


def show_rights(recorded: RecordedCall, moment: str, rights: Mapping[str, Any]) -> None:
    """Tell what the live part may do."""
    click.echo(printable(f"{recorded.life} goes on live at {moment}: what follows is done, with the rights of today"))
    for line in held_lines(rights):
        click.echo(printable(f"  {line}"))


def confirm(count: int) -> None:
    """Ask; fails without a terminal, or if the answer is no."""
    if not is_terminal():
        raise Failed("what follows is done for real, and there is no terminal to ask on: say --yes")
    with suppress(click.Abort):
        if click.confirm(f"begin {plural(count, 'fork')}?"):
            return
    raise Failed("nothing was begun")


class Forks:
    """Forks of one recorded life at a question, at most ten at once."""

    def __init__(
        self,
        socket: str,
        recorded: RecordedCall,
        former: Former,
        fields: Json,
        answer: Answer | None,
        check: str | None,
    ) -> None:
        self._socket, self._recorded, self._former = socket, recorded, former
        self._fields, self._answer, self._check = fields, answer, check

    def run(self, models: Sequence[str | None]) -> Sequence[Fork]:
        """Run one for each model, None is the one that the program asks for. An interrupt ends all of them."""
        free, running, names = threading.Semaphore(AT_ONCE), list[Future[Fork]](), list[str]()
        with ThreadPoolExecutor(AT_ONCE) as pool, AgentOSClient(self._socket) as client:
            try:
                for model in models:
                    free.acquire()
                    begun = client.replay_start(**{**self._fields, "model": model})
                    if not begun["success"]:
                        raise Failed(explain(begun["error"], self._answer, self._recorded.begin), begun)
                    names.append(begun["name"])
                    running.append(pool.submit(self._follow, begun["name"], model))
                    running[-1].add_done_callback(lambda done: free.release())
                return [one.result() for one in running]
            except BaseException:
                for name in names:
                    client.replay_stop(name)
                    client.kill(name=name, grace=0)
                raise
            finally:
                for name in names:  # the next forks may have the names
                    client.replay_stop(name)

    def _follow(self, name: str, model: str | None) -> Fork:
        """Wait for the end of one, and check it."""
        shown = model or str(self._recorded.request.get("model", ""))
        with AgentOSClient(self._socket) as client:
            try:
                ended = wait_replay(client, name)
            except AgentOSError as error:
                return Fork(name, shown, "stopped", str(error))
            found = describe_fork(name, shown, ended, self._former)
            return check_fork(client, found, self._check) if self._check is not None else found

    def describe_recorded(self, end: str) -> list[str]:
        """The row of the recorded life: what it used from the question on, and how it ended."""
        model = str(self._recorded.request.get("model", ""))
        return [f"{self._recorded.life} (recorded)", model, "-", *self._former.format_use(), "-", end]


def explain(error: str, answer: Answer | None, number: int) -> str:
    """What is wrong with the answer to the question with this number, by where it is from."""
    if answer is None:
        return error
    field = f"edits.{number}"
    return error.replace(f"{field}.", f"{answer.source}: ").replace(field, answer.source)


def show_table(name: str, recorded: list[str], found: Sequence[Fork]) -> None:
    """Print the forks below the recorded life, then what is to be known about them, and what to type next."""
    rows = [recorded]
    for one in found:
        rows.append([one.name, one.model, one.verdict, *one.format_use(), one.format_difference(), one.end or "-"])
    print_table(rows, HEADER, ("FORK", "MODEL", "DIFFERS", "END"))
    for one in found:
        for line in one.why.split("\n") if one.why else ():
            click.echo(printable(f"{one.name}: {line}"))
    for note in dict.fromkeys(note for one in found for note in one.notes if not note.startswith("live: ")):
        click.echo(printable(f"note: {note}"))
    made = [one for one in found if one.recording is not None]
    for line in list_next(name, min(made, key=lambda one: not one.is_good)) if made else ():
        click.echo(printable(line))


def list_next(name: str, fork: Fork) -> Iterator[str]:
    """What to type next, about a fork of the recording with this name."""
    own = os.path.basename(fork.recording or "").removesuffix(SUFFIX)
    yield f"`agentos recordings show {own}` shows what {fork.name} did, `agentos recordings diff {name} {own}` compares"
    if fork.exit_code is not None:
        yield f"`agentos diff {fork.name}` shows its files"
