"""Storing of values in batches: decided in memory, written with few statements."""

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from attrs import define, field
from msgspec import Struct
from outcome import Error, Outcome, capture

from agentos_sdk.encoding import codec
from agentos_sdk.errors import QuotaExceeded

from .giving_way import gives_way, list_room, list_surplus
from .rows import check_version, is_expired, remove_rows
from .spaces import list_accounts

ABSENT = (0, None, "", 0)  # version, expiry, account and size of a key that doesn't exist
MAX_BATCHED_BYTES = 4 << 10  # of a key and its value; a larger one has a statement of its own


class StateLimits(Struct, frozen=True):
    """How many keys, and how many bytes of keys and values, an agent may have with all that it spawned."""

    keys: int
    bytes: int


class Change(Struct, frozen=True):
    """A value to store. Its size is charged to ``account``, to none if that is empty. ``ttl`` is seconds.

    ``caller`` is the id of the caller that stores it, one of those with that account.
    """

    space: str
    key: str
    value: bytes
    account: str
    ttl: float | None
    if_version: int | None
    caller: int | None = None

    @property
    def size(self) -> int:
        return len(self.key.encode()) + len(self.value)


class Row(NamedTuple):
    """A row of the table."""

    space: str
    key: str
    version: int
    expires: float | None
    account: str
    size: int
    value: bytes


@define
class Plan:
    """Decides a batch of changes in memory.

    ``present`` has version, expiry, account and size of each existing key, ``accounts`` the version, keys and bytes of
    each account and space. :meth:`decide` updates both and notes what to write: the accounts ``changed``, the rows
    ``written``.
    """

    present: dict[tuple[str, str], tuple[int, float | None, str, int]]
    accounts: dict[str, list[int]]
    changed: set[str] = field(factory=set)
    written: dict[tuple[str, str], Row] = field(factory=dict)

    def decide(self, changes: Sequence[Change], limits: StateLimits, now: float) -> list[Outcome[int]]:
        """Return the version of each change, or its error; a change that fails has no effect."""
        return [capture(self._decide, one, limits, now) for one in changes]

    def _decide(self, one: Change, limits: StateLimits, now: float) -> int:
        place = (one.space, one.key)
        present, expires, *_ = self.present.get(place, ABSENT)
        check_version(one.key, one.if_version, 0 if is_expired(expires, now) else present)
        more = self.growth(one)
        for name, (keys, amount) in more.items():
            self._check_limits(name, keys, amount, limits)
        for name, (keys, amount) in more.items():
            self.accounts[name][1] += keys
            self.accounts[name][2] += amount
        self.accounts[one.space][0] += 1
        version = self.accounts[one.space][0]
        self.changed.update(more, [one.space])
        expires = None if one.ttl is None else now + one.ttl
        self.present[place] = (version, expires, one.account, one.size)
        self.written[place] = Row(one.space, one.key, version, expires, one.account, one.size, one.value)
        return version

    def growth(self, one: Change) -> Mapping[str, tuple[int, int]]:
        """How many keys and bytes more each account will have."""
        _, _, charged, old_size = self.present.get((one.space, one.key), ABSENT)
        more = dict.fromkeys(list_accounts(charged), (-1, -old_size))
        for name in list_accounts(one.account):
            keys, amount = more.get(name, (0, 0))
            more[name] = (keys + 1, amount + one.size)
        return more

    def _check_limits(self, name: str, keys: int, size: int, limits: StateLimits) -> None:
        _, has_keys, has_bytes = self.accounts[name]
        for what, most, more, has in (("keys", limits.keys, keys, has_keys), ("bytes", limits.bytes, size, has_bytes)):
            if more > 0 and has + more > most:
                text = f"state: {name!r}, with what it spawned, may have {most} {what} (kernel.max_state_{what})"
                raise QuotaExceeded(f"{text}, and this would be {has + more}: delete some keys", name=name, what=what)


