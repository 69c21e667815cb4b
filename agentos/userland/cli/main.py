"""The command ``agentos``; the module of a subcommand is imported when it is called."""

import importlib
import itertools
import json
import sys
from pathlib import Path

import click

from agentos import __version__

COMMANDS = {
    "new": "new",
    "init": "init",
    "demo": "demo",
    "run": "run",
    "check": "check",
    "doctor": "doctor",
    "kernels": "kernels",
    "ps": "agents",
    "tree": "agents",
    "top": "top",
    "inspect": "inspect",
    "spawn": "spawn",
    "exec": "exec",
    "cp": "copy",
    "start": "start_stop",
    "stop": "start_stop",
    "restart": "start_stop",
    "status": "kernel",
    "shutdown": "kernel",
    "reload": "reload",
    "kill": "agents",
    "pause": "agents",
    "resume": "agents",
    "logs": "logs",
    "events": "events",
    "send": "messages",
    "task": "task",
    "tasks": "tasks",
    "state": "state",
    "think": "think",
    "http": "http",
    "tools": "tools",
    "dashboard": "dashboard",
    "mcp": "mcp",
    "usage": "usage",
    "metrics": "metrics",
    "budget": "usage",
    "permissions": "permissions",
    "approvals": "approvals",
    "approve": "approvals",
    "deny": "approvals",
    "audit": "audit",
    "trace": "trace",
    "call": "messages",
    "service": "service",
    "completion": "completion",
}
CONFIG = Path("agentos.toml")


LOCAL = frozenset({"run", "demo", "new", "init", "check", "doctor", "service", "completion"})  # read no reply
UNREADABLE = (LookupError, TypeError, AttributeError, ValueError)  # what a reply of another form leads to


class LazyGroup(click.Group):
    """A group of commands; a command's module is imported when the command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"agentos.userland.cli.{COMMANDS[name]}")
        command: click.Command = getattr(module, name)
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
            if ctx.invoked_subcommand in LOCAL or sys.flags.dev_mode or not is_unreadable(error):
                raise
            from .common import Failed

            failed = Failed(describe_unreadable(error), {"code": "unavailable"})
            failed.as_json = "--json" in itertools.takewhile(lambda word: word != "--", sys.argv)
            raise failed from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from agentos_sdk.suggestions import suggest_name

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"There is no command {args[0]!r}{suggest_name(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


def is_unreadable(error: BaseException) -> bool:
    """Whether a reply of another form than the command expects leads to this error; a group if all of it does."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_unreadable, error.exceptions))
    return isinstance(error, UNREADABLE)


def describe_unreadable(error: BaseException) -> str:
    """The error in one line, with the place in this program where it was found."""
    import traceback

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
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
