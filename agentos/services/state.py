"""State of agents: values by space and key in the database, with versions, expiry and quotas.

A space holds keys of one scope: :data:`GLOBAL` is the global one, the private one of an agent has the name of the
agent's account, such as ``boss/worker``, and so belongs to its parent and name together. The space of a session is the
account with ``~`` and a number behind it. Versions of a space come from one counter, which never goes back.

Each key is charged to the account that stored it and to the accounts above that, up to the outermost one. Expired keys
don't exist: no reading finds them, and where they would exceed a quota they are removed first. Each change is published
once it is on disk, in the order of the versions; that a key has expired, when it is removed, soon after; that the keys
of a session are gone, not at all. Times are seconds since the epoch, sizes bytes.
"""

import contextlib
import itertools
import json
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio
from attrs import define, field
from msgspec import Struct
from outcome import Error, Outcome, Value, capture

from agentos.database import Batch, Database, DatabaseError, Done
from agentos_sdk import codec
from agentos_sdk.errors import Conflict, QuotaExceeded, Unavailable
from agentos_sdk.values import Scope

from .events import Publish, StateChanged, discard

log = logging.getLogger(__name__)

TABLES: Final = (
    """CREATE TABLE state (
        space TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, expires REAL, account TEXT NOT NULL,
        size INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (space, key)
    )""",
    "CREATE INDEX state_by_expiry ON state (expires) WHERE expires IS NOT NULL",
    """CREATE TABLE state_accounts (
        name TEXT PRIMARY KEY, version INTEGER NOT NULL, keys INTEGER NOT NULL, bytes INTEGER NOT NULL
    ) WITHOUT ROWID""",
)
GLOBAL: Final = ""
MAX_BATCHED_BYTES = 4 << 10  # of a key and its value; a larger one has a statement of its own
SWEEP_INTERVAL = 30.0  # seconds
MIN_SWEEP_INTERVAL = 1.0  # seconds
SWEPT_AT_ONCE = 100  # expired keys in one transaction
MAX_CODE_POINT = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)  # code points that aren't characters


class StateLimits(Struct, frozen=True):
    """How many keys, and how many bytes of keys and values, an agent may have with all that it spawned."""

    keys: int
    bytes: int


class Found(Struct, frozen=True):
    """The value of a key, as JSON, and the space in which it was found."""

    space: str
    version: int
    expires: float | None
    value: bytes


class Change(Struct, frozen=True):
    """A value to be stored, charged to ``account``, if that isn't empty; see :meth:`State.begin_store`."""

    space: str
    key: str
    value: bytes
    account: str
    ttl: float | None
    if_version: int | None


class Row(NamedTuple):
    """A row of the table."""

    space: str
    key: str
    version: int
    expires: float | None
    account: str
    size: int
    value: bytes


class Swept(Struct, frozen=True):
    """The expired keys that were removed, with space and version, and when the first of the others expires."""

    keys: Sequence[tuple[str, str, int]]
    next_expiry: float


@define
class Plan:
    """What a batch of changes does, decided in memory.

    ``present`` are the keys as they are, each with version, expiry, account and size. ``accounts`` are the version,
    keys and bytes of every account and space; those in ``changed`` have to be written, and the rows in ``written``.
    """

    present: dict[tuple[str, str], tuple[int, float | None, str, int]]
    accounts: dict[str, list[int]]
    changed: set[str] = field(factory=set)
    written: dict[tuple[str, str], Row] = field(factory=dict)

    def decide(self, changes: Sequence[Change], limits: StateLimits, now: float) -> list[Outcome[int]]:
        """The version of each change, or why it fails; a change that fails changes nothing."""
        return [capture(self._decide, one, limits, now) for one in changes]

    def _decide(self, one: Change, limits: StateLimits, now: float) -> int:
        place, size = (one.space, one.key), len(one.key.encode()) + len(one.value)
        replaced = self.present.get(place)
        present, expires, charged, old_size = replaced or (0, None, "", 0)
        _check_version(one.key, one.if_version, 0 if _is_expired(expires, now) else present)
        more = dict[str, tuple[int, int]]()  # keys and bytes, by account
        for name in list_accounts(charged):
            more[name] = (-1, -old_size)
        for name in list_accounts(one.account):
            keys, amount = more.get(name, (0, 0))
            more[name] = (keys + 1, amount + size)
        for name, (keys, amount) in more.items():
            self._check_limits(name, keys, amount, limits)
        for name, (keys, amount) in more.items():
            self.accounts[name][1] += keys
            self.accounts[name][2] += amount
        self.accounts[one.space][0] += 1
        version = self.accounts[one.space][0]
        self.changed.update(more, [one.space])
        expires = None if one.ttl is None else now + one.ttl
        self.present[place] = (version, expires, one.account, size)
        self.written[place] = Row(one.space, one.key, version, expires, one.account, size, one.value)
        return version

    def _check_limits(self, name: str, keys: int, size: int, limits: StateLimits) -> None:
        _, has_keys, has_bytes = self.accounts[name]
        for what, most, more, has in (("keys", limits.keys, keys, has_keys), ("bytes", limits.bytes, size, has_bytes)):
            if more > 0 and has + more > most:
                text = f"state: {name!r}, with what it spawned, may have {most} {what} (kernel.max_state_{what})"
                raise QuotaExceeded(f"{text}, and this would be {has + more}: delete some keys", name=name, what=what)


