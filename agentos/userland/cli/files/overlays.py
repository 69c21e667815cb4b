"""``agentos diff``, ``apply`` and ``undo``: an agent's changes in its overlay of a directory."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import click

from agentos.userland.cli import completed
from agentos.userland.cli.approvals.approvals import is_terminal
from agentos.userland.cli.common import Failed, check_reply, kernel, kernel_options, plural, print_json, printable

SIGNS = {"created": "A", "changed": "M", "deleted": "D", "type": "T"}
COLOURS = {"+": "green", "-": "red", "@": "cyan"}
LEFT = 3  # exit status: something was left
MAX_ALIKE = 3  # paths left for the same reason that are listed one by one
SHORT_DIGEST = 12  # characters of a digest that are shown, and needed
Change = Mapping[str, Any]
Side = Literal["ours", "theirs"]


@click.command()
@click.argument("name", shell_complete=completed.agents)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--stat", is_flag=True, help="List the changes without the texts.")
@kernel_options
def diff(name: str, paths: Sequence[str], stat: bool, socket_path: str | None, as_json: bool) -> None:
    """Show what an agent has changed in its overlay.

    With PATHs, what is at and below them. The directory itself is as it was until `agentos apply`.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.diff(name, list(paths), content=not stat))
    if as_json:
        print_json(reply)
        return
    for line in diff_lines(reply):
        click.secho(line, fg=COLOURS.get(line[:1]))
    if reply["changes"]:
        command = f"agentos apply {shlex.join([name, *paths])} --digest {reply['digest'][:SHORT_DIGEST]}"
        less = "" if all(map(is_plain, reply["changes"])) else ", without what stands under a heading"
        click.echo(f"\nto apply exactly this{less}: {printable(command)}")


@click.command()
@click.argument("name", shell_complete=completed.agents)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--also", multiple=True, metavar="NAME", help="Apply a name that tools of the host obey, too.")
@click.option("--ours", multiple=True, metavar="PATH", help="Of a conflict take the agent's version.")
@click.option("--theirs", multiple=True, metavar="PATH", help="Of a conflict keep the host's version.")
@click.option("--digest", metavar="DIGEST", help="Apply what `agentos diff` has shown with this digest.")
@click.option("--yes", is_flag=True, help="Apply what is there now, without asking.")
@kernel_options
def apply(
    name: str,
    paths: Sequence[str],
    also: Sequence[str],
    ours: Sequence[str],
    theirs: Sequence[str],
    digest: str | None,
    yes: bool,
    socket_path: str | None,
    as_json: bool,
) -> None:
    """Make an agent's changes in the host's directory.

    With PATHs, those at and below them. Lists them and asks, if neither --digest nor --yes is given. The exit status
    is 3 if something was left: conflicts, and names that tools of the host obey, without --also.
    """
    resolve: dict[str, Side] = {**dict.fromkeys(ours, "ours"), **dict.fromkeys(theirs, "theirs")}
    with kernel(socket_path) as client:
        shown = check_reply(client.diff(name, list(paths)))
        if digest is not None and (len(digest) < SHORT_DIGEST or not shown["digest"].startswith(digest)):
            raise Failed(f"the changes aren't those with the digest {digest}: look again with `agentos diff {name}`")
        if digest is None and not yes and not confirm(shown, name):
            return
        reply = check_reply(client.apply(name, shown["digest"], list(paths), also=list(also), resolve=resolve))
    sys.exit(report(reply, "applied", f" (`agentos undo {name}` takes it back)", as_json))


@click.command()
@click.argument("name", shell_complete=completed.agents)
@click.option("--apply", "apply_id", metavar="ID", help="Undo this apply and not the last one.")
@kernel_options
def undo(name: str, apply_id: str | None, socket_path: str | None, as_json: bool) -> None:
    """Take back the last apply of an agent's changes.

    What the host has changed since stays as it is, and the exit status is 3.
    """
    with kernel(socket_path) as client:
        reply = check_reply(client.undo(name, apply_id))
    sys.exit(report(reply, "undone", "", as_json))


