"""Hash chain of the audit log: the fields of a row, and how its hash follows from the previous row. No I/O.

A row's hash is the SHA-256 of the previous hash, a line feed, and the row's fields as a JSON array; in hexadecimal. The
first row follows ``GENESIS``. So changing, removing, inserting or swapping a row changes every hash after it.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from agentos.kernel.ports import Entry

from .redaction import redact

GENESIS = "0" * 64
MAX_ABOUT_CHARS = 500  # characters of `about`
_MAX_READ_CHARS = 2000  # characters that are read of it: secrets are redacted before the text is cut at 500
_MAX_FIELD_CHARS = {"name": 128, "kind": 16, "call": 32, "decision": 16, "rule": 300, "phase": 16, "outcome": 64}

Field: TypeAlias = str | int | float | None
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Link(NamedTuple):
    """A position in the chain: the number of a row, and its hash."""

    seq: int
    hash: str


CHAIN_START = Link(0, GENESIS)


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
    def has_valid_types(self) -> bool:
        """Whether the values have the right types: the table may have been replaced from outside."""
        return all(map(isinstance, self, _ROW_TYPES))

    @property
    def link(self) -> Link:
        return Link(self.seq, self.hash)

    @property
    def wire_fields(self) -> dict[str, Field]:
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


_ROW_TYPES = (int, float, int, str, str, str, str, str, str, str, str, float | None, int | None, int, int, str)


def digest(previous: str, fields: tuple[Field, ...]) -> str:
    return sha256(f"{previous}\n{_encode(fields)}".encode()).hexdigest()


class QueuedEntry(NamedTuple):
    """An entry to be written: when it happened, and how many calls it stands for."""

    entry: Entry
    at: float
    repeated: int = 1


def shorten_entry(entry: Entry) -> Entry:
    """Cut ``about``, which may be a megabyte, to the characters that are read."""
    return entry if len(entry.about) <= _MAX_READ_CHARS else replace(entry, about=entry.about[:_MAX_READ_CHARS])


def chain_rows(last: Link, group: Sequence[QueuedEntry]) -> list[Row]:
    """The rows that follow ``last`` in one commit."""
    rows: list[Row] = []
    together = last.seq + len(group)
    for waiting in group:
        rows.append(make_row(last, waiting, together))
        last = rows[-1].link
    return rows


def make_row(last: Link, waiting: QueuedEntry, together: int) -> Row:
    """The row that follows ``last``: secrets redacted, control characters escaped, lengths limited."""
    entry, at, repeated = waiting
    short = {name: escape_controls(str(getattr(entry, name))[:most])[:most] for name, most in _MAX_FIELD_CHARS.items()}
    fields = (
        last.seq + 1,
        float(at),
        entry.agent,
        short["name"],
        short["kind"],
        short["call"],
        cut_about(escape_controls(redact(shorten_entry(entry).about))),
        short["decision"],
        describe_rule(entry.rule[:_MAX_READ_CHARS]),
        short["phase"],
        short["outcome"],
        None if entry.duration is None else float(entry.duration),
        entry.intent,
        repeated,
        together,
    )
    return Row(*fields, hash=digest(last.hash, fields))


@lru_cache(256)  # the same few rules decide most calls
def describe_rule(rule: str) -> str:
    return escape_controls(redact(rule))[: _MAX_FIELD_CHARS["rule"]]


def escape_controls(text: str) -> str:
    """Escape control characters: no line breaks, no escape sequences, no change of text direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def cut_about(text: str) -> str:
    return text if len(text) <= MAX_ABOUT_CHARS else text[: MAX_ABOUT_CHARS - 1] + "…"


# -- Entries about the log itself --------------------------------------------------------------------------------------

KILLED = "KERNEL_KILLED"  # of the last kernel
STARTED, STOPPED, CUT, REMOVED, LOST = "KERNEL_START", "KERNEL_STOP", "AUDIT_CUT", "AUDIT_REMOVED", "AUDIT_LOST"
_REMOVED = re.compile(r"segment ([0-9]{1,6}), up to entry ([0-9]{1,18}), whose hash was ([0-9a-f]{64})")


def kernel_entry(call: str, about: str, outcome: str = "ok") -> Entry:
    """An entry of the kernel itself."""
    return Entry(0, "kernel", "kernel", call, about, "allow", "", "outcome", outcome)


def removal_entry(segment: int, last: Link) -> Entry:
    """Entry for the removal of the oldest segment: the log may begin after that segment's last row."""
    return kernel_entry(REMOVED, f"segment {segment}, up to entry {last.seq}, whose hash was {last.hash}")


class Removal(NamedTuple):
    """A removed segment, and its last row."""

    segment: int
    last: Link


def parse_removal(row: Row) -> Removal | None:
    """The removal that this row records; ``None`` for any other row."""
    if row.kind != "kernel" or row.call != REMOVED:
        return None
    found = _REMOVED.fullmatch(row.about)
    return Removal(int(found[1]), Link(int(found[2]), found[3])) if found else None