@define(eq=False)
class State:
    """The state of all agents, in ``database``. Each change is on disk when its method returns.

    The methods raise ``Unavailable`` if the file can't be read or written: nothing has changed then.
    """

    database: Database
    limits: StateLimits
    publish: Publish = discard
    _store_all: Batch = field(init=False)
    _sessions: dict[int, str] = field(factory=dict)  # spaces by caller id
    _owners: dict[str, int] = field(factory=dict)  # ids of callers with a session, by account
    _numbers: Iterator[int] = field(factory=lambda: itertools.count(1))
    _next_expiry: float = math.inf
    _wake: trio.Event = field(factory=trio.Event)  # a session has ended, or a key expires earlier than all others

    def __attrs_post_init__(self) -> None:
        self._store_all = partial(_store_all, self.limits)

    @classmethod
    async def load(cls, database: Database, limits: StateLimits, publish: Publish = discard) -> "State":
        """Remove the sessions of the last kernel; raises :class:`agentos.database.DatabaseError`."""
        await database.write(_remove_former)
        return cls(database, limits, publish)

    def session(self, caller: int, account: str, *, is_owner: bool = True) -> str:
        """The space of a caller's session, which begins when it is first asked for, or when its account is another one.

        ``is_owner``: changes of the account's private keys are published as this caller's.
        """
        space = self._sessions.get(caller)
        if space is None or _account_of(space) != account:
            self.end_session(caller)
            space = self._sessions[caller] = f"{account}~{next(self._numbers)}"
            if is_owner:
                self._owners[account] = caller
        return space

    def end_session(self, caller: int) -> None:
        """Forget a caller's session; its keys are removed soon."""
        space = self._sessions.pop(caller, None)
        if space is not None:
            account = _account_of(space)
            if self._owners.get(account) == caller:
                del self._owners[account]
            self._wake.set()

    def begin_store(self, change: Change, done: Done) -> Callable[[], bool]:
        """Store a value; ``done`` gets its version, and the function returned drops the change if not yet begun.

        With ``if_version`` only if that is the present version, 0 if there is no such key: otherwise the outcome is
        ``Conflict``; ``QuotaExceeded`` if the account, or one above it, would have more than its limits.
        """
        try:
            return self._begin(change, done)
        except DatabaseError as error:
            raise _unavailable(error) from None

    def _begin(self, change: Change, done: Done, again: bool = False) -> Callable[[], bool]:
        return self.database.begin_in_batch(self._store_all, change, partial(self._end_store, change, done, again))

    def _end_store(self, change: Change, done: Done, again: bool, version: Outcome[int]) -> None:
        """Publish a change; store it ``again`` without what has expired if it exceeds a quota."""
        try:
            value = version.unwrap()
        except QuotaExceeded as error:
            if again:
                done(Error(error))
            else:
                self._sweep_and_store(change, done)
        except DatabaseError as error:
            done(Error(_unavailable(error)))
        except Exception as error:
            done(Error(error))
        else:
            if change.ttl is not None and time.time() + change.ttl < self._next_expiry:
                self._next_expiry = time.time() + change.ttl
                self._wake.set()
            self._announce(change.space, change.key, value, deleted=False)
            done(Value(value))

    def _sweep_and_store(self, change: Change, done: Done) -> None:
        def end(swept: Outcome[Swept]) -> None:
            try:
                self._announce_swept(swept.unwrap())
                if self._next_expiry <= time.time():
                    self._sweep_and_store(change, done)
                else:
                    self._begin(change, done, again=True)
            except DatabaseError as error:
                done(Error(_unavailable(error)))
            except Exception as error:
                done(Error(error))

        try:
            self.database.begin(self._sweeping(), end)
        except DatabaseError as error:
            done(Error(_unavailable(error)))

    def _announce(self, space: str, key: str, version: int, *, deleted: bool) -> None:
        """Publish a change. ``version`` is 0 if there was none: no such key."""
        if version:
            scope: Scope = "global" if space == GLOBAL else "session" if "~" in space else "agent"
            self.publish(StateChanged(scope, key, version, self._owners.get(_account_of(space)), deleted))

    async def fetch(self, spaces: Sequence[str], key: str) -> Found | None:
        """The key in the first of the spaces that has it."""
        with _readable():
            found: Found | None = await self.database.write_in_batch(_fetch_all, (spaces, key))
            return found

    async def delete(self, space: str, key: str, if_version: int | None) -> bool:
        """Delete a key; returns whether it existed. ``if_version`` as for :meth:`begin_store`."""
        announce = partial(self._announce, space, key, deleted=True)
        with _readable():
            return bool(await self.database.write_in_batch(_delete_all, (space, key, if_version), announce))

    async def keys(self, space: str, prefixes: Sequence[str], after: str, limit: int) -> list[str]:
        """The first keys of a space behind ``after`` that begin with one of these prefixes, which are in order."""
        with _readable():
            return await self.database.write(partial(_list_keys, space, prefixes, after, limit))

    async def serve(self) -> None:
        """Remove expired keys, and those of ended sessions, until cancelled."""
        failed = False
        while True:
            wait = self._next_expiry - time.time()
            with trio.move_on_after(min(max(wait, 0.0), SWEEP_INTERVAL)):
                await self._wake.wait()
            self._wake = trio.Event()
            try:
                await self._sweep()
                failed = False
            except (DatabaseError, sqlite3.Error) as error:
                if not failed:
                    log.error("expired state is not removed: %s", error)
                failed = True
            await trio.sleep(MIN_SWEEP_INTERVAL)

    async def _sweep(self) -> None:
        """Remove all expired keys, and those of ended sessions."""
        is_due = True
        while is_due:
            await self.database.write(self._sweeping(), self._announce_swept)
            is_due = self._next_expiry <= time.time()

    def _sweeping(self) -> Callable[[sqlite3.Connection], Swept]:
        return partial(_sweep, frozenset(self._sessions.values()))

    def _announce_swept(self, swept: Swept) -> None:
        self._next_expiry = swept.next_expiry
        for space, key, version in swept.keys:
            self._announce(space, key, version, deleted=True)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        raise _unavailable(error) from None


