"""Links to the dashboard: each has a key, by which a browser may log in once.

A link is a file in ``dashboard/links/`` of the state directory, named by the link's number, with its level, its key and
the run of the kernel that it is for. Only the kernel's user can write there, so no other user can make a link.

The link is ``URL/?link=NUMBER#KEY``: browsers send what is behind ``#`` to no server. All functions block.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from agentos.private_files import hold_directory, open_file, read_file

DIRECTORY = "dashboard"  # in the state directory
LISTENING = "listening"  # the file in it with the dashboard's URL and run, locked while the dashboard is served
LINKS = "links"
LINK_SECONDS = 600.0  # for which a link may be used
MAX_LINKS = 64  # unused ones; the oldest are removed

Level = Literal["unrestricted", "readonly"]


class Link(NamedTuple):
    level: Level
    key: str


@contextmanager
def publish_url(place: Path, url: str, run: str) -> Iterator[None]:
    """Have :func:`find_link` find this URL, until the block or the process ends. Raises ``OSError``."""
    with open(open_file(place / LISTENING, os.O_RDWR | os.O_CREAT), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits for one that is looking whether it is locked
        file.truncate()
        file.write(f"{url} {run}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def find_link(state_dir: Path, level: Level) -> str | None:
    """A new link for the kernel with this state directory; None if it serves no dashboard. Raises ``OSError``."""
    try:
        with open(open_file(state_dir / DIRECTORY / LISTENING, os.O_RDONLY)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                url, _, run = file.read().partition(" ")
            else:
                url = ""  # left by a kernel that was killed; another program may have the port by now
    except FileNotFoundError:
        return None
    return make_link(url, run, state_dir, level) if url else None


def make_link(url: str, run: str, state_dir: Path, level: Level) -> str:
    """A link to the dashboard at ``url``, for this run of the kernel only. Raises ``OSError``."""
    number, key = secrets.token_hex(8), secrets.token_urlsafe(32)
    with (
        hold_directory(state_dir) as state,
        hold_directory(state / DIRECTORY) as place,
        hold_directory(place / LINKS) as links,
    ):
        made = {}
        for found in os.scandir(links):
            with suppress(FileNotFoundError):  # just used
                made[found.name] = found.stat().st_mtime
        for old in sorted(made, key=made.__getitem__)[: -(MAX_LINKS - 1)]:
            (links / old).unlink(missing_ok=True)
        fd = os.open(links / number, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{level} {key} {run}")
    return f"{url}/?link={number}#{key}"


def read_link(place: Path, number: str, run: str) -> Link | None:
    """The link with this number in ``dashboard/``; None if it was used, is too old, or is for another run."""
    file = place / LINKS / number
    try:
        level, key, intended = read_file(file).split(" ")
        age = time.time() - file.stat().st_mtime
    except (FileNotFoundError, ValueError):
        return None
    return Link(level, key) if level in get_args(Level) and intended == run and 0 <= age <= LINK_SECONDS else None  # type: ignore[arg-type]


def use_up(place: Path, number: str) -> bool:
    """Whether the link was there: of two browsers with one link only one passes here."""
    try:
        (place / LINKS / number).unlink()
    except FileNotFoundError:
        return False
    return True
