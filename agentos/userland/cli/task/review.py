"""``agentos task --review``: shows what a task has changed in its copy of a directory, and applies it after a y."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from operator import eq

import click

from agentos.userland.cli.approvals.approvals import is_terminal
from agentos.userland.cli.common import plural, printable
from agentos.userland.task.directory import TaskDirectory
from agentos.userland.task.saved_files import Change, find_entry, read_content

from .lines import SIGNS

MAX_SHOWN = 256 << 10  # bytes of a file whose lines are shown
MAX_COMPARED = 2000  # lines between the first and the last changed one; of more a search could take hours
CONTEXT = 3  # lines around a change
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
            yield from map(printable, find_hunks(before, after))
        else:
            yield f"{SIGNS[change.what]} {path}: {printable(shown(before))} -> {printable(shown(after))}"


def find_hunks(before: list[str], after: list[str]) -> Iterator[str]:
    """The changes as a unified diff has them; a large change is one hunk, without a search within it."""
    same = len([*takewhile(bool, map(eq, before, after))])
    end = len([*takewhile(bool, map(eq, before[same:][::-1], after[same:][::-1]))])
    if same == len(before) == len(after):
        return
    start, tail = max(0, same - CONTEXT), max(0, end - CONTEXT)
    old, new = before[start : len(before) - tail], after[start : len(after) - tail]
    if max(len(old), len(new)) <= MAX_COMPARED:
        groups = list(SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT))
    else:
        i, j, m = same - start, len(old) - (end - tail), len(new) - (end - tail)
        groups = [[("equal", 0, i, 0, i), ("replace", i, j, i, m), ("equal", j, len(old), m, len(new))]]
    for group in groups:
        (_, i, _, k, _), (_, _, j, _, m) = group[0], group[-1]
        yield f"@@ -{start + i + 1},{j - i} +{start + k + 1},{m - k} @@"
        for tag, i, j, k, m in group:
            yield from (f"{' ' if tag == 'equal' else '-'}{line}" for line in old[i:j])
            yield from (f"+{line}" for line in new[k:m] if tag != "equal")


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
    *lines, rest = text.split("\n")  # at no other character: programs take only this one for a line's end
    return [*lines, *([rest, "\\ no newline at the end"] if rest else [])]
