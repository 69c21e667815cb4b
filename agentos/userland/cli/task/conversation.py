"""``agentos task`` without a text: a conversation with one agent, in which each line is what to do next."""

import readline  # noqa: F401 - input() then has a history and can be edited
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import click

from agentos.userland.cli.common import Failed, check_reply, printable
from agentos.userland.cli.files.overlays import report
from agentos.userland.task.records import TaskNote, find_end
from agentos.userland.task.repository import BadDirectory
from agentos_sdk import AgentOSClient, CallError
from agentos_sdk.loop import TaskResult
from agentos_sdk.loop.engine.result import LoopError

from .begin import begin, go_on, prepare, say_first
from .changes import apply, show_diff
from .follow import follow
from .lines import describe_use

HELP = (
    "/diff shows what was changed, /apply makes it in the directory, /undo takes that back, "
    "/discard throws the rest away, /compact, /cost, /model NAME, /quit"
)
RESTORED = "The user has taken back changes of yours: look at the files again. "


class TaskConversation:
    """Reads lines from the terminal until its end. The first one begins a task, each further one goes on with it."""

    def __init__(
        self,
        client: AgentOSClient,
        socket_path: str | None,
        directory: str | None,
        mode: str,
        review: bool,
        options: Mapping[str, Any],
    ) -> None:
        self._client, self._socket_path, self._directory, self._mode = client, socket_path, directory, mode
        self._review = review
        self._options = dict(options)
        self._note: TaskNote | None = None
        self._status = 0
        self._shown: str | None = None  # the digest of the changes that were shown
        self._restored = False  # the model doesn't know it yet
        self._compact = False  # before the next question
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/diff": self._diff,
            "/apply": self._apply,
            "/undo": self._undo,
            "/discard": self._discard,
            "/compact": self._summarise,
            "/cost": self._cost,
            "/model": self._model,
        }

    def serve(self) -> int:
        """The exit status of the last task."""
        click.echo(f"each line is a task for the agent; {HELP}")
        while True:
            try:
                line = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                click.echo()
                return self._status
            if line == "/quit":
                return self._status
            try:
                self._obey(line)
            except (LoopError, BadDirectory, CallError, Failed) as error:
                click.secho(printable(f"agentos: {error}"), fg="red", err=True)
                self._status = 1

    def _obey(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name in self._commands:
            self._commands[name](argument.strip())
        elif name == "/help":
            click.echo(HELP)
        elif line.startswith("/"):
            click.echo(f"there is no {printable(name)}: {HELP}")
        elif line:
            self._work(line)

    def _work(self, text: str) -> None:
        if self._note is None:
            prepared = prepare(self._client, text, self._directory, self._mode, self._options, say_first)
            begun = begin(self._client, prepared)
            self._note = begun.note
        else:
            given = {name: self._options[name] for name in ("budget", "model")}
            told = RESTORED + text if self._restored else text
            begun = go_on(self._client, self._note, told, given, self._compact)
            self._restored = self._compact = False
        self._status = follow(self._client, begun, self._socket_path, self._review)

    def _overlay(self) -> str | None:
        """The name of the task, if it has an overlay."""
        if self._note is not None and self._note.mode == "overlay":
            return self._note.name
        click.echo("no change is kept apart: begin with `agentos task --dir PATH`" if self._note else "no task yet")
        return None

    def _diff(self, argument: str) -> None:
        if (name := self._overlay()) is not None:
            self._shown = show_diff(self._client, name)["digest"]

    def _apply(self, argument: str) -> None:
        if (name := self._overlay()) is not None:
            if self._shown is None:
                click.echo("look first: /diff")
                return
            apply(self._client, name, self._shown)

    def _undo(self, argument: str) -> None:
        if (name := self._overlay()) is not None:
            report(check_reply(self._client.undo(name)), "undone", "")
            self._restored = True

    def _discard(self, argument: str) -> None:
        if (name := self._overlay()) is not None:
            check_reply(self._client.rollback(name, "start"))
            click.echo(f"{name} goes on with the directory as it is")
            self._restored = True

    def _summarise(self, argument: str) -> None:
        if self._note is None:
            click.echo("no task yet")
            return
        self._compact = True
        click.echo("with your next line the model gets a summary of all but the first task and the last two steps")

    def _cost(self, argument: str) -> None:
        if self._note is None or (found := find_end(self._client, self._note.name)) is None:
            click.echo("no task has ended yet")
            return
        with suppress(LoopError):
            result = TaskResult.from_record(found)
            name = printable(self._note.name)  # the agent may have stored another one
            click.echo(f"{name}: {describe_use(result.steps, result.tokens, result.cost)}")

    def _model(self, argument: str) -> None:
        if argument:
            self._options["model"] = argument
        click.echo(f"the next task is for {printable(self._options['model'] or 'the default model of the kernel')}")
