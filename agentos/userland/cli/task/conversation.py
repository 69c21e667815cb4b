"""``agentos task`` without a text: a conversation with one agent, in which each line is what to do next."""

import readline  # noqa: F401 - input() then has a history and can be edited
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import click

from agentos.userland.cli.common import Failed, printable
from agentos.userland.task.directory import TaskDirectory
from agentos.userland.task.records import TaskNote, find_end
from agentos.userland.task.saved_files import SaveError
from agentos_sdk import AgentOSClient, CallError
from agentos_sdk.loop import TaskResult
from agentos_sdk.loop.engine.result import LoopError

from .lines import describe_use
from .review import show_diff
from .task import begin, follow, go_on, say_first
from .tasks import check_free
from .undo import show_undone

HELP = "/diff shows what was changed, /undo restores it, /compact, /cost, /model NAME, /quit"
RESTORED = "The files are again what they were before the task. "


class TaskConversation:
    """Reads lines from the terminal until its end. The first one begins a task, each further one goes on with it."""

    def __init__(
        self,
        client: AgentOSClient,
        socket_path: str | None,
        directory: str | None,
        review: bool,
        options: Mapping[str, Any],
    ) -> None:
        self._client, self._socket_path, self._directory, self._review = client, socket_path, directory, review
        self._options = dict(options)
        self._note: TaskNote | None = None
        self._status = 0
        self._restored = False  # the model doesn't know it yet
        self._compact = False  # before the next question
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/diff": self._diff,
            "/undo": self._undo,
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
            except (LoopError, SaveError, CallError, Failed) as error:
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
            begun = begin(self._client, text, self._directory, self._review, self._options, say_first)
            self._note = begun.note
        else:
            given = {name: self._options[name] for name in ("budget", "model")}
            told = RESTORED + text if self._restored else text
            begun = go_on(self._client, self._note, told, given, self._compact)
            self._restored = self._compact = False
        self._status = follow(self._client, begun, self._socket_path, as_json=False, quiet=False)

    def _saved(self) -> TaskDirectory | None:
        if self._note is None or not self._note.directory:
            click.echo("nothing is saved: begin with `agentos task --dir PATH`" if self._note else "no task yet")
            return None
        return TaskDirectory(self._note.directory, self._note.place)

    def _diff(self, argument: str) -> None:
        if (saved := self._saved()) is not None:
            changes = saved.changes()
            show_diff(saved.source, saved.workspace, changes)
            if not changes:
                click.echo("nothing is changed")

    def _undo(self, argument: str) -> None:
        if (saved := self._saved()) is not None:
            check_free(self._client, saved.path)
            show_undone(saved.path, saved.undo())
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
