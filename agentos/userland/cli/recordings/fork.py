"""``agentos fork REC@N``: lives of a recorded agent that go on live at a question, side by side in one table."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from attrs import asdict, frozen

from agentos.recordings.format import SUFFIX
from agentos.recordings.reader import RecordedCall, Recording
from agentos.userland.cli.approvals.approvals import is_terminal
from agentos.userland.cli.common import (
    MAX_FILE_BYTES,
    Failed,
    check_reply,
    kernel,
    parse_number,
    parse_object,
    plural,
    print_json,
    print_lines,
    print_table,
    printable,
    read_stdin,
    read_text_file,
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
    source = edit if edit != "-" else "--edit"
    text = read_stdin(MAX_FILE_BYTES) if edit == "-" else read_text_file(Path(edit))
    return Answer(source, parse_object(source, text))


@frozen
class Moment:
    """The question ``text``, as ``REC@N``, at which a recording goes on live: for each of ``models`` one fork.

    A model that is None is the one that the program asks for. ``fields`` are those of REPLAY_START that say where, and
    with which answer.
    """

    text: str
    recording: Recording
    recorded: RecordedCall
    answer: Answer | None
    models: Sequence[str | None]
    fields: Json

    def begin(self, client: AgentOSClient, **fields: Any) -> str:
        """Begin a fork; its name."""
        begun = client.replay_start(**{**self.fields, **fields})
        if not begun["success"]:
            error = begun["error"]
            if self.answer is not None:  # what is wrong with it, by where it is from
                field = f"edits.{self.recorded.begin}"
                error = error.replace(f"{field}.", f"{self.answer.source}: ").replace(field, self.answer.source)
            raise Failed(error, begun)
        return str(begun["name"])


def open_moment(text: str, answer: Answer | None, models: Sequence[str], times: int) -> Moment:
    """Find the question ``REC@N``, which is to be forked for each model so many times."""
    name, _, number = text.rpartition("@")
    recorded, recording = find_question(name, parse_number(number)), open_recording(name, None)
    fields: Json = {"path": str(recording.path.absolute()), "then": "live", "until": recorded.begin}
    if answer is not None:
        fields |= {"until": recorded.begin + 1, "edits": {str(recorded.begin): answer.reply}}
    wanted = [model or None for model in models or [""] for _ in range(times)]
    return Moment(text, recording, recorded, answer, wanted, fields)


def fork_life(moment: Moment, check: str | None, yes: bool, path: str | None, as_json: bool) -> int:
    """Have the life of the question go on live there; the exit status. ``check`` is a command line that judges each."""
    recorded, whole = moment.recorded, moment.recording
    with readable():
        calls = [*whole.calls(recorded.life)]
    answered = {call.begin for call in calls if call.begin < moment.fields["until"]}
    former = Former(calls, answered, whole.manifest.masks, recorded.begin)
    with kernel(path) as client:
        agent = check_reply(client.inspect(name=recorded.life.rpartition("/")[0]))
        rights = check_reply(client.get_permissions(agent["id"]))
        if not as_json:
            show_rights(recorded, moment.text, rights)
        if not yes:
            confirm(len(moment.models))
        forks = Forks(client.socket_path, moment, former, check)
        try:
            found = forks.run()
        except KeyboardInterrupt:
            return STOPPED
    if as_json:
        forked = list(map(asdict, found))
        print_json({"recorded": recorded.reply, "permissions": rights["permissions"], "forks": forked})
    else:
        life = next(life for life in whole.manifest.lives if life.life == recorded.life)
        show_table(moment.text.rpartition("@")[0], forks.describe_recorded(life.exit or "no end is recorded"), found)
    return 0 if any(fork.is_good for fork in found) else 1


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

    def __init__(self, socket: str, moment: Moment, former: Former, check: str | None) -> None:
        self._socket, self._moment, self._former, self._check = socket, moment, former, check
        self._model = str(moment.recorded.request.get("model", ""))

    def run(self) -> Sequence[Fork]:
        """Run one for each model. An interrupt ends all of them."""
        hold = True if self._check is not None else None
        free, running, names = threading.Semaphore(AT_ONCE), list[Future[Fork]](), list[str]()
        with ThreadPoolExecutor(AT_ONCE) as pool, AgentOSClient(self._socket) as client:
            try:
                for model in self._moment.models:
                    free.acquire()
                    life = self._moment.recorded.life
                    names.append(self._moment.begin(client, agent=life, model=model, hold=hold))
                    running.append(pool.submit(self._follow, names[-1], model or self._model))
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

    def _follow(self, name: str, shown: str) -> Fork:
        """Wait for the end of one, and check it."""
        with AgentOSClient(self._socket) as client:
            try:
                ended = wait_replay(client, name)
            except AgentOSError as error:
                return Fork(name, shown, "stopped", str(error))
            found = describe_fork(name, shown, ended, self._former)
            return check_fork(client, found, self._check) if self._check is not None else found

    def describe_recorded(self, end: str) -> list[str]:
        """The row of the recorded life: what it used from the question on, and how it ended."""
        return [f"{self._moment.recorded.life} (recorded)", self._model, "-", *self._former.format_use(), "-", end]


def show_table(name: str, recorded: list[str], found: Sequence[Fork]) -> None:
    """Print the forks below the recorded life, then what is to be known about them, and what to type next."""
    rows = [recorded]
    for one in found:
        rows.append([one.name, one.model, one.verdict, *one.format_use(), one.format_difference(), one.end or "-"])
    print_table(rows, HEADER, ("FORK", "MODEL", "DIFFERS", "END"))
    show_notes([("", one) for one in found])
    made = [one for one in found if one.recording is not None]
    if made:
        print_lines(list_next(name, min(made, key=lambda one: not one.is_good)))


def show_notes(found: Sequence[tuple[str, Fork]]) -> None:
    """Print why forks have come to nothing, and their notes, each behind the text that is beside its fork."""
    lines = [f"{one.name}: {line}" for _, one in found if one.why for line in one.why.split("\n")]
    notes = [f"note: {before}{note}" for before, one in found for note in one.notes if not note.startswith("live: ")]
    print_lines([*lines, *dict.fromkeys(notes)])


def list_next(name: str, fork: Fork) -> Iterator[str]:
    """What to type next, about a fork of the recording with this name."""
    own = os.path.basename(fork.recording or "").removesuffix(SUFFIX)
    yield f"`agentos recordings show {own}` shows what {fork.name} did, `agentos recordings diff {name} {own}` compares"
    if fork.exit_code is not None:
        yield f"`agentos diff {fork.name}` shows its files"
