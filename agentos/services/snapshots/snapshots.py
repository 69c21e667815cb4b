"""Snapshots of agents' overlays: taken, listed, removed, gone back to, and begun from by forks.

A program that runs is held still while its upper layer is copied: the copy is what a power failure would have left, so
databases recover from it. An agent without a program needs no copy: its upper layer is sealed as it is, and its next
life makes a new one. docs/decisions/0104.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import trio
from attrs import define

from agentos.services.state.copies import KeptKey
from agentos.threads import run_in_thread
from agentos_sdk.errors import QuotaExceeded, Unavailable

from .kept import Kept, read_keys
from .overlays import NoOverlay, Overlays
from .records import BadLayer, Record, Snapshot
from .store import MAX_DEPTH, drop_layers

log = logging.getLogger(__name__)

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
LABEL_RULE = "1 to 64 letters, digits, '.', '_' or '-', begun by a letter or digit, and not start"
START = "start"  # the moment before all that an agent has changed
MAX_SNAPSHOTS = 1000  # of one agent
OF_RECORDING = "recording of "  # begins the origin of an overlay in which a recorded life is lived again
MAX_BY_AGENTS = 16  # of these, taken by agents: each may have a copy of all that the agent has changed

HoldStill = Callable[[], AbstractAsyncContextManager[bool]]
"""Holds an agent's program still; whether there is one."""


class Taken(Exception):
    """An agent has a snapshot of this label, or files of this name; the text says which."""


