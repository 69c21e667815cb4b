"""What a task has changed in the overlay of its directory: listed at its end, and applied after a y (``--review``)."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from agentos.userland.cli.approvals.approvals import is_terminal
from agentos.userland.cli.common import check_reply, plural, printable
from agentos.userland.cli.files.overlays import COLOURS, LEFT, SIGNS, commit_lines, diff_lines, report
from agentos_sdk import AgentOSClient

MAX_LISTED = 20  # changes at the end


def describe_next(name: str) -> str:
    """What to type next."""
    return (
        f"`agentos diff {name}` shows the changes, `agentos apply {name}` makes them, "
        f"`agentos rollback {name}@start` throws them away"
    )


def change_lines(reply: Mapping[str, Any], directory: str) -> Iterator[str]:
    """The changes that wait, from a reply of DIFF. Those of git itself are only counted.

    First come those that aren't applied with the others, with the reason.
    """
    changes = reply["changes"]
    if not changes:
        yield "no file was changed"
        return
    inner = [one for one in changes if one["path"] == ".git" or one["path"].startswith(".git/")]
    files = [one for one in changes if one not in inner]
    count = len(files) + reply["more"]
    if files:
        yield f"{plural(count, 'change')} wait{'s' if count == 1 else ''}, and {printable(directory)} is as it was:"
    else:
        yield "no file was changed, but for git's own:"
    for one in sorted(files, key=lambda one: not _reason(one))[:MAX_LISTED]:
        yield f"  {SIGNS[one['change']]} {printable(one['path'])}{_reason(one)}"
    if count > MAX_LISTED:
        yield f"  … and {count - MAX_LISTED} more"
    if inner:
        yield from (f"  {line} (only with --also .git)" for line in commit_lines(reply["commits"], ".git"))
        yield f"  and {plural(len(inner), 'file')} in .git"


def _reason(change: Mapping[str, Any]) -> str:
    """Why a change isn't applied with the others, empty if it is."""
    if change["blocked"]:
        return f"  (never applied: {printable(change['blocked'])})"
    if change["obeyed"]:
        return f"  (only with --also {printable(change['root'])}: {printable(change['obeyed'])})"
    return f"  ({printable(change['conflict'])})" if change["conflict"] else ""


def show_diff(client: AgentOSClient, name: str) -> Mapping[str, Any]:
    """Show what a task has changed, with the texts; returns the reply of DIFF."""
    shown: Mapping[str, Any] = check_reply(client.diff(name, content=True))
    for line in diff_lines(shown):
        click.secho(line, fg=COLOURS.get(line[:1]))
    return shown


def review(client: AgentOSClient, name: str) -> int:
    """Show the changes, and apply them after a y on the terminal; returns :data:`LEFT` if something is left."""
    shown = show_diff(client, name)
    if not shown["changes"]:
        return 0
    if not is_terminal() or not confirm("apply these changes?"):
        click.echo(describe_next(name))
        return LEFT
    return apply(client, name, shown["digest"])


def apply(client: AgentOSClient, name: str, digest: str) -> int:
    """Apply what was shown; returns :data:`LEFT` if something is left."""
    return report(check_reply(client.apply(name, digest)), "applied", f" (`agentos undo {name}` takes it back)")


def confirm(question: str) -> bool:
    try:
        return click.confirm(question)
    except click.Abort:
        return False