def _store_all(
    limits: StateLimits, changes: Sequence[Change], connection: sqlite3.Connection
) -> Sequence[Outcome[int]]:
    """Store values; the outcome of each is its version. Few statements for all of them: see :data:`Batch`."""
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


def _fetch_all(
    wanted: Sequence[tuple[Sequence[str], str]], connection: sqlite3.Connection
) -> Sequence[Outcome[Found | None]]:
    return [Value(_fetch(spaces, key, connection)) for spaces, key in wanted]


def _fetch(spaces: Sequence[str], key: str, connection: sqlite3.Connection) -> Found | None:
    now = time.time()
    for space in spaces:
        row = connection.execute(
            "SELECT version, expires, value FROM state WHERE space = ? AND key = ?", (space, key)
        ).fetchone()
        if row is not None and not _is_expired(row[1], now):
            return Found(space, *row)
    return None


def _delete_all(
    wanted: Sequence[tuple[str, str, int | None]], connection: sqlite3.Connection
) -> Sequence[Outcome[int]]:
    outcomes: list[Outcome[int]] = []
    for space, key, if_version in wanted:
        try:
            outcomes.append(Value(_delete(space, key, if_version, connection)))
        except Conflict as error:  # nothing was changed
            outcomes.append(Error(error))
    return outcomes


def _delete(space: str, key: str, if_version: int | None, connection: sqlite3.Connection) -> int:
    """Delete a key; returns its version, 0 if it doesn't exist. One that has expired is left to :func:`_sweep`."""
    row = connection.execute(
        "SELECT version, expires, account, size FROM state WHERE space = ? AND key = ?", (space, key)
    ).fetchone()
    exists = row is not None and not _is_expired(row[1], time.time())
    _check_version(key, if_version, row[0] if exists else 0)
    if not exists:
        return 0
    _charge(connection, row[2], -1, -row[3])
    connection.execute("DELETE FROM state WHERE space = ? AND key = ?", (space, key))
    version: int = row[0]
    return version