@define(eq=False)
class Snapshots:
    """All snapshots of one kernel."""

    overlays: Overlays
    kept: Kept

    def __attrs_post_init__(self) -> None:
        self.overlays.give_back = partial(self.kept.give_back, self.overlays.store)

    async def take(
        self,
        name: str,
        account: str,
        label: str,
        hold_still: HoldStill,
        by_agent: bool = False,
        recorded: bool = False,
    ) -> Snapshot:
        """Keep what an agent is now. ``account`` is whose keys are its private ones; ``by_agent``: an agent asks.

        One that is ``recorded`` belongs to a recording, and counts for no bound of the agent's.

        Raises ``QuotaExceeded``, :class:`Taken`, :class:`NoOverlay`, :class:`BadLayer`, ``OSError``, ``Unavailable``,
        or what ``hold_still`` does; then there is no snapshot.
        """
        async with self.overlays.lock(name):
            number = await run_in_thread(self._begin, name, label, by_agent)
            try:
                async with hold_still() as runs:
                    kept = await self.kept.copy(number, account)
                    record = await run_in_thread(self._copy if runs else self._seal, name)
                made = Snapshot(
                    id=number,
                    name=name,
                    at=time.time(),
                    layers=record.sealed,
                    directory=record.directory,
                    inode=record.inode,
                    since=record.since,
                    stamps=record.stamps,
                    label=label,
                    parent=record.snapshot,
                    account=account,
                    by_agent=by_agent,
                    recorded=recorded,
                )
                return await run_in_thread(self._finish, made, kept)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await run_in_thread(self._abandon, name, number)
                    await self.forget_lost()
                raise

    async def list(self, name: str | None = None, *, recorded: bool = False) -> Sequence[Snapshot]:
        """The snapshots of an agent, or all, the oldest first: those of recordings, or else the others.

        Raises :class:`BadLayer`.
        """
        found = await run_in_thread(self.overlays.store.list_snapshots)
        return [one for one in found if name in (None, one.name) and one.recorded is recorded]

    async def find(self, name: str, moment: str) -> Snapshot:
        """An agent's snapshot by label or id; :class:`NoOverlay` if it has none of that, :class:`BadLayer`."""
        found = await run_in_thread(self.overlays.store.find_snapshot, name, moment)
        if found is None:
            raise NoOverlay(f"{name} has no snapshot {moment}: `agentos snapshots {name}` lists them")
        return found

    async def remove(self, snapshot: Snapshot) -> None:
        """Remove a snapshot, with the layers that nothing else needs. Raises :class:`Taken`, ``OSError``."""
        async with self.overlays.lock(snapshot.name):
            await run_in_thread(self._remove, snapshot)
            await self.forget_lost()

    async def roll_back(self, snapshot: Snapshot, runs: Callable[[], bool]) -> bool:
        """Have the agent's next life go back to a snapshot; now, unless it ``runs``, which is returned.

        Raises :class:`NoOverlay`, :class:`BadLayer`, ``OSError``, or ``QuotaExceeded`` if its keys have no room now,
        and nothing has changed; or ``Unavailable``.
        """
        async with self.overlays.lock(snapshot.name):
            await self.kept.state.check_replace(snapshot.account, await self.read_keys(snapshot))
            await run_in_thread(self._begin_return, snapshot)
            used = runs()  # a life that begins now waits for the lock
            if not used:
                await self.overlays.finish_return(snapshot.name)
            return used

    async def begin_fork(self, snapshot: Snapshot, name: str, account: str, moment: str) -> None:
        """Have an agent that hasn't begun go on from a snapshot: its files, and its keys, but no messages.

        ``moment`` is shown as its origin. Raises :class:`Taken`, :class:`NoOverlay`, :class:`BadLayer`, ``OSError``,
        ``QuotaExceeded`` or ``Unavailable``: then nothing is left of it.
        """
        if await self.is_used(name, account):
            raise Taken(f"names: {name} has changes or keys of a former agent: choose another name")
        async with self.overlays.lock(name):
            await run_in_thread(self._begin_fork, snapshot, name, moment)
        try:
            await self.kept.give_fork(self.overlays.store, snapshot, account)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.end_fork(name, account)
            raise

    async def is_used(self, name: str, account: str) -> bool:
        """Whether something of a former agent of this name would be lost."""
        record = await run_in_thread(self.overlays.store.load, name)
        return (record is not None and not record.discarded) or bool(await self.kept.state.copy(account))

    async def end_fork(self, name: str, account: str) -> None:
        """Remove all of a fork that didn't come up."""
        async with self.overlays.lock(name):
            await run_in_thread(self.overlays.store.forget, name)
        await self.kept.state.replace(account, [])

    async def begin_scratch(self, snapshot: Snapshot, name: str) -> None:
        """Have an agent that hasn't begun work above a snapshot, for a recorded life that is lived again.

        What a former one of this name has left is removed. Raises as :meth:`begin_fork` does.
        """
        async with self.overlays.lock(name):
            await run_in_thread(self._begin_scratch, snapshot, name)

    async def read_keys(self, snapshot: Snapshot) -> Sequence[KeptKey]:
        """The private keys that a snapshot has. Raises ``OSError``."""
        return await run_in_thread(read_keys, self.overlays.store, snapshot)

    async def end_scratch(self, name: str) -> None:
        """Remove what :meth:`begin_scratch` has made, and the agent has changed. Raises ``OSError``, ``BadLayer``."""
        async with self.overlays.lock(name):
            await run_in_thread(self._end_scratch, name)

    async def check(self, snapshot: Snapshot, directory: str) -> None:
        """Raise :class:`BadLayer` unless a snapshot can be used over this directory."""
        if snapshot.directory != directory:
            raise BadLayer(f"{snapshot.address} is of {snapshot.directory}, and {snapshot.name} has {directory} now")
        await run_in_thread(self.overlays.store.check, snapshot)

    async def forget_lost(self) -> None:
        """Remove the copies of messages that no snapshot has, such as those that a killed kernel has begun."""
        try:
            found = await run_in_thread(self.overlays.store.list_snapshots)
            await self.kept.mail.forget_others({one.id for one in found} | self.overlays.store.making)
        except (BadLayer, OSError, Unavailable) as error:
            log.warning("copies of messages that no snapshot needs stay until the next start: %s", error)

    # -- In threads --------------------------------------------------------------------------------------------------

    def _begin(self, name: str, label: str, by_agent: bool) -> str:
        """Check that a snapshot can be taken; returns its id, which counts as being made from now on."""
        store, record = self.overlays.store, self.overlays.require(name)
        if record.discarded or record.returning:
            raise BadLayer(f"{name} is being rolled back: take a snapshot when it has started again")
        own = [one for one in store.list_snapshots() if one.name == name and not one.recorded]
        if label and any(label in (one.label, one.id) for one in own):
            raise Taken(f"label: {name}@{label} exists: choose another, or remove it (`agentos snapshots --remove`)")
        if len(own) >= MAX_SNAPSHOTS:
            raise Taken(f"{name} has {len(own)} snapshots, and may have {MAX_SNAPSHOTS}: remove some")
        if by_agent and sum(one.by_agent for one in own) >= MAX_BY_AGENTS:
            raise QuotaExceeded(
                f"{name} has {MAX_BY_AGENTS} snapshots that agents have taken: the operator may remove some"
            )
        number = secrets.token_hex(4)
        store.making.add(number)
        return number

    def _copy(self, name: str) -> Record:
        """The record as it would be if the upper layer, which is in use, were sealed: a copy of it is."""
        record = self.overlays.require(name)
        if not self._is_empty(name, record):
            stack = [f"{name}/{record.layer}", *record.sealed]
            copied = stack if len(stack) > MAX_DEPTH else stack[:1]
            record.sealed = [self.overlays.store.copy(name, copied), *stack[len(copied) :]]
        return record

    def _seal(self, name: str) -> Record:
        """Seal the upper layer; nothing uses it."""
        store, record = self.overlays.store, self.overlays.require(name)
        if not self._is_empty(name, record):
            stack = [f"{name}/{record.layer}", *record.sealed]
            record.sealed = stack if len(stack) <= MAX_DEPTH else [store.copy(name, stack)]
            record.layer = ""
            store.save(name, record)
        return record

    def _is_empty(self, name: str, record: Record) -> bool:
        return not record.layer or self.overlays.store.is_empty(name, record.layer)

    def _finish(self, made: Snapshot, kept: bytes) -> Snapshot:
        store = self.overlays.store
        seals = [store.seal(layer) for layer in made.layers]
        former = {layer for one in store.list_snapshots() for layer in one.layers}
        if made.layers and made.layers[0] not in former:
            made.bytes, made.paths = seals[0].bytes, seals[0].paths
        with store.references:
            store.add_snapshot(made, kept)
            store.making -= {made.id, *made.layers}
        if not made.recorded:
            record = self.overlays.require(made.name)
            record.snapshot = made.id
            store.save(made.name, record)
        return made

    def _abandon(self, name: str, number: str) -> None:
        """Remove what was made for a snapshot that isn't taken after all."""
        store = self.overlays.store
        with store.references:
            store.making -= {number, *(layer for layer in store.making if layer.startswith(f"{name}/"))}
            store.collect([name])

    def _remove(self, snapshot: Snapshot) -> None:
        store = self.overlays.store
        record = store.load(snapshot.name)
        if record is not None and record.returning == snapshot.id:
            raise Taken(f"{snapshot.name} is being rolled back to {snapshot.address}: remove it when that has started")
        store.remove_snapshot(snapshot)

    def _begin_fork(self, snapshot: Snapshot, name: str, moment: str) -> None:
        store = self.overlays.store
        with store.references:
            if store.find_snapshot(snapshot.name, snapshot.id) is None:
                raise NoOverlay(f"{snapshot.address} was removed meanwhile")
            store.save(
                name,
                Record(
                    snapshot.directory,
                    snapshot.inode,
                    snapshot.since,
                    layer="",
                    stamps=snapshot.stamps,
                    sealed=snapshot.layers,
                    snapshot=snapshot.id,
                    forked_from=moment,
                ),
            )

    def _begin_scratch(self, snapshot: Snapshot, name: str) -> None:
        record = self.overlays.store.load(name)
        if record is not None and not record.discarded and not record.forked_from.startswith(OF_RECORDING):
            raise Taken(f"{name} has changes of a former agent: apply or discard them (`agentos diff {name}`)")
        self._end_scratch(name)
        self._begin_fork(snapshot, name, f"{OF_RECORDING}{snapshot.address}")

    def _end_scratch(self, name: str) -> None:
        store = self.overlays.store
        if (record := store.load(name)) is not None:
            drop_layers(store, name, record)
            store.forget_unless_named(name)

    def _begin_return(self, snapshot: Snapshot) -> None:
        store, record = self.overlays.store, self.overlays.require(snapshot.name)
        if record.directory != snapshot.directory:
            raise BadLayer(f"{snapshot.address} is of {snapshot.directory}, and {snapshot.name} has {record.directory}")
        store.check(snapshot)
        record.returning, record.discarded = snapshot.id, False
        store.save(snapshot.name, record)


def check_label(label: str) -> str | None:
    """Why a label can't be one; None if it can."""
    if LABEL.fullmatch(label) and label != START:
        return None
    return f"label: expected {LABEL_RULE}, got {label!r}"
