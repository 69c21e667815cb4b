"""Links to the dashboard: each has a start token, which a browser may use once to log in.

A token is a file in ``dashboard/tokens/`` of the state directory, named by the token's SHA-256. Only the kernel's user
can write there, so no other user can make a link. All functions block.
"""

import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Literal

from agentos.private_files import hold_directory

DIRECTORY = "dashboard"  # in the state directory
LISTENING = "listening"  # the file in it that has the dashboard's URL while the dashboard is served
TOKENS = "tokens"
TOKEN_SECONDS = 600.0  # for which a start token may be used
MAX_TOKENS = 64  # unused ones; the oldest are removed

Level = Literal["unrestricted", "readonly"]


def find_link(state_dir: Path, level: Level) -> str | None:
    """A new link for the kernel with this state directory; None if it serves no dashboard. Raises ``OSError``."""
    try:
        url = json.loads((state_dir / DIRECTORY / LISTENING).read_bytes())["url"]
    except FileNotFoundError:
        return None
    return make_link(url, state_dir, level)


def make_link(url: str, state_dir: Path, level: Level) -> str:
    """A link to the dashboard at ``url``, with a new start token. Raises ``OSError``."""
    token = secrets.token_urlsafe(24)
    with hold_directory(state_dir) as state, hold_directory(state / DIRECTORY) as place:
        tokens = place / TOKENS
        tokens.mkdir(mode=0o700, exist_ok=True)
        newest_first = sorted(tokens.iterdir(), key=lambda file: -file.stat().st_mtime)
        for old in newest_first[MAX_TOKENS - 1 :]:
            old.unlink(missing_ok=True)
        fd = os.open(tokens / digest_secret(token), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(level)
    return f"{url}/start?token={token}"


def digest_secret(secret: str) -> str:
    """What is kept of a token or a cookie: its SHA-256 in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()
