"""Remembered answers: decisions of persons that hold for the next calls that do the same to the same object.

An answer counts only where a rule asks, so a denial always wins. It covers exactly one object, or where the person
said so all paths of one origin, never a pattern, and is void when another rule asks. Those for one agent's id end with
the kernel, because the next one counts ids anew.
"""

import contextlib
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import Final

from msgspec import Struct, json

from agentos.database import Database, DatabaseError
from agentos.kernel.ports import Question, Right
from agentos.structs import learn
from agentos_sdk.errors import NotFound, QuotaExceeded

from .page import escape

TABLES: Final = (
    "CREATE TABLE answers (id INTEGER NOT NULL, part INTEGER NOT NULL, answer BLOB NOT NULL, PRIMARY KEY (id, part))"
    " WITHOUT ROWID",
)
MAX_ANSWERS = 1000
_CONNECTION: Final = re.compile(r"(?<= by operator)#[0-9]+(?=\)$)")  # in the source of a rule
MAX_COVER_CHARS: Final = 1000
WHATEVER: Final = {  # what an answer doesn't cover, by action
    "http": "whatever its query, headers and body",
    "write": "whatever its content",
    "exec": "whatever the files hold that it reads",
    "think": "whatever is asked",
    "send": "whatever is sent",
    "store": "whatever the value",
    "tool_call": "whatever its arguments",
}
RESERVED: Final = ("exactly ", "agent ", "caller ")
RUN: Final = token_hex(8)  # in the object of an answer that ends with the kernel


class Answer(Struct, frozen=True):
    """``id`` is that of the approval that it was given to; ``subject`` the agent's id, or its lasting name.

    ``agent`` is its name for people. ``until`` and ``at`` are seconds since the epoch.
    """

    id: int
    subject: int | str
    agent: str
    action: str
    object: str
    rule: str
    allow: bool
    reason: str | None
    by: str
    at: float
    until: float | None = None

    @property
    def key(self) -> tuple[int | str, str, str]:
        """What it is about: a later answer about the same takes its place."""
        return self.subject, self.action, self.object

    @property
    def is_over(self) -> bool:
        return self.until is not None and self.until <= time.time()


learn(Answer)


class Answers:
    """All answers; each change is on disk when its method returns."""

    def __init__(self, database: Database, name_of: Callable[[int], str | None]) -> None:
        """``name_of`` gives the lasting name of an agent."""
        self._database, self.name_of = database, name_of
        self._all: dict[tuple[int | str, str, str], Answer] = {}

    async def load(self) -> None:
        """Load those that outlast a kernel. Raises :class:`agentos.database.DatabaseError`."""
        self.remember(await self._database.write(_load))

    def list(self, subjects: Sequence[int | str] | None = None) -> Sequence[Answer]:
        """Those about an agent, by its id and its name; None: all."""
        return [one for one in self._all.values() if not one.is_over and (subjects is None or one.subject in subjects)]

    def find(self, subjects: Sequence[int | str], question: Question) -> Sequence[Answer] | None:
        """The answers to a question: one that refuses, or one to each of its rights; None if there are none."""
        found: list[Answer] = []
        is_answered = True
        for right, decision in question.asked:
            of_right = [
                one
                for subject in subjects
                for text in (self.describe_object(right, question), describe_wide(right))
                if text is not None and (one := self._look_up((subject, right.action, text), decision.rule)) is not None
            ]
            found += of_right
            is_answered = is_answered and bool(of_right)
        refusals = [one for one in found if not one.allow]
        return refusals or (found if is_answered else None)

    def _look_up(self, key: tuple[int | str, str, str], rule: str) -> Answer | None:
        one = self._all.get(key)
        if one is None or (is_same_rule(one.rule, rule) and not one.is_over):
            return one
        del self._all[key]
        self._submit(partial(_delete, [one.id]))
        return None

    def describe_object(self, right: Right, question: Question) -> str:
        """The text that stands for exactly this object: its ``exact_text``, if it has one, else what it is shown as.

        That of a right without an object stands for the whole call.
        """
        if right.object is not None:
            exact: str | None = getattr(right.object, "exact_text", None)
            found = encodable(exact) if exact is not None else quote_reserved(encodable(str(right.object)))
        elif right.agent is None:
            return f"exactly {question.about} (sha256 {question.digest})"
        else:
            found = ""
        if right.agent is None:
            return found
        name = self.name_of(right.agent)
        other = f"agent {name}" if name is not None else f"caller {right.agent} of the run {RUN}"
        return f"{other}: {found}" if found else other

    def describe_scope(self, question: Question) -> Sequence[Sequence[str]]:
        """What an answer to this question would cover if it were remembered: the kernel's words, and the object."""
        return [_describe_cover(right, self.describe_object(right, question)) for right, _ in question.asked]

    def check_room(self, wanted: int) -> None:
        """Raise ``QuotaExceeded`` if there are too many for ``wanted`` more."""
        if len(self.list()) + wanted > MAX_ANSWERS:
            raise QuotaExceeded(f"{MAX_ANSWERS} answers are remembered already: forget some, or decide this one once")

    def remember(self, answers: Sequence[Answer]) -> None:
        """Apply answers that :func:`insert` has written."""
        self._all = {key: one for key, one in self._all.items() if not one.is_over}
        self._all |= {one.key: one for one in answers}

    def has(self, number: int) -> bool:
        """Whether there are any with this id."""
        return any(one.id == number for one in self._all.values())

    async def forget(self, number: int) -> Sequence[Answer]:
        """Revoke the answers with this id; ``NotFound`` if there are none."""
        found = [one for one in self._all.values() if one.id == number]
        if not found:
            raise NotFound(f"no remembered answer has the id {number}")
        await self._database.write(partial(_delete, [number]))
        self._all = {key: one for key, one in self._all.items() if one.id != number}
        return found

    def _submit(self, work: "partial[None]") -> None:
        with contextlib.suppress(DatabaseError):  # full: the next kernel finds it void as well
            self._database.submit(work, "the end of a remembered answer")


