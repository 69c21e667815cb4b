"""Hash chain of the audit log: the fields of a row, and how its hash follows from the previous row. No I/O.

A row's hash is the SHA-256 of the previous hash, a line feed, and the row's fields as a JSON array; in hexadecimal. The
first row follows ``GENESIS``. So changing, removing, inserting or swapping a row changes every hash after it.
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
_READ = 2000  # characters that are read of it: secrets are redacted before the text is cut at 500
_SHORT = {"name": 128, "kind": 16, "call": 32, "decision": 16, "rule": 300, "phase": 16, "outcome": 64}

Field: TypeAlias = str | int | float | None
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Link(NamedTuple):
    """A position in the chain: the number of a row, and its hash."""

    seq: int
    hash: str


BEGINNING = Link(0, GENESIS)


class Row(NamedTuple):
    """One row of the log.

    ``at`` is seconds since the epoch, ``repeated`` how many calls the row stands for, and ``together`` the number of
    the last row of its commit: the one that the head file names.
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
        """Whether the values have the right types: the table may have been replaced from outside."""
        return all(map(isinstance, self, _TYPES))

    @property
    def link(self) -> Link:
        return Link(self.seq, self.hash)

    @property
    def named(self) -> dict[str, Field]:
        """The fields by their names on the wire."""
        return {
            "id": self.seq,
            "at": self.at,
            "agent_id": self.agent,
            **dict(zip(self._fields[3:], self[3:], strict=True)),
        }

    def follows(self, previous: str) -> bool:
        """Whether its hash matches its fields and ``previous``; also for invalid values from a modified file."""
        try:
            return self.hash == digest(previous, self[:-1])
        except (TypeError, ValueError):
            return False


_TYPES = (int, float, int, str, str, str, str, str, str, str, str, float | None, int | None, int, int, str)


def digest(previous: str, fields: tuple[Field, ...]) -> str:
    return sha256(f"{previous}\n{_encode(fields)}".encode()).hexdigest()


class Waiting(NamedTuple):
    """An entry to be written: when it happened, and how many calls it stands for."""

    entry: Entry
    at: float
    repeated: int = 1


def shortened(entry: Entry) -> Entry:
    """Cut ``about``, which may be a megabyte, to the characters that are read."""
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
    """The row that follows ``last``: secrets redacted, control characters escaped, lengths limited."""
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
    """Escape control characters: no line breaks, no escape sequences, no change of text direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# -- Entries about the log itself --------------------------------------------------------------------------------------

STARTED, STOPPED, CUT, REMOVED, LOST = "KERNEL_START", "KERNEL_STOP", "AUDIT_CUT", "AUDIT_REMOVED", "AUDIT_LOST"
_REMOVED = re.compile(r"segment ([0-9]{1,6}), up to entry ([0-9]{1,18}), whose hash was ([0-9a-f]{64})")


def own(call: str, about: str, outcome: str = "ok") -> Entry:
    """An entry of the kernel itself."""
    return Entry(0, "kernel", "kernel", call, about, "allow", "", "outcome", outcome)


def removal(segment: int, last: Link) -> Entry:
    """Entry for the removal of the oldest segment: the log may begin after that segment's last row."""
    return own(REMOVED, f"segment {segment}, up to entry {last.seq}, whose hash was {last.hash}")


class Removal(NamedTuple):
    """A removed segment, and its last row."""

    segment: int
    last: Link


def removed(row: Row) -> Removal | None:
    """The removal that this row records; ``None`` for any other row."""
    if row.kind != "kernel" or row.call != REMOVED:
        return None
    found = _REMOVED.fullmatch(row.about)
    return Removal(int(found[1]), Link(int(found[2]), found[3])) if found else None
