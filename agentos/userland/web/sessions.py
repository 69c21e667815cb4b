"""Sessions of browsers: a link from the operator's terminal begins one, and its pages prove that they hold its keys.

They are in a file in ``dashboard/`` of the state directory: so a page that stays open goes on after a restart of the
kernel. All methods block, but :meth:`Session.use`.
"""

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from attrs import define, field

from agentos.private_files import replace_file
from agentos.structs import learn, read_json

from .links import Link, Role, list_unused, read_link, use_up
from .proof import Key, Opening

log = logging.getLogger(__name__)

FILE = "sessions.json"
IDLE_SECONDS = 12 * 3600.0  # after a person has used it last, a session is over
MAX_SESSIONS = 64  # the ones used longest ago are dropped
WRITE_SECONDS = 60.0  # after which a session's last use is written again


@define
class Session:
    """A browser that has logged in. ``id`` is its link's number; keys are derived from ``secret``, which it never gets.

    ``until``: when it ends, used or not; None: :data:`IDLE_SECONDS` after a person has used it last.
    ``listens``: the addresses at which it began. At others a stranger may have those, and pass on what is proven.
    Times are seconds since the epoch. ``ended``: never used again, whatever a page says at that moment.
    """

    id: str
    secret: str
    role: Role
    until: float | None
    listens: str
    started: float
    used: float
    browser: str
    ended: bool = False

    def use(self) -> None:
        """Note that a person uses it."""
        if not self.is_over():
            self.used = time.time()

    def end(self) -> None:
        self.ended = True

    @property
    def caller_name(self) -> str:
        """The name of its calls in the audit log: it has the link's id, and what the link is for."""
        return f"web:{self.id}" if self.role == "operator" else f"web:{self.role}:{self.id}"

    @property
    def seconds_left(self) -> float:
        over = self.used + IDLE_SECONDS if self.until is None else self.until
        return -1.0 if self.ended else over - time.time()

    def is_over(self) -> bool:
        return self.seconds_left < 0

    def derive(self, use: Literal["run", "tab"], salt: str) -> Key:
        secret = hmac.digest(self.secret.encode(), f"{use} {salt}".encode(), hashlib.sha256).hex()
        return Key(use, self.id, salt, secret)


learn(list[Session])


@define(eq=False)
class Sessions:
    """The sessions of one kernel; ``place`` is ``dashboard/`` of its state directory, ``run`` the name of its run."""

    place: Path
    run: str
    listens: str
    _sessions: dict[str, Session] = field(factory=dict)  # by id
    _written: float = 0.0

    @classmethod
    def load(cls, place: Path, run: str, listens: str) -> "Sessions":
        """The sessions of the last run at the same addresses; none if the file is missing or damaged."""
        sessions = cls(place, run, listens)
        with suppress(FileNotFoundError, ValueError):  # msgspec's errors are ValueErrors
            stored = read_json(place / FILE, list[dict[str, Any]])
            for one in stored:
                if (level := one.pop("level", None)) is not None:  # as sessions were written before links had roles
                    one |= {"role": "viewer" if level == "readonly" else "operator", "until": None}
            found = msgspec.convert(stored, list[Session])
            sessions._sessions = {one.id: one for one in found if one.listens == listens}
        return sessions

    def find_key(self, opening: Opening) -> str | None:
        """The key that a page names; None if it isn't known, or not good any more."""
        if opening.use == "link":
            link = read_link(self.place, opening.id, self.run) if opening.id else None
            return link.key if link is not None else None
        session = self.find(opening.id)
        if session is None or (opening.use == "run" and opening.salt != self.run):
            return None
        return session.derive(opening.use, opening.salt).key

    def enter(self, opening: Opening, browser: str) -> tuple[Session, Sequence[Key]] | None:
        """The session of a page that has proven itself, and new keys for it. None if it ended, or the link is used."""
        if opening.use == "link":
            link = read_link(self.place, opening.id, self.run)
            session = self._begin(opening.id, link, browser) if link and use_up(self.place, opening.id) else None
        else:
            session = self.find(opening.id)
        if session is None:
            return None
        fresh = () if opening.use == "tab" else (session.derive("tab", secrets.token_hex(16)),)
        return session, (session.derive("run", self.run), *fresh) if opening.use == "link" else fresh

    def _begin(self, number: str, link: Link, browser: str) -> Session:
        now, secret = time.time(), secrets.token_hex(32)
        session = Session(number, secret, link.role, link.until, self.listens, now, now, browser[:200])
        self._sessions[session.id] = session
        self._write()
        return session

    def find(self, number: str) -> Session | None:
        """The live session with this id."""
        session = self._sessions.get(number)
        return session if session is not None and not session.is_over() else None

    def note_uses(self) -> None:
        """Store when the sessions were used last, if that was not done just now."""
        if time.time() - self._written > WRITE_SECONDS:
            self._write()

    def revoke(self, number: str) -> bool:
        """End the session with this id, or the link that no browser has used yet; whether there was one."""
        unused = any(number == name and use_up(self.place, name) for name, _ in list_unused(self.place, self.run))
        session = self.find(number)  # after the link: a browser may have used it just now
        if session is not None:
            session.end()
        self._write()
        return unused or session is not None

    def describe(self) -> list[dict[str, object]]:
        """Links that are used, and those that may still be, for JSON."""
        names = ("id", "role", "until", "started", "used", "browser")
        used = [{name: getattr(session, name) for name in names} for session in self.live()]
        unused = [
            (number, link.role, link.until, None, None, None) for number, link in list_unused(self.place, self.run)
        ]
        return [*used, *(dict(zip(names, values, strict=True)) for values in unused)]

    def live(self) -> Sequence[Session]:
        """Sessions that aren't over, the one used last first."""
        known = list(self._sessions.values())  # at once: a thread may add one meanwhile
        return sorted((one for one in known if not one.is_over()), key=lambda one: -one.used)

    def _write(self) -> None:
        """Store the sessions. If that fails they last as long as the kernel, and none that has ended comes back."""
        self._written = time.time()
        live = self.live()
        for session in live[MAX_SESSIONS:]:
            session.end()
        kept = live[:MAX_SESSIONS]
        self._sessions = {session.id: session for session in kept}
        try:
            replace_file(self.place / FILE, msgspec.json.encode(kept).decode())
        except OSError as error:
            log.warning("the dashboard's sessions can't be stored, so they end with the kernel: %s", error.strerror)
            with suppress(OSError):
                (self.place / FILE).unlink()
