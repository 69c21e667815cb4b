"""Links to the dashboard: each has a start token, which a browser may use once to log in.

A token is a file in ``dashboard/tokens/`` of the state directory, named by the token's SHA-256. Only the kernel's user
can write there, so no other user can make a link. All functions block.
"""

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from agentos.private_files import hold_directory, open_file

DIRECTORY = "dashboard"  # in the state directory
LISTENING = "listening"  # the file in it with the dashboard's URL, locked while the dashboard is served
TOKENS = "tokens"
TOKEN_SECONDS = 600.0  # for which a start token may be used
MAX_TOKENS = 64  # unused ones; the oldest are removed

Level = Literal["unrestricted", "readonly"]


@contextmanager
def publish_url(place: Path, url: str) -> Iterator[None]:
    """Have :func:`find_link` find this URL, until the block or the process ends. Raises ``OSError``."""
    with open(open_file(place / LISTENING, os.O_RDWR | os.O_CREAT), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits for one that is looking whether it is locked
        file.truncate()
        file.write(url)
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
                url = file.read()
            else:
                url = ""  # left by a kernel that was killed; another program may have the port by now
    except FileNotFoundError:
        return None
    return make_link(url, state_dir, level) if url else None


def make_link(url: str, state_dir: Path, level: Level) -> str:
    """A link to the dashboard at ``url``, with a new start token. Raises ``OSError``."""
    token = secrets.token_urlsafe(24)
    with (
        hold_directory(state_dir) as state,
        hold_directory(state / DIRECTORY) as place,
        hold_directory(place / TOKENS) as tokens,
    ):
        made = {}
        for found in os.scandir(tokens):
            with suppress(FileNotFoundError):  # just used
                made[found.name] = found.stat().st_mtime
        for old in sorted(made, key=made.__getitem__)[: -(MAX_TOKENS - 1)]:
            (tokens / old).unlink(missing_ok=True)
        fd = os.open(tokens / digest_secret(token), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(level)
    return f"{url}/start?token={token}"


def digest_secret(secret: str) -> str:
    """What is kept of a token or a cookie: its SHA-256 in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()
