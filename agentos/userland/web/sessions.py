"""Sessions of browsers: a start token from the operator's terminal becomes a cookie, which outlives the kernel.

They are in a file in ``dashboard/`` of the state directory. All methods block.
"""

import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

import msgspec
from attrs import define, field

from agentos.private_files import read_file, replace_file

from .links import TOKEN_SECONDS, TOKENS, Level, digest_secret

log = logging.getLogger(__name__)

FILE = "sessions.json"
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

    def use(self) -> None:
        self.used = time.time()

    def end(self) -> None:
        self.used = 0.0

    def is_over(self) -> bool:
        return time.time() - self.used > IDLE_SECONDS


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
        with suppress(FileNotFoundError, ValueError):  # msgspec's errors are ValueErrors
            stored = msgspec.json.decode(read_file(place / FILE), type=list[Session])
            sessions._sessions = {session.digest: session for session in stored}
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
        if not 0 <= now - made <= TOKEN_SECONDS or level not in get_args(Level):
            return None
        cookie = secrets.token_urlsafe(32)
        session = Session(secrets.token_hex(4), digest_secret(cookie), level, now, now, browser[:200])  # type: ignore[arg-type]
        self._sessions[session.digest] = session
        self._write()
        return cookie

    def find(self, cookie: str) -> Session | None:
        """The live session with this cookie. Records its use."""
        session = self._sessions.get(digest_secret(cookie))
        if session is None or session.is_over():
            return None
        session.use()
        if session.used - self._written > WRITE_SECONDS:
            self._write()
        return session

    def revoke(self, number: str) -> None:
        """End the session with this id, if there is one."""
        for session in self._sessions.values():
            if session.id == number:
                session.end()
        self._write()

    def live(self) -> Sequence[Session]:
        """Sessions that aren't over, the one used last first."""
        return sorted((one for one in self._sessions.values() if not one.is_over()), key=lambda one: -one.used)

    def _write(self) -> None:
        """Store the sessions. If that fails they last as long as the kernel, and none that has ended comes back."""
        self._written = time.time()
        live = self.live()
        for session in live[MAX_SESSIONS:]:
            session.end()
        kept = live[:MAX_SESSIONS]
        self._sessions = {session.digest: session for session in kept}
        try:
            replace_file(self.place / FILE, msgspec.json.encode(kept).decode())
        except OSError as error:
            log.warning("the dashboard's sessions can't be stored, so they end with the kernel: %s", error.strerror)
            with suppress(OSError):
                (self.place / FILE).unlink()