def describe_wide(right: Right) -> str | None:
    """The text that stands for all paths of the object's origin, if it has any."""
    wide: str | None = getattr(right.object, "wide_text", None)
    return wide


def describe_wide_scope(question: Question) -> Sequence[str]:
    """What a widened answer would cover, as :meth:`Answers.describe_scope` says it; empty if none can be given."""
    [right, *more] = [right for right, _ in question.asked]
    wide = describe_wide(right)
    return _describe_cover(right, wide) if wide is not None and not more else ()


def _describe_cover(right: Right, text: str) -> Sequence[str]:
    cut = f", {len(text) - MAX_COVER_CHARS} more characters" if len(text) > MAX_COVER_CHARS else ""
    rest = WHATEVER.get(right.action, "" if right.agent is None else "whatever else it says")
    said = f", {rest}" if rest and (right.object is not None or right.agent is not None) else ""  # else it is one call
    return f"{right.action.upper()}{said}{cut}: ", escape(text[:MAX_COVER_CHARS])


def is_same_rule(one: str, other: str) -> bool:
    """Whether two texts mean one rule: each connection of the operator that spawns an agent has another number."""
    return _CONNECTION.sub("", one) == _CONNECTION.sub("", other)


def encodable(text: str) -> str:
    """The text; if it isn't UTF-8, quoted in ASCII. No path or command begins with that quote: each text is of one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return ascii(text)
    return text


def quote_reserved(text: str) -> str:
    """The text; if it begins as the text of a call without an object or about an agent does, quoted."""
    return ascii(text) if text.startswith(RESERVED) else text


def _read(connection: sqlite3.Connection) -> Sequence[tuple[int, Answer]]:
    """All answers, each after the number of its part."""
    rows = connection.execute("SELECT part, answer FROM answers").fetchall()
    return [(part, json.decode(answer, type=Answer)) for part, answer in rows]


def _load(connection: sqlite3.Connection) -> Sequence[Answer]:
    """Those that outlast a kernel; the others are removed."""
    found = [one for _, one in _read(connection)]
    _delete([one.id for one in found if one.is_over or isinstance(one.subject, int)], connection)
    return [one for one in found if not one.is_over and isinstance(one.subject, str)]


def insert(answers: Sequence[Answer], connection: sqlite3.Connection) -> None:
    """Write answers in the place of earlier ones about the same, which must not come back when these are revoked."""
    if not answers:
        return
    keys = {one.key for one in answers}
    gone = [(one.id, part) for part, one in _read(connection) if one.key in keys or one.is_over]
    connection.executemany("DELETE FROM answers WHERE id = ? AND part = ?", gone)
    rows = [(one.id, part, json.encode(one)) for part, one in enumerate(answers)]
    connection.executemany("INSERT INTO answers VALUES (?, ?, ?)", rows)


def _delete(numbers: Sequence[int], connection: sqlite3.Connection) -> None:
    connection.executemany("DELETE FROM answers WHERE id = ?", [(number,) for number in numbers])
