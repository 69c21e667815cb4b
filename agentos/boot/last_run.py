"""The record of a run, ``last-run.json`` in the state directory: by it the next kernel knows how the last one ended.

A kernel that is killed can't say so. It writes each second, if that has changed, what would be lost with it: running
agents, unread messages, calls and approvals that wait; and how many commits the database has had, so that an older or
another database is found out. After an orderly end the record has the unread messages in memory that ended with the
kernel. Written without fsync: what a process has written survives its SIGKILL. After a power failure ``synced`` counts,
the commits that were safe on disk. docs/decisions/0092.
"""

import contextlib
import functools
import logging
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import msgspec
import trio
from attrs import define
from msgspec import Struct
from msgspec.structs import replace

from agentos.agents.tree.event_lines import format_time
from agentos.database import Database, DatabaseError
from agentos.database_file import Identity
from agentos.private_files import display_path, replace_file
from agentos.services.events import KernelKilled
from agentos.structs import learn, read_json
from agentos.threads import run_in_thread

log = logging.getLogger("agentos.kernel")

NAME: Final = "last-run.json"
INTERVAL: Final = 1.0  # seconds between two records
MAX_NAMES: Final = 100  # of running agents
MAX_SHOWN: Final = 10  # of them, in a sentence
ACCEPT: Final = "start once with --accept-lost-state to go on with it as it is"


class Doing(Struct, frozen=True):
    """What goes with a kernel that is killed now: running agents and, by kind, how many things wait."""

    agents: tuple[str, ...] = ()
    running: int = 0
    messages: int = 0
    calls: int = 0
    approvals: int = 0


class RunRecord(Struct, frozen=True):
    """``host`` is the boot of the host, ``at`` seconds since the epoch, ``synced`` the commits that were on disk."""

    host: str
    at: float
    ended: bool = False
    doing: Doing = Doing()
    database: Identity = Identity()
    synced: int = 0


learn(RunRecord)


def read_record(state_dir: Path) -> RunRecord | None:
    """The record of the last run; None if there was none. Raises ``OSError`` for an unsafe file. Blocks."""
    try:
        return read_json(state_dir / NAME, RunRecord)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        path = display_path(state_dir / NAME)
        log.warning("%s: can't be read, so it isn't known how the last kernel ended: %s", path, error)
        return None


@define
class DatabaseCheck:
    """Refuses another database than the last kernel's, unless that is ``accepted``; then ``is_lost`` is set."""

    last: RunRecord | None
    state_dir: Path
    accepted: bool
    is_lost: bool = False

    def __call__(self, found: Identity | None) -> None:
        """See :class:`agentos.database.CheckIdentity`."""
        try:
            check_database(self.last, self.state_dir, found)
        except DatabaseError as error:
            if not self.accepted:
                raise
            self.is_lost = True
            log.warning("accepted: %s", error)

    def find_given(self, per_second: int = 1) -> int:
        """Up to which number ids may have been given that this database doesn't know of: by this rate since 1970.

        Programs and persons that have such an id must not reach something of this kernel's by it.
        """
        return int(time.time() * per_second) if self.is_lost else 0


def check_database(last: RunRecord | None, state_dir: Path, found: Identity | None) -> None:
    """Raise ``DatabaseError`` if this isn't the database of the last kernel; ``found`` is None for a new one."""
    path = display_path(state_dir / "agentos.db")
    known = last.database if last is not None else Identity()
    if found is None:
        if known.id or any(map(_is_filled, (state_dir / "audit").glob("*.db"))):
            raise DatabaseError(
                f"{path}: it is missing or empty, and an earlier kernel had one: restore it, or {ACCEPT}"
            )
        return
    if last is None or not known.id:
        return
    if found.id != known.id:
        raise DatabaseError(f"{path}: another database than that of the last kernel: restore that, or {ACCEPT}")
    least = known.commits if last.host == host_boot() else last.synced
    if found.commits < least:
        raise DatabaseError(
            f"{path}: older than the last kernel left it ({found.commits} commits instead of {least}): "
            f"restore the newer one, or {ACCEPT}"
        )


def _is_filled(path: Path) -> bool:
    """Whether it is a file that a kernel wrote; links are refused later."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size > 0


def describe_kill(last: RunRecord | None) -> KernelKilled | None:
    """What the last kernel lost by not ending in order; None if it did, or there was none. Blocks."""
    if last is None or last.ended:
        return None
    doing = last.doing
    how = "was killed" if last.host == host_boot() else "didn't end in order, and the host was started anew since"
    names = ", ".join(doing.agents[:MAX_SHOWN])
    more = f" and {doing.running - MAX_SHOWN} more" if doing.running > MAX_SHOWN else ""
    waited = (
        (doing.messages, "unread message"),
        (doing.calls, "unanswered call"),
        (doing.approvals, "waiting approval"),
    )
    lost = ", ".join(count(number, what) for number, what in waited if number)
    text = (
        f"the last kernel {how}; at {format_time(last.at)} {f'these ran: {names}{more}' if names else 'no agent ran'}; "
        f"lost with it: {lost or 'nothing that waited'}"
    )
    return KernelKilled(text, last.at, doing.agents, doing.running, doing.messages, doing.calls, doing.approvals)


def describe_loss(last: RunRecord | None) -> str | None:
    """What the last kernel lost although it ended in order; None if it lost nothing or was killed."""
    if last is None or not last.ended or not last.doing.messages:
        return None
    lost = count(last.doing.messages, "unread message")
    return f"lost with the last kernel, which ended in order at {format_time(last.at)}: {lost} in memory"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


@functools.cache
def host_boot() -> str:
    """An id that is another after each start of the host. Blocks."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@define(eq=False)
class RunRecorder:
    """Writes the record of this run. ``look`` says what goes on now."""

    state_dir: Path
    database: Database | None = None
    look: Callable[[], Doing] = Doing
    _written: RunRecord | None = None
    _synced: int = 0
    _failing: bool = False

    @contextlib.asynccontextmanager
    async def keep(self) -> AsyncIterator[None]:
        """Record at the end of the block, when the database is closed, that this run has ended in order."""
        try:
            yield
        finally:
            if self._written is not None:
                with trio.CancelScope(shield=True):
                    await self._write(ended=True, sync=True)

    async def begin(self, database: Database) -> None:
        """Record that a run has begun. Raises ``OSError``."""
        self.database, self._synced = database, database.identity.commits
        record = self._describe(ended=False)
        await run_in_thread(_replace, self.state_dir, record, True)
        self._written = record

    async def serve(self) -> None:
        """Record what goes on, until cancelled."""
        while True:
            await trio.sleep(INTERVAL)
            await self._write()

    async def _write(self, ended: bool = False, sync: bool = False) -> None:
        assert self._written is not None, "it has begun"
        record = self._describe(ended)
        if replace(record, at=self._written.at) == self._written:
            return
        try:
            await run_in_thread(_replace, self.state_dir, record, sync)
        except OSError as error:
            if not self._failing:
                log.error("%s: not written: %s", display_path(self.state_dir / NAME), error.strerror)
            self._failing = True
            return
        self._written, self._failing = record, False

    def _describe(self, ended: bool) -> RunRecord:
        assert self.database is not None, "it has begun"
        identity = self.database.identity
        synced = identity.commits if ended else self._synced
        doing = self.look()
        if ended:
            doing = Doing(messages=doing.messages)
        return RunRecord(host_boot(), time.time(), ended, doing, identity, synced)


def _replace(state_dir: Path, record: RunRecord, sync: bool) -> None:
    replace_file(state_dir / NAME, msgspec.json.encode(record).decode(), sync=sync)
