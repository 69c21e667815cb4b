"""The state service: keys and values with versions, expiry and quotas.

An expired key counts as missing at once. It is removed later, or before a STORE is refused for a quota.
:class:`StateChanged` is published when a change is on disk, in the order of versions, and when an expired key is
removed. The keys of an ended session are removed without an event. Times are seconds since the epoch, sizes bytes.
"""

import contextlib
import itertools
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import trio
from attrs import define, field
from outcome import Error, Outcome, Value

from agentos.database import Batch, Database, DatabaseError, Done
from agentos.services.events import Publish, StateChanged, discard
from agentos_sdk.errors import QuotaExceeded, Unavailable
from agentos_sdk.values import Scope

from .batch import Change, StateLimits, store_all
from .copies import KeptKey, Replaced, read_space, replace_space
from .rows import Found, Swept, delete_all, fetch_all, list_keys, remove_former, sweep
from .spaces import GLOBAL, account_of, is_session

log = logging.getLogger(__name__)

SWEEP_INTERVAL = 30.0  # seconds
MIN_SWEEP_INTERVAL = 1.0  # seconds


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
    _owners: dict[str, dict[int, None]] = field(factory=dict)  # ids of callers with a session, by account and space
    _numbers: Iterator[int] = field(factory=lambda: itertools.count(1))
    _next_expiry: float = math.inf
    _wake: trio.Event = field(factory=trio.Event)  # a session has ended, or a key expires earlier than all others

    def __attrs_post_init__(self) -> None:
        self._store_all = partial(store_all, self.limits)

    @classmethod
    async def load(cls, database: Database, limits: StateLimits, publish: Publish = discard) -> "State":
        """Remove the keys of earlier kernels' sessions; raises :class:`agentos.database.DatabaseError`."""
        await database.write(remove_former)
        return cls(database, limits, publish)

    def session(self, caller: int, account: str, *, is_owner: bool = True) -> str:
        """The space of a caller's session, which begins when it is first asked for, or when its account is another one.

        ``is_owner``: this caller owns the session's keys, and the account's private ones together with other callers
        of the account: several connections of one guest.
        """
        space = self._sessions.get(caller)
        if space is None or account_of(space) != account:
            self.end_session(caller)
            space = self._sessions[caller] = f"{account}~{next(self._numbers)}"
            if is_owner:
                for name in (account, space):
                    self._owners.setdefault(name, {})[caller] = None
        return space

    def end_session(self, caller: int) -> None:
        """Forget a caller's session; its keys are removed soon."""
        space = self._sessions.pop(caller, None)
        if space is not None:
            for name in (account_of(space), space):
                owners = self._owners.get(name, {})
                owners.pop(caller, None)
                if not owners:
                    self._owners.pop(name, None)
            self._wake.set()

    def _find_owner(self, name: str, changer: int | None) -> int | None:
        """The owner of an account or private space: ``changer`` if it is one of several, else the latest."""
        owners = self._owners.get(name)
        if not owners:
            return None
        return changer if changer in owners else next(reversed(owners))

    def begin_store(self, change: Change, done: Done) -> Callable[[], bool]:
        """Begin to store a value. ``done`` gets its version; the returned function withdraws a change not yet begun.

        The outcome is ``Conflict`` if ``if_version`` isn't None and differs from the key's version (0: no such key),
        and ``QuotaExceeded`` if the account, or one above it, would exceed its limits.
        """
        try:
            return self._begin(change, done)
        except DatabaseError as error:
            raise _unavailable(error) from None

    def _begin(self, change: Change, done: Done, again: bool = False) -> Callable[[], bool]:
        return self.database.begin_in_batch(self._store_all, change, partial(self._end_store, change, done, again))

    def _end_store(self, change: Change, done: Done, again: bool, version: Outcome[int]) -> None:
        """Publish a change. If it exceeds a quota, remove expired keys and store it once more, unless ``again``."""
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
            self._announce(change.space, change.key, value, False, change.account, change.caller)
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
            self.database.begin(self._run_sweep, end)
        except DatabaseError as error:
            done(Error(_unavailable(error)))

    def _announce(
        self, space: str, key: str, version: int, deleted: bool, account: str, changer: int | None = None
    ) -> None:
        """Publish a change by ``account``; none if ``version`` is 0, which means that no key was deleted."""
        if not version:
            return
        if space == GLOBAL:
            charged_to = self._find_owner(account, changer)
            self.publish(StateChanged("global", key, version, None, deleted, charged_to, account))
        else:
            scope: Scope = "session" if is_session(space) else "agent"
            owner = self._find_owner(space, changer)
            self.publish(StateChanged(scope, key, version, owner, deleted, None, account_of(space)))

    async def fetch(self, spaces: Sequence[str], key: str) -> Found | None:
        """The key in the first of the spaces that has it."""
        with _readable():
            found: Found | None = await self.database.write_in_batch(fetch_all, (spaces, key))
            return found

    async def delete(
        self, space: str, key: str, if_version: int | None, account: str = "", caller: int | None = None
    ) -> bool:
        """Delete a key for ``caller``, whose account is ``account``; returns whether it existed.

        ``if_version`` as for :meth:`begin_store`.
        """
        with _readable():
            version = await self.database.write_in_batch(
                delete_all,
                (space, key, if_version),
                lambda deleted: self._announce(space, key, deleted, True, account, caller),
            )
            return bool(version)

    async def keys(self, space: str, prefixes: Sequence[str], after: str, limit: int) -> list[str]:
        """The first keys of a space behind ``after`` that begin with one of these prefixes, which are in order."""
        with _readable():
            return await self.database.write(partial(list_keys, space, prefixes, after, limit))

    async def copy(self, space: str) -> list[KeptKey]:
        """All keys of a private space."""
        with _readable():
            return await self.database.write(partial(read_space, space))

    async def check_replace(self, account: str, kept: Sequence[KeptKey]) -> None:
        """Raise what :meth:`replace` would now; nothing is changed."""

        def attempt(connection: sqlite3.Connection) -> None:
            replace_space(self.limits, account, kept, connection)
            raise _Fits  # which undoes it

        with contextlib.suppress(_Fits), _readable():
            await self._sweep()
            await self.database.write(attempt)

    async def replace(self, account: str, kept: Sequence[KeptKey]) -> None:
        """Give an agent the private keys of a copy, which get new versions; it has no others then.

        Raises ``QuotaExceeded`` if the account, or one above it, would exceed its limits.
        """

        def announce(done: Replaced) -> None:
            for keys, deleted in ((done.removed, True), (done.stored, False)):
                for key, version in keys:
                    self._announce(account, key, version, deleted, account)
            self._next_expiry = min([self._next_expiry, *(one.expires for one in kept if one.expires is not None)])
            self._wake.set()

        with _readable():
            await self._sweep()
            await self.database.write(partial(replace_space, self.limits, account, kept), announce)

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
            await self.database.write(self._run_sweep, self._announce_swept)
            is_due = self._next_expiry <= time.time()

    def _run_sweep(self, connection: sqlite3.Connection) -> Swept:
        # Runs in the database's thread. The sessions are listed now, in one step: a STORE of a session that begins
        # later is behind this in the queue. One that began while the sweep waited for room may be before it.
        return sweep(frozenset(self._sessions.values()), connection)

    def _announce_swept(self, swept: Swept) -> None:
        self._next_expiry = swept.next_expiry
        for space, key, version, account in swept.keys:
            self._announce(space, key, version, True, account)


class _Fits(Exception):
    """Keys have room."""


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        raise _unavailable(error) from None


def _unavailable(error: DatabaseError) -> Unavailable:
    return Unavailable(f"the state can't be read or written: {error}")