def _list_keys(
    space: str, prefixes: Sequence[str], after: str, limit: int, connection: sqlite3.Connection
) -> list[str]:
    found: list[str] = []
    for prefix in prefixes:
        query = "SELECT key FROM state WHERE space = ? AND key >= ? AND key > ? AND (expires IS NULL OR expires > ?)"
        values: list[object] = [space, prefix, after, time.time()]
        if (end := end_of_prefix(prefix)) is not None:
            query, values = f"{query} AND key < ?", [*values, end]
        rows = connection.execute(f"{query} ORDER BY key LIMIT ?", [*values, limit - len(found)])
        found += [key for (key,) in rows]
        if len(found) == limit:
            break
    return found


def _sweep(sessions: frozenset[str], connection: sqlite3.Connection) -> Swept:
    """Remove some of the expired keys, and all sessions but these."""
    removed = connection.execute(
        """DELETE FROM state WHERE rowid IN (SELECT rowid FROM state WHERE expires <= ? ORDER BY expires LIMIT ?)
            RETURNING space, key, version, account, size""",
        (time.time(), SWEPT_AT_ONCE),
    ).fetchall()
    for _, _, _, account, size in removed:
        _charge(connection, account, -1, -size)
    spaces = connection.execute("SELECT name FROM state_accounts WHERE name LIKE '%~%'").fetchall()
    for (space,) in spaces:
        if space not in sessions:
            _remove(connection, "space = ?", (space,))
            connection.execute("DELETE FROM state_accounts WHERE name = ?", (space,))
    (next_expiry,) = connection.execute("SELECT min(expires) FROM state").fetchone()
    return Swept([row[:3] for row in removed], math.inf if next_expiry is None else next_expiry)


def _remove_former(connection: sqlite3.Connection) -> None:
    """Remove what belongs to the kernel that ran before: sessions, and guests whose name is a number (``guest#7``).

    Another guest has that name now. Global keys that the former one stored stay, and are charged to none.
    """
    _remove(connection, "space LIKE '%~%' OR space LIKE '%#%'", ())
    connection.execute("UPDATE state SET account = '' WHERE account LIKE '%#%'")
    connection.execute("DELETE FROM state_accounts WHERE name LIKE '%~%' OR name LIKE '%#%'")


def _remove(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> None:
    """Remove the keys for which ``condition``, in SQL, holds."""
    charged = connection.execute(
        f"SELECT account, count(*), sum(size) FROM state WHERE {condition} GROUP BY account",  # noqa: S608
        values,
    ).fetchall()
    for account, keys, size in charged:
        _charge(connection, account, -keys, -size)
    if charged:
        connection.execute(f"DELETE FROM state WHERE {condition}", values)  # noqa: S608


def _unavailable(error: DatabaseError) -> Unavailable:
    return Unavailable(f"the state can't be read or written: {error}")


def _check_version(key: str, wanted: int | None, present: int) -> None:
    if wanted is not None and wanted != present:
        what = f"{key!r} has the version {present}" if present else f"{key!r} doesn't exist"
        raise Conflict(f"if_version: {what}{f', not {wanted}' if wanted else ''}", version=present)


def _is_expired(expires: float | None, now: float) -> bool:
    return expires is not None and expires <= now


def _charge(connection: sqlite3.Connection, account: str, keys: int, size: int) -> None:
    """Add to what an account and those above it have."""
    connection.executemany(
        """INSERT INTO state_accounts VALUES (?, 0, ?, ?)
            ON CONFLICT (name) DO UPDATE SET keys = keys + excluded.keys, bytes = bytes + excluded.bytes""",
        [(name, keys, size) for name in list_accounts(account)],
    )


def _account_of(space: str) -> str:
    """The account that owns a private space."""
    return space.partition("~")[0]


def list_accounts(account: str) -> list[str]:
    """An account and those above it, the outermost first; none for the empty one."""
    return list(itertools.accumulate(account.split("/"), "{}/{}".format)) if account else []


def end_of_prefix(prefix: str) -> str | None:
    """The first text behind all that begin with ``prefix``; None if there is none."""
    start = prefix.rstrip(chr(MAX_CODE_POINT))
    if not start:
        return None
    following = ord(start[-1]) + 1
    return start[:-1] + chr(SURROGATES.stop if following in SURROGATES else following)
