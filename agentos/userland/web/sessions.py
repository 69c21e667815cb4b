"""Sessions of browsers: a start token from the operator's terminal becomes a cookie, which outlives the kernel.

They are in a file in ``dashboard/`` of the state directory. All methods block.
"""

import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, define, field

from .links import TOKEN_SECONDS, TOKENS, Level, digest_secret

IDLE_SECONDS = 12 * 3600.0  # after its last use a session is over
MAX_SESSIONS = 64  # the ones used longest ago are dropped
WRITE_SECONDS = 60.0  # after which a session's last use is written again


@define
class Session:
    """A browser that has logged in. ``id`` is public; ``digest`` is the SHA-256 of the cookie's value, in hex.

    Times are seconds since the epoch.
    """

    id: str
    digest: str
    level: Level
    started: float
    used: float
    browser: str


@define(eq=False)
class Sessions:
    """The sessions of one kernel; ``place`` is ``dashboard/`` of its state directory."""

    place: Path
    _sessions: dict[str, Session] = field(factory=dict)  # by digest
    _written: float = 0.0

    @classmethod
    def load(cls, place: Path) -> "Sessions":
        """The sessions of the last run; none if the file is missing or damaged: browsers can log in again."""
        sessions = cls(place)
        try:
            stored: list[dict[str, Any]] = json.loads((place / "sessions.json").read_bytes())
            sessions._sessions = {row["digest"]: Session(**row) for row in stored}
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            pass
        return sessions

    def redeem(self, token: str, browser: str) -> str | None:
        """The cookie of a new session for a start token; None if the token is wrong, used, or too old."""
        file = self.place / TOKENS / digest_secret(token)
        try:
            level, made = file.read_text(), file.stat().st_mtime
            file.unlink()  # of two browsers with one token only one passes here
        except FileNotFoundError:
            return None
        now = time.time()
        if not 0 <= now - made <= TOKEN_SECONDS or level not in ("unrestricted", "readonly"):
            return None
        cookie = secrets.token_urlsafe(32)
        session = Session(secrets.token_hex(4), digest_secret(cookie), level, now, now, browser[:200])  # type: ignore[arg-type]
        self._sessions[session.digest] = session
        self._write()
        return cookie

    def find(self, cookie: str) -> Session | None:
        """The live session with this cookie. Records its use."""
        session = self._sessions.get(digest_secret(cookie))
        now = time.time()
        if session is None or now - session.used > IDLE_SECONDS:
            return None
        session.used = now
        if now - self._written > WRITE_SECONDS:
            self._write()
        return session

    def revoke(self, number: str) -> None:
        """End the session with this id, if there is one."""
        self._sessions = {digest: session for digest, session in self._sessions.items() if session.id != number}
        self._write()

    def live(self) -> Sequence[Session]:
        """Sessions that aren't over, the one used last first."""
        oldest = time.time() - IDLE_SECONDS
        return sorted((one for one in self._sessions.values() if one.used > oldest), key=lambda one: -one.used)

    def _write(self) -> None:
        self._written = time.time()
        kept = self.live()[:MAX_SESSIONS]
        self._sessions = {session.digest: session for session in kept}
        new = self.place / "sessions.json.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump([asdict(session) for session in kept], file)
        new.rename(self.place / "sessions.json")
