"""What the state directory holds, by owner and kind. Everything here blocks.

:data:`KINDS` has a line for each kind of file, and :data:`CONTENTS` one for each kind of row in the database: a new
kind is a new line. Files that belong to no line are ``other``, and what no line counts of the database is ``database``.
"""

import os
import sqlite3
import stat
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from agentos.sandbox.watch.tree_usage import DIRECTORY_FLAGS, Usage, measure_tree
from agentos.services.logs.files import read_name
from agentos.threads import check_cancelled

KERNEL: Final = "kernel"  # the owner of what belongs to no agent
OPERATOR: Final = "operator"  # of what it has stored itself
DATABASE: Final = "database"
OTHER: Final = "other"

OwnerOf = Callable[[str], str]


class Kind(NamedTuple):
    """Files of one kind: a file or directory ``place`` in the state directory.

    ``owner_of`` takes the name of an entry in that directory; without it the kernel owns all of it.
    """

    name: str
    place: str
    owner_of: OwnerOf | None = None


class Content(NamedTuple):
    """Rows of one kind in the database; ``owner`` and ``size`` are SQL expressions, the size of one row in bytes."""

    kind: str
    table: str
    owner: str
    size: str


class Held(NamedTuple):
    """What an owner holds of one kind: ``size`` is bytes on disk, ``entries`` counts files and directories, or rows."""

    owner: str
    kind: str
    size: int
    entries: int


def _owner_of_log(name: str) -> str:
    key = read_name(name)
    return key.name if key is not None else KERNEL


def _owner_of_recording(name: str) -> str:
    """That of ``coder-1.recording`` is the agent ``coder``; what the operator has begun of several is its own."""
    agent = name.removesuffix(".recording").rpartition("-")[0]
    return OPERATOR if agent in ("", "recording") else agent


KINDS: Final[Sequence[Kind]] = (
    Kind("workspaces", "workspaces", lambda name: name.removesuffix(".img")),
    Kind("layers", "layers", str),  # of overlays, by agent
    Kind("snapshots", "snapshots"),  # the files of a snapshot are layers
    Kind("images", "images"),
    Kind("logs", "logs", _owner_of_log),
    Kind("recordings", "recordings", _owner_of_recording),
    Kind("audit", "audit"),
    Kind("events", "events"),
    Kind("removed", "removed"),
    Kind("mcp", "mcp"),
    Kind("dashboard", "dashboard"),
    *(Kind(DATABASE, f"agentos.db{end}") for end in ("", "-wal", "-shm")),
)
CONTENTS: Final[Sequence[Content]] = (
    Content("state", "state", "account", "size"),
    Content("mail", "mail", "mailbox", "length(body)"),
    Content("snapshots", "snapshot_mail", "mailbox", "length(body)"),
    Content("approvals", "approvals", f"'{KERNEL}'", "length(pending)"),
    Content("approvals", "answers", f"'{KERNEL}'", "length(answer)"),
)


def measure_storage(state_dir: Path) -> list[Held]:
    """What the directory holds, the largest first. Raises ``OSError``, ``sqlite3.Error``.

    What appears or goes meanwhile may count or not. Not for the kernel's process: SQLite loses its locks on a file when
    the file is closed a second time in a process.
    """
    files, rows = measure_files(state_dir), _measure_rows(state_dir / "agentos.db")
    counted = sum(held.size for held in rows)
    rest = [held._replace(size=max(0, held.size - counted)) if held.kind == DATABASE else held for held in files]
    return sorted([*rest, *rows], key=lambda held: (-held.size, held.owner, held.kind))


def measure_files(state_dir: Path) -> list[Held]:
    """The files by owner and kind, without a look into the database. Raises ``OSError``."""
    found = defaultdict[tuple[str, str], list[int]](lambda: [0, 0])
    for name in os.listdir(state_dir):
        kind = next((kind for kind in KINDS if kind.place == name), Kind(OTHER, name))
        for owner, path in _list_owned(state_dir / name, kind):
            check_cancelled()
            with suppress(FileNotFoundError):
                usage = measure_path(path)
                found[owner, kind.name][0] += usage.size
                found[owner, kind.name][1] += usage.inodes
    return [Held(*owned, size, entries) for owned, (size, entries) in found.items()]


def _list_owned(path: Path, kind: Kind) -> list[tuple[str, Path]]:
    """What to measure, with its owner."""
    if kind.owner_of is None or not path.is_dir() or path.is_symlink():
        return [(KERNEL, path)]
    return [(kind.owner_of(name), path / name) for name in os.listdir(path)]


def measure_path(path: Path) -> Usage:
    """The size of a file or a tree on disk; no symlink is followed.

    Without root an agent may have closed directories of its workspace to its user, and so to us: those count alone.
    """
    status = os.lstat(path)
    own = Usage(status.st_blocks * 512, 1)
    if not stat.S_ISDIR(status.st_mode):
        return own
    try:
        fd = os.open(path, DIRECTORY_FLAGS)
    except PermissionError:
        return own
    try:
        return measure_tree(fd, sys.maxsize, sys.maxsize)
    finally:
        os.close(fd)


def _measure_rows(path: Path) -> list[Held]:
    """The rows in the database, also while a kernel writes to it; none without a database."""
    if not path.exists() or not path.stat().st_size:
        return []
    found = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    # Without a write-ahead log there is no writer, and a normal read-only connection would leave one.
    how = "mode=ro" if os.path.exists(f"{path}-wal") else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for kind, table, owner, size in CONTENTS:
            if table in tables:
                query = f"SELECT {owner}, count(*), sum({size}) FROM {table} GROUP BY 1"  # noqa: S608 - our own names
                for name, count, total in connection.execute(query):
                    found[0][name or OPERATOR, kind] += total
                    found[1][name or OPERATOR, kind] += count
    return [Held(*owned, size, found[1][owned]) for owned, size in found[0].items()]
