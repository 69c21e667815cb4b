"""Entries of the queue of approvals: what is asked and by which caller, in memory and in the database."""

import sqlite3
import time
from collections.abc import Sequence
from typing import Final, Literal

import trio
from attrs import define, field
from msgspec import Struct, json

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Question
from agentos.structs import learn
from agentos_sdk.errors import CallError

from . import answers
from .answers import Answer

TABLES: Final = ("CREATE TABLE approvals (id INTEGER PRIMARY KEY AUTOINCREMENT, pending BLOB NOT NULL)",)
State = Literal["recording", "waiting", "deciding", "over"]


class Pending(Struct, frozen=True):
    """An entry of the queue. ``agent`` is its caller's name, ``number`` its caller's id, and ``life`` counts its lives.

    ``digest`` is the question's. ``shown`` has the marks of :mod:`agentos.permissions.shown_lines`; it and ``rule`` are
    escaped for a terminal. ``caller_present``: that life goes
    on; otherwise the entry can't be allowed. Times are seconds since the epoch.
    """

    id: int
    agent: str
    number: int
    life: int
    call: str
    about: str
    digest: str
    shown: str
    rule: str
    asked_at: float
    expires_at: float
    caller_present: bool = True
    covers: Sequence[Sequence[str]] = ()  # what a remembered answer would cover: the kernel's words, and the object
    covers_any_path: Sequence[str] = ()  # what a widened one would; empty if none can be given


learn(Pending)


Key = tuple[int, int, str]  # caller's id, its life, digest


@define(eq=False)
class Entry:
    """``failure`` is what the calls that wait for it get; without one they may go on when it is ``over``."""

    pending: Pending
    question: Question | None = None  # None: it was asked of a kernel before this one
    caller: Caller | None = None
    subjects: Sequence[int | str] = ()  # of answers: the caller's id and its lasting name
    deadline: float = 0.0  # trio's clock
    state: State = "recording"
    failure: CallError | None = None
    changed: trio.Event = field(factory=trio.Event)

    @property
    def family(self) -> str | None:
        """The caller's, if it asked of this kernel."""
        return self.caller.family if self.caller is not None else None

    @property
    def key(self) -> Key:
        return self.pending.number, self.pending.life, self.pending.digest

    def change(self, state: State, failure: CallError | None = None) -> None:
        self.state, self.failure = state, failure or self.failure
        self.changed.set()
        self.changed = trio.Event()


class Ticket(Struct, frozen=True):
    """What one call may use once, before ``deadline`` of Trio's clock."""

    id: int
    rule: str
    deadline: float


def load(connection: sqlite3.Connection, above: int = 0) -> tuple[int, Sequence[Pending]]:
    """The highest id ever used, at least ``above`` from now on, and what hasn't expired; the rest is removed."""
    rows = connection.execute("SELECT pending FROM approvals").fetchall()
    found = [json.decode(pending, type=Pending) for (pending,) in rows]
    now = time.time()
    connection.executemany("DELETE FROM approvals WHERE id = ?", [(one.id,) for one in found if one.expires_at <= now])
    found_highest = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'approvals'").fetchone()
    highest = max(above, found_highest[0] if found_highest is not None else 0)
    if above:
        connection.execute("DELETE FROM sqlite_sequence WHERE name = 'approvals'")
        connection.execute("INSERT INTO sqlite_sequence VALUES ('approvals', ?)", (highest,))
    return highest, [one for one in found if one.expires_at > now]


def insert(pending: Pending, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO approvals VALUES (?, ?)", (pending.id, json.encode(pending)))


def delete(number: int, connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM approvals WHERE id = ?", (number,))


def decide(number: int, given: Sequence[Answer], connection: sqlite3.Connection) -> None:
    delete(number, connection)
    answers.insert(given, connection)
