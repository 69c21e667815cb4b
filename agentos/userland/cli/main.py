"""The command ``agentos``; the module of a subcommand is imported when it is called."""

import importlib
import itertools
import json
import sys
from collections.abc import Mapping
from keyword import iskeyword
from pathlib import Path

import click

from agentos import __version__

# Headings of the help, with the module of each command; the ten that are needed first stand under the first.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Start here": {
        "new": "kernel.new",
        "run": "kernel.run",
        "status": "kernel.kernel",
        "ps": "agents.agents",
        "logs": "agents.logs",
        "spawn": "agents.spawn",
        "task": "task.task",
        "think": "model.think",
        "approvals": "approvals.approvals",
        "dashboard": "kernel.dashboard",
    },
    "Fleet": {
        "tree": "agents.agents",
        "top": "top.top",
        "events": "agents.events",
        "start": "agents.start_stop",
        "stop": "agents.start_stop",
        "restart": "agents.start_stop",
        "timers": "agents.timers",
        "metrics": "top.metrics",
        "usage": "model.usage",
    },
    "One agent": {
        "inspect": "agents.inspect",
        "trace": "top.trace",
        "record": "recordings.record",
        "recordings": "recordings.recordings",
        "replay": "recordings.replay",
        "exec": "agents.exec",
        "send": "agents.messages",
        "mail": "agents.mail",
        "pause": "agents.agents",
        "resume": "agents.agents",
        "kill": "agents.agents",
    },
    "Model": {"budget": "model.usage"},
    "Permissions and approvals": {
        "permissions": "permissions.permissions",
        "approve": "approvals.approvals",
        "deny": "approvals.approvals",
        "audit": "audit.audit",
    },
    "Files and tasks": {
        "cp": "files.copy",
        "diff": "files.overlays",
        "apply": "files.overlays",
        "undo": "files.overlays",
        "snapshot": "files.snapshots",
        "snapshots": "files.snapshots",
        "rollback": "files.snapshots",
        "fork": "files.fork",
        "image": "files.images",
        "export": "files.archives",
        "import": "files.archives",
        "tasks": "task.tasks",
        "state": "agents.state",
    },
    "Kernel": {
        "init": "kernel.init",
        "check": "kernel.check",
        "doctor": "kernel.doctor",
        "kernels": "kernel.kernels",
        "storage": "kernel.storage",
        "reload": "kernel.reload",
        "shutdown": "kernel.kernel",
        "service": "kernel.service",
    },
    "Tools": {
        "mcp": "mcp.mcp",
        "tools": "mcp.tools",
        "http": "agents.http",
        "call": "agents.messages",
        "demo": "kernel.demo",
        "completion": "completion",
    },
}
COMMANDS = {name: module for group in GROUPS.values() for name, module in group.items()}
CONFIG = Path("agentos.toml")


LOCAL = frozenset({"run", "demo", "new", "init", "check", "doctor", "service", "completion"})  # read no reply
UNREADABLE = (LookupError, TypeError, AttributeError, ValueError)  # what a reply of another form leads to


class LazyGroup(click.Group):
    """A group of commands; a command's module is imported when the command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, COMMANDS))
        for heading, names in GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            width = formatter.width - formatter.indent_increment - longest - 2
            rows = [(name.ljust(longest), command.get_short_help_str(width)) for name, command in commands if command]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"agentos.userland.cli.{COMMANDS[name]}")
        command: click.Command = getattr(module, f"{name}_" if iskeyword(name) else name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if "--json" not in itertools.takewhile(lambda word: word != "--", sys.argv):
                if type(error).show is not click.UsageError.show:  # it is the help of a group
                    raise
                from .common import wrap_error

                head = "Error: "  # click begins the text with it
                text = wrap_error(head + error.format_message()).removeprefix(head)
                raise click.UsageError(text, error.ctx) from None
            reply = {"success": False, "code": "bad_request", "error": error.format_message()}
            click.echo(json.dumps(reply))
            ctx.exit(error.exit_code)
        except Exception as error:
            if sys.flags.dev_mode or not is_unreadable(error):
                raise
            argument = describe_argument(error)
            if argument is None and ctx.invoked_subcommand in LOCAL:
                raise
            from .common import Failed

            failed = Failed(argument or describe_unreadable(error), {} if argument else {"code": "unavailable"})
            failed.as_json = "--json" in itertools.takewhile(lambda word: word != "--", sys.argv)
            raise failed from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from agentos_sdk.clients.suggestions import suggest_name

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"There is no command {args[0]!r}{suggest_name(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


def is_unreadable(error: BaseException) -> bool:
    """Whether a reply of another form than the command expects leads to this error; a group if all of it does."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_unreadable, error.exceptions))
    return isinstance(error, UNREADABLE)


def describe_argument(error: BaseException) -> str | None:
    """The argument whose bytes are no text, if that led to the error: only names of files may have any bytes."""
    if not isinstance(find_first(error), UnicodeEncodeError):
        return None
    for number, word in enumerate(sys.argv[1:], 1):
        if any("\ud800" <= character <= "\udfff" for character in word):
            return f"argument {number}, {word!r:.200}: expected text in UTF-8"
    return None


def find_first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe_unreadable(error: BaseException) -> str:
    """The error in one line, with the place in this program where it was found."""
    import traceback

    error = find_first(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return (
        f"this command can't use what the kernel answered ({type(error).__name__}: {error}, at {where}): "
        "is the kernel of another version? PYTHONDEVMODE=1 shows the traceback"
    )


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="agentos")
def cli() -> None:
    """A microkernel for AI agents: every agent a supervised process.

    Start a kernel with `agentos run`, then look at it and talk to it from another terminal.
    """