def confirm(shown: Mapping[str, Any], name: str) -> bool:
    """List the changes and ask; fails without a terminal."""
    if not is_terminal():
        advice = f"look with `agentos diff {name}`, which ends with the command that applies what it shows"
        raise Failed(f"there is no terminal to ask on: {advice}, or say --yes")
    for line in list_lines(shown):
        click.echo(line)
    try:
        return bool(shown["changes"]) and click.confirm("apply these changes?")
    except click.Abort:
        return False


def report(reply: Mapping[str, Any], done: str, advice: str, as_json: bool = False) -> int:
    """Print what was done, with advice, and what was left; returns the exit status."""
    if as_json:
        print_json(reply)
    else:
        click.echo(f"{plural(len(reply[done]), 'path')} {done}{advice if reply[done] else ''}")
        for reason in dict.fromkeys(left["reason"] for left in reply["conflicts"]):
            paths = [left["path"] for left in reply["conflicts"] if left["reason"] == reason]
            for path in paths if len(paths) <= MAX_ALIKE else paths[:1]:
                more = f" and {len(paths) - 1} more" if len(paths) > MAX_ALIKE else ""
                hint = ": `git reset` makes it anew" if is_stale_index(path, reason) else ""
                click.echo(f"  left: {printable(path)}{more}: {printable(reason)}{hint}")
        if reply["more"]:
            click.echo(f"  and {reply['more']} more that aren't listed")
    return LEFT if reply["conflicts"] else 0


def is_stale_index(path: str, reason: str) -> bool:
    """Whether it is git's index, which isn't what the commits need although these were wanted."""
    return path.endswith(".git/index") and "--also" not in reason


def diff_lines(reply: Mapping[str, Any]) -> Iterator[str]:
    """The list, and then the texts. Each line of a file begins with a sign, so that none can look like ours."""
    yield from list_lines(reply)
    for change in reply["changes"]:
        if change["diff"] is not None and not is_commit_data(change):
            yield ""
            yield f"{SIGNS[change['change']]} {printable(change['path'])}"
            yield from (printable(line) for line in change["diff"].split("\n")[:-1])


def list_lines(reply: Mapping[str, Any]) -> Iterator[str]:
    """The changes, and under headings of their own those that aren't applied with the others."""
    changes: Sequence[Change] = reply["changes"]
    if not changes:
        yield "no changes"
    yield from map(describe, filter(is_plain, changes))
    for field, heading in (
        ("conflict", "the host has changed these, too; --ours or --theirs decides:"),
        ("blocked", "these are never applied:"),
    ):
        if found := [one for one in changes if one[field]]:
            yield heading
            yield from (f"{describe(one)}: {printable(one[field])}" for one in found)
    for root in dict.fromkeys(one["root"] for one in changes if one["obeyed"]):
        found = [one for one in changes if one["root"] == root]
        yield f"only --also {printable(root)} applies this: {printable(found[0]['obeyed'])}"
        yield from commit_lines(reply["commits"], root)
        own = [one for one in found if is_commit_data(one)]
        yield from (describe(one) for one in found if one not in own)
        if own:
            yield f"{plural(len(own), 'file')} of git's own"
    if reply["more"]:
        yield f"and {reply['more']} more: name PATHs to see them"


def is_plain(change: Change) -> bool:
    """Whether it is applied with the others."""
    return not (change["obeyed"] or change["conflict"] or change["blocked"])


def is_commit_data(change: Change) -> bool:
    """Whether it is what git's commits and branches consist of; its name to give is that of the repository."""
    return (change["root"] or "").endswith(".git") and change["path"] != change["root"]


def commit_lines(commits: Sequence[Mapping[str, Any]], root: str) -> Iterator[str]:
    """``2 commits on main`` for each branch of the repository whose name to give is ``root``."""
    for one in commits:
        if f"{one['repository']}/.git".lstrip("/") == root:
            lost = f", and it loses {plural(one['dropped'], 'commit')} of yours" if one["dropped"] else ""
            yield f"{plural(one['commits'], 'commit')} on {printable(one['branch'])}{lost}"


def describe(change: Change) -> str:
    """One change in a line: its sign, the path, and what it is."""
    size = f", {change['size']} bytes" if change["kind"] == "file" else ""
    what = "" if change["change"] == "deleted" else f"  {change['kind']} {change['mode']}{size}"
    return f"{SIGNS[change['change']]} {printable(change['path'])}{what}"
