"""Links to the dashboard: each has a key, by which a browser may log in once.

A link is a file in ``dashboard/links/`` of the state directory, named by the link's number, with what it is for, its
key, the run of the kernel that it is for, and its end. Only the kernel's user can write there, so no other user can
make a link. The session that it begins has its number.

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

Role = Literal["operator", "viewer", "viewer-with-contents", "approver"]  # of others than the operator: ``LINK_SETS``


class Link(NamedTuple):
    """``until``: seconds since the epoch at which its session ends; None: when it isn't used any more."""

    role: Role
    key: str
    until: float | None


@contextmanager
def publish_url(place: Path, url: str, run: str) -> Iterator[None]:
    """Have :func:`find_link` find this URL, until the block or the process ends. Raises ``OSError``."""
    fresh = place / f"{LISTENING}.new"
    with open(open_file(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{url} {run}")
        file.flush()
        os.replace(fresh, place / LISTENING)  # so what is locked never has the URL of a former run
        try:
            yield
        finally:
            file.truncate(0)


def find_link(state_dir: Path, role: Role, until: float | None = None) -> str | None:
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
    return make_link(url, run, state_dir, role, until) if url else None


def make_link(url: str, run: str, state_dir: Path, role: Role, until: float | None = None) -> str:
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
            file.write(f"{role} {key} {run} {'never' if until is None else until}")
    return f"{url}/?link={number}#{key}"


def read_link(place: Path, number: str, run: str) -> Link | None:
    """The link with this number in ``dashboard/``; None if it was used, is too old, or is for another run."""
    file, now = place / LINKS / number, time.time()
    try:
        role, key, intended, end = read_file(file).split(" ")
        until, age = None if end == "never" else float(end), now - file.stat().st_mtime
    except (OSError, ValueError):
        return None
    if role not in get_args(Role) or intended != run or not 0 <= age <= LINK_SECONDS or (until or now) < now:
        return None
    return Link(role, key, until)  # type: ignore[arg-type]


def list_unused(place: Path, run: str) -> Iterator[tuple[str, Link]]:
    """The links that no browser has used yet, with their numbers."""
    with suppress(FileNotFoundError):  # none was made
        for name in sorted(os.listdir(place / LINKS)):
            if (link := read_link(place, name, run)) is not None:
                yield name, link


def use_up(place: Path, number: str) -> bool:
    """Whether the link was there: of two browsers with one link only one passes here."""
    try:
        (place / LINKS / number).unlink()
    except FileNotFoundError:
        return False
    return True
