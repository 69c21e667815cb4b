"""The chain of the audit log: what a row is, and how its hash follows from the row before it. Pure.

A row's hash is the SHA-256 of the hash before it, a line feed, and its fields as a JSON array; in hexadecimal. The
first row of all follows ``GENESIS``. So to change, take out, put in or swap any row changes every hash after it.
"""

import json
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple, TypeAlias

import attrs

from agentos.kernel.ports import Entry

from .redaction import redacted

GENESIS = "0" * 64
LONGEST = 500  # characters of `about`
_READ = 2000  # of them are looked at: what is cut off at 500 has had its secrets taken out before
_SHORT = {"name": 128, "kind": 16, "call": 32, "decision": 16, "rule": 300, "phase": 16, "outcome": 64}

Field: TypeAlias = str | int | float | None
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Link(NamedTuple):
    """Where a chain stands: the number of its last row, and that one's hash."""

    seq: int
    hash: str


BEGINNING = Link(0, GENESIS)


class Row(NamedTuple):
    """One line of the log.

    ``at`` is seconds since the epoch, ``repeated`` how many calls it stands for, and ``together`` the number of the
    last row that was committed with it: the one that the head file names.
    """

    seq: int
    at: float
    agent: int
    name: str
    kind: str
    call: str
    about: str
    decision: str
    rule: str
    phase: str
    outcome: str
    duration: float | None
    intent: int | None
    repeated: int
    together: int
    hash: str

    @property
    def is_typed(self) -> bool:
        """Whether its values are what they have to be: somebody may have made another table."""
        return all(map(isinstance, self, _TYPES))

    @property
    def link(self) -> Link:
        return Link(self.seq, self.hash)

    @property
    def named(self) -> dict[str, Field]:
        """By the names that the wire has for them."""
        return {
            "id": self.seq,
            "at": self.at,
            "agent_id": self.agent,
            **dict(zip(self._fields[3:], self[3:], strict=True)),
        }

    def follows(self, previous: str) -> bool:
        """Whether its hash is that of its fields and of ``previous``; whatever somebody put into the file."""
        try:
            return self.hash == digest(previous, self[:-1])
        except (TypeError, ValueError):
            return False


_TYPES = (int, float, int, str, str, str, str, str, str, str, str, float | None, int | None, int, int, str)


def digest(previous: str, fields: tuple[Field, ...]) -> str:
    return sha256(f"{previous}\n{_encode(fields)}".encode()).hexdigest()


class Waiting(NamedTuple):
    """What is to be written: when it happened, and how many calls it stands for."""

    entry: Entry
    at: float
    repeated: int = 1


def shortened(entry: Entry) -> Entry:
    """Without what nobody will look at, which may be a megabyte."""
    return entry if len(entry.about) <= _READ else attrs.evolve(entry, about=entry.about[:_READ])


def chained(last: Link, group: Sequence[Waiting]) -> list[Row]:
    """The rows that follow ``last`` in one commit."""
    rows: list[Row] = []
    together = last.seq + len(group)
    for waiting in group:
        rows.append(row(last, waiting, together))
        last = rows[-1].link
    return rows


def row(last: Link, waiting: Waiting, together: int) -> Row:
    """The row that follows ``last``: without secrets, without control characters, and no longer than may be."""
    entry, at, repeated = waiting
    short = {name: plain(str(getattr(entry, name))[:most])[:most] for name, most in _SHORT.items()}
    fields = (
        last.seq + 1,
        float(at),
        entry.agent,
        short["name"],
        short["kind"],
        short["call"],
        cut(plain(redacted(shortened(entry).about))),
        short["decision"],
        plain(redacted(entry.rule[:_READ]))[: _SHORT["rule"]],
        short["phase"],
        short["outcome"],
        None if entry.duration is None else float(entry.duration),
        entry.intent,
        repeated,
        together,
    )
    return Row(*fields, hash=digest(last.hash, fields))


def plain(text: str) -> str:
    """Control characters are shown, not obeyed: no line breaks, no escapes, nothing that turns text round."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# -- What the log says of itself ---------------------------------------------------------------------------------------

STARTED, STOPPED, CUT, REMOVED, LOST = "KERNEL_START", "KERNEL_STOP", "AUDIT_CUT", "AUDIT_REMOVED", "AUDIT_LOST"
_REMOVED = re.compile(r"segment ([0-9]{1,6}), up to entry ([0-9]{1,18}), whose hash was ([0-9a-f]{64})")


def own(call: str, about: str, outcome: str = "ok") -> Entry:
    """An entry of the kernel's own."""
    return Entry(0, "kernel", "kernel", call, about, "allow", "", "outcome", outcome)


def removal(segment: int, last: Link) -> Entry:
    """The oldest segment is taken away: the log may begin after its last row."""
    return own(REMOVED, f"segment {segment}, up to entry {last.seq}, whose hash was {last.hash}")


class Removal(NamedTuple):
    """A segment that was taken away, and its last row."""

    segment: int
    last: Link


def removed(row: Row) -> Removal | None:
    """What this row says was taken away; ``None`` of any other row."""
    if row.kind != "kernel" or row.call != REMOVED:
        return None
    found = _REMOVED.fullmatch(row.about)
    return Removal(int(found[1]), Link(int(found[2]), found[3])) if found else None
