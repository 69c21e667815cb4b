"""``agentos task --review``: shows what a task has changed in its copy of a directory, and applies it after a y."""

import difflib
from collections.abc import Iterator, Sequence

import click

from agentos.userland.cli.approvals.approvals import is_terminal
from agentos.userland.cli.common import plural, printable
from agentos.userland.task.directory import TaskDirectory
from agentos.userland.task.saved_files import Change, find_entry, read_content

from .lines import SIGNS

MAX_SHOWN = 256 << 10  # bytes of a file whose lines are shown
COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def review(directory: TaskDirectory, name: str) -> int:
    """Show the changes and ask; returns 1 if some of them couldn't be applied."""
    changes = directory.proposed()
    if not changes:
        click.echo(f"nothing is to be changed in {printable(directory.path)}")
        return 0
    show_diff(directory.path, directory.workspace, changes)
    if not is_terminal() or not confirm(f"apply these changes to {printable(directory.path)}?"):
        click.echo(f"{printable(directory.path)} is as it was; `agentos task --resume {name}` asks again")
        return 0
    applied = directory.apply()
    click.echo(f"{plural(len(applied.done), 'file')} changed (`agentos task undo {name}` restores all)")
    for change in applied.left:
        click.echo(f"  {SIGNS[change.what]} {printable(change.path)} was changed there meanwhile, and is left as it is")
    return 1 if applied.left else 0


def show_diff(before_in: str, after_in: str, changes: Sequence[Change]) -> None:
    for line in diff_lines(before_in, after_in, changes):
        click.secho(line, fg=COLOURS.get(line[:1]))


def confirm(question: str) -> bool:
    try:
        return click.confirm(question)
    except click.Abort:
        return False


def diff_lines(before_in: str, after_in: str, changes: Sequence[Change]) -> Iterator[str]:
    """The changes between two directories, as a unified diff.

    Each line of a file begins with a sign, so that none can look like ours.
    """
    for change in changes:
        path = printable(change.path)
        before, after = (describe_file(top, change.path) for top in (before_in, after_in))
        if isinstance(before, list) and isinstance(after, list):
            yield f"--- {path if change.what != 'added' else '/dev/null'}"
            yield f"+++ {path if change.what != 'removed' else '/dev/null'}"
            yield from mode_lines(before_in, after_in, change.path)
            for line in list(difflib.unified_diff(before, after, lineterm=""))[2:]:
                yield printable(line)
        else:
            yield f"{SIGNS[change.what]} {path}: {printable(shown(before))} -> {printable(shown(after))}"


def mode_lines(before_in: str, after_in: str, path: str) -> Iterator[str]:
    """The permissions of a file, if they change."""
    before, after = (find_entry(top, path) for top in (before_in, after_in))
    if before is not None and after is not None and before.mode != after.mode:
        yield f"@@ mode {before.mode & 0o7777:o} -> {after.mode & 0o7777:o} @@"


def shown(content: str | list[str]) -> str:
    return content if isinstance(content, str) else "text" if content else "nothing"


def describe_file(top: str, path: str) -> str | list[str]:
    """A text file's lines, no lines if there is no file, otherwise what it is."""
    entry = find_entry(top, path)
    if entry is None:
        return []
    if not entry.is_file:
        return f"a link to {entry.target}" if entry.is_link else "a directory" if entry.is_directory else "no file"
    try:
        data = read_content(top, path, MAX_SHOWN + 1)
    except OSError as error:  # an agent may have taken our permissions
        return f"a file that can't be read: {error.strerror}"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if len(data) > MAX_SHOWN or "\0" in text:
        return f"{entry.size} bytes"
    return [*text.splitlines(), *([] if text.endswith("\n") or not text else ["\\ no newline at the end"])]