def store_all(limits: StateLimits, changes: Sequence[Change], connection: sqlite3.Connection) -> Sequence[Outcome[int]]:
    """Store values; the outcome of each is its version. Few statements for all of them: see :data:`Batch`.

    Values that give way are removed for those that would exceed a limit, which are then stored after all others.
    """
    outcomes = list(_store(limits, changes, connection))
    for at, outcome in enumerate(outcomes):
        if isinstance(outcome, Error) and isinstance(outcome.error, QuotaExceeded):
            outcomes[at] = _store_in_room(limits, changes[at], outcome.error, connection)
    for space in {one.space for one in changes if gives_way(one.space, one.key)}:
        remove_rows(list_surplus(space, connection), connection)
    return outcomes


def _store_in_room(
    limits: StateLimits, one: Change, refusal: QuotaExceeded, connection: sqlite3.Connection
) -> Outcome[int]:
    """Store a change that was refused in the room that values give way; none is removed if that isn't enough."""
    while True:
        plan, name = _read_plan([one], connection), str(refusal.details["name"])
        _, keys, size = plan.accounts[name]
        more_keys, more_bytes = plan.growth(one)[name]
        excess = (keys + more_keys - limits.keys, size + more_bytes - limits.bytes)
        rows = list_room(name, (one.space, one.key), *excess, connection)
        if not rows:
            return Error(refusal)
        remove_rows(rows, connection)
        (outcome,) = _store(limits, [one], connection)
        if not isinstance(outcome, Error) or not isinstance(outcome.error, QuotaExceeded):
            return outcome
        refusal = outcome.error


def _store(limits: StateLimits, changes: Sequence[Change], connection: sqlite3.Connection) -> Sequence[Outcome[int]]:
    now = time.time()
    plan = _read_plan(changes, connection)
    outcomes = plan.decide(changes, limits, now)
    small = [row for row in plan.written.values() if row.size <= MAX_BATCHED_BYTES]
    large = [row for row in plan.written.values() if row.size > MAX_BATCHED_BYTES]
    accounts = [(name, *plan.accounts[name]) for name in plan.changed]
    for table, rows, at_once in (("state", small, 100), ("state", large, 1), ("state_accounts", accounts, 200)):
        for at in range(0, len(rows), at_once):
            _insert(connection, table, rows[at : at + at_once])
    return outcomes


def _read_plan(changes: Sequence[Change], connection: sqlite3.Connection) -> Plan:
    wanted = list({(one.space, one.key) for one in changes})
    (found,) = connection.execute(
        """SELECT json_group_array(json_array(s.space, s.key, s.version, s.expires, s.account, s.size))
            FROM json_each(?) AS wanted CROSS JOIN state AS s
            ON s.space = json_extract(wanted.value, '$[0]') AND s.key = json_extract(wanted.value, '$[1]')""",
        (codec.encode(wanted).decode(),),
    ).fetchone()
    present = {(space, key): tuple(row) for space, key, *row in json.loads(found)}
    names = {one.space for one in changes}
    for account in {one.account for one in changes} | {account for _, _, account, _ in present.values()}:
        names.update(list_accounts(account))
    (found,) = connection.execute(
        """SELECT json_group_array(json_array(a.name, a.version, a.keys, a.bytes))
            FROM json_each(?) AS wanted CROSS JOIN state_accounts AS a ON a.name = wanted.value""",
        (codec.encode(list(names)).decode(),),
    ).fetchone()
    accounts = {name: [0, 0, 0] for name in names} | {name: numbers for name, *numbers in json.loads(found)}
    return Plan(present, accounts)


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[Sequence[object]]) -> None:
    marks = f"({', '.join('?' * len(rows[0]))})"
    values = [value for row in rows for value in row]
    connection.execute(f"INSERT OR REPLACE INTO {table} VALUES {', '.join([marks] * len(rows))}", values)  # noqa: S608
