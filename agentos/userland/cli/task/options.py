"""What the options of ``agentos task`` mean: the text, the permissions and the budget."""

import sys
from typing import Any, NamedTuple

import click

from agentos.userland.cli.common import Failed, check_reply, parse_permission_set, project_directory, read_stdin
from agentos.userland.task.programs import LOOP, Program, find_program
from agentos_sdk import AgentOSClient
from agentos_sdk.loop import Budget

ASK = {"write": ["${workspace}/**"], "commands": ["*"], "domains": ["*"], "tools": ["*"]}
MAX_TASK = 64 << 10  # bytes of a task from stdin


class Order(NamedTuple):
    """The options of the command, as they were given."""

    words: tuple[str, ...]
    directory: str | None
    in_place: bool
    level: str | None
    ask: bool
    model: str | None
    budget: tuple[str, ...]
    resume: str | None
    continued: bool
    by: tuple[str, ...]
    attempts: int | None
    check: str | None
    review: bool
    quiet: bool
    as_json: bool
    socket_path: str | None

    @property
    def goes_on(self) -> bool:
        """Whether it is one that has begun."""
        return self.resume is not None or self.continued

    @property
    def tries(self) -> int | None:
        """How many try it at once; None if it isn't tried but done."""
        return self.attempts or (len(self.by) if len(self.by) > 1 else None)

    @property
    def mode(self) -> str:
        return "direct" if self.in_place else "overlay"

    @property
    def has_no_text(self) -> bool:
        """Whether nothing is given but what a conversation on a terminal is about."""
        return not (self.words or self.goes_on or self.quiet or self.as_json or self.by or self.attempts)


def read_text(words: tuple[str, ...], needed: bool) -> str:
    """The task: the argument, or stdin."""
    if words and words[0] != "-":
        return words[0]
    if not words and (not needed or sys.stdin.isatty()):
        if needed:
            raise click.UsageError('TEXT: expected what to do, such as agentos task "Write a test for parse.py"')
        return ""
    text = read_stdin(MAX_TASK).strip()
    if not text:
        raise Failed("stdin: expected the task as text")
    return text


def make_permissions(level: str | None, ask: bool) -> Any:
    """The permissions of the task's agent; ``--ask`` adds to what they ask about."""
    wanted = parse_permission_set(level) if level is not None else "sandboxed"
    if not ask:
        return wanted
    given: dict[str, Any] = {"level": wanted} if isinstance(wanted, str) else wanted
    asked = given.get("ask")
    if not isinstance(asked, dict):
        return {**given, "ask": ASK if asked is None else asked}  # the kernel says what is wrong with another one
    return {**given, "ask": {**asked, **{kind: [*asked.get(kind, ()), *rules] for kind, rules in ASK.items()}}}


def check_order(order: Order) -> None:
    """Raise ``click.UsageError`` for options that don't fit each other."""
    if len(order.words) > 1:
        raise click.UsageError("TEXT: expected one argument: write the task in quotation marks")
    has_directory = order.directory is not None
    if order.in_place and (not has_directory or order.review):
        raise click.UsageError("--in-place changes the directory of --dir itself: give --dir, and no --review")
    if order.review and (order.quiet or order.as_json or not (has_directory or order.goes_on)):
        raise click.UsageError("--review shows the changes of --dir on the terminal: without -p and --json")
    kept = (order.level, order.model)
    if order.goes_on and (has_directory or order.ask or order.by or any(each is not None for each in kept)):
        raise click.UsageError("--resume and --continue keep directory, permissions, model and program of the task")
    if order.tries is not None and (not has_directory or order.in_place or order.review or order.goes_on):
        raise click.UsageError("--attempts works on overlays of --dir: give --dir, without --in-place and --review")
    if order.tries is not None and order.tries < len(order.by):
        raise click.UsageError(
            f"--attempts {order.tries}: expected one at least for each of the {len(order.by)} --with"
        )
    if order.check is not None and order.tries is None:
        raise click.UsageError("--check judges the attempts of --attempts")


def find_programs(
    client: AgentOSClient, by: tuple[str, ...], model: str | None, calls: int | None, directory: str | None
) -> list[Program | None]:
    """The programs of ``--with`` to work on a directory, with the model that they ask and how often they may.

    None is the loop.
    Raises :class:`~agentos.userland.task.programs.BadProgram` if one can't work here.
    """
    project, places = project_directory() if by else None, [directory] if directory is not None else []
    found = [None if name == LOOP else find_program(name, project, places) for name in by or (LOOP,)]
    if not any(found):
        return list(found)
    status = check_reply(client.status())
    if model is None:
        model = str(status["model"]["model"]) if status["model"] is not None else ""
    for program in filter(None, found):
        if program.preset.endpoint and not status["openai_endpoint"]:
            raise Failed(f"--with {program.name}: it asks the kernel's endpoint: set [llm] openai_endpoint = true")
        if program.preset.needs_model and not model:
            if status["model"] is None:
                raise Failed(f"--with {program.name}: no model can be asked: `agentos check` says why")
            raise Failed(f"--with {program.name}: it has to be told a model: --model, or [llm] model")
    return [None if program is None else program._replace(model=model, calls=calls) for program in found]


def parse_budget(given: tuple[str, ...]) -> Budget:
    """The budget of a task from ``NAME=AMOUNT``."""
    table: dict[str, object] = {}
    for item in given:
        name, equals, amount = item.partition("=")
        if not equals:
            raise Failed(f"--budget {item}: expected NAME=AMOUNT, such as tokens=50000")
        try:
            table[name] = float(amount) if name == "money" else int(amount)
        except ValueError:
            table[name] = amount
    try:
        return Budget.of(table)
    except ValueError as error:
        raise Failed(f"--{error}") from None
