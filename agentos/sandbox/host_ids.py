"""Host uids of agents when the kernel has root: each name has its own uid, the same in each run.

A name keeps its id over restarts of agent and kernel until half of the range has been given, by all kernels together.
Then the least recently used id goes to another name, if its own name neither runs nor has a kept workspace. Nothing is
deleted for that: files that the former agent left elsewhere on the host under this uid then belong to the uid of the
next agent. The ids come from a registry of all kernels with root (:mod:`agentos.sandbox.host_id_registry`).

Stored in a file in the state directory, a line of JSON per name, the least recently used first::

    {"name": "writer", "id": 1610612736}

``id`` is both uid and gid.
"""

import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import trio

from agentos.private_files import display_path, read_file, replace_file
from agentos.threads import Limiter
from agentos_sdk.values import HostIds

from .host_id_registry import REGISTRY, HostIdError, HostIdRegistry

log = logging.getLogger(__name__)

FIRST_ID, ID_COUNT = 1610612736, 65536  # 0x60000000: above the ids of people, services and subordinate ids
_MAX_ID = (1 << 32) - 2  # -1 is no valid id
FIRST_BLOCK, BLOCK_COUNT, BLOCK_STEP = 0x70000000, 2048, 0x20000
STORE_IDS = (FIRST_BLOCK, 65537)  # first and count, PID 1's among them: root inside can give files to it
TRIAL_BLOCK = FIRST_BLOCK + BLOCK_COUNT - 1
"""Blocks of ids for agents with root inside: in the registry and in a pool, the number FIRST_BLOCK + N is block N.

No agent has the first, for files in the store, whose ids no process has, and the last one, which is for trials.
"""
SAVE_DELAY = 0.5  # seconds until new assignments are written: many share one write, which the spawns don't compete with
RETRY_DELAY = 1.0  # seconds to wait after a failed write


def first_of_block(number: int) -> HostIds:
    """The first ids of a block by its number in a pool; the ids from there on, :data:`BLOCK_STEP`, are all its own."""
    first = FIRST_BLOCK + (number - FIRST_BLOCK) * BLOCK_STEP
    return HostIds(first, first)


class HostIdPool:
    """Assigns uids from a range. If all are assigned, the least recently used one is given to another name.

    ``registry`` says which of the range are this kernel's. Where no more than half of the range is free it claims only
    what running agents and kept files need: ever new names must not use up the uids of other kernels.
    """

    def __init__(
        self,
        path: Path,
        registry: HostIdRegistry,
        first: int = FIRST_ID,
        count: int = ID_COUNT,
        names_with_files: AbstractSet[str] = frozenset(),
    ) -> None:
        """:class:`HostIdError` if the file is damaged, or ids of kept files are another kernel's.

        Ids of ``names_with_files`` are never silently reassigned.
        """
        if first < 1 or count < 1 or first + count - 1 > _MAX_ID or first <= os.geteuid() < first + count:
            contents = "root's id, the kernel's id or an invalid id"
            raise HostIdError(f"{first}+{count} is not a valid uid range for agents: it contains {contents}")
        self._path, self._registry, self._range = path, registry, range(first, first + count)
        self._lock, self._save_lock, self._unsaved = Limiter(1), trio.Lock(), trio.Event()
        loaded = _load_assignments(path, self._range)
        own = registry.hold_claimed(frozenset(loaded.values()))
        ids = [number for ids in own for number in ids if number in self._range]
        self._assigned = _drop_foreign(path, loaded, frozenset(ids), names_with_files)
        taken = frozenset(self._assigned.values())
        self._free = deque(number for number in ids if number not in taken)

    async def take(
        self,
        name: str,
        keeps_files: bool = True,
        in_use: AbstractSet[str] = frozenset(),
        names_with_files: Callable[[], AbstractSet[str]] = frozenset,
    ) -> HostIds:
        """Return the uid and gid of this name, which is now the most recently used.

        ``keeps_files``: files of this uid will remain, so the assignment is written to disk before return; for others
        :meth:`serve` writes it. ``in_use`` are the names that run; ``names_with_files`` returns the names with kept
        files, and blocks: neither lose their uid. :class:`HostIdError` if none is left.
        """
        async with self._lock:
            busy = in_use
            if name not in self._assigned and not self._free:
                await self._claim(spare=len(self._range) // 2 if self._assigned else 0)
                if not self._free:
                    busy = in_use | await trio.to_thread.run_sync(names_with_files)
                    if self._assigned.keys() <= busy:
                        await self._claim()
            if name not in self._assigned:  # a change of order alone isn't worth a write
                self._unsaved.set()
            try:
                number = assign_id(self._assigned, self._free, name, busy)
            except HostIdError as error:
                if others := len(self._range) - len(self._assigned):
                    raise HostIdError(
                        f"{error}, or give this kernel a range of its own with uids in [kernel]: "
                        f"{others} of the {len(self._range)} here belong to other kernels ({REGISTRY}/claims.json)"
                    ) from None
                raise
        if keeps_files:
            await self._save()
        return HostIds(number, number)

    async def _claim(self, spare: int = 0) -> None:
        more = await trio.to_thread.run_sync(self._registry.claim, self._range, spare)
        self._free.extend(more or ())

    async def serve(self) -> None:
        """Write new assignments to disk, until cancelled.

        If the host fails before that, only assignments of names without remaining files are lost.
        """
        try:
            while True:
                await self._unsaved.wait()
                await trio.sleep(SAVE_DELAY)
                try:
                    await self._save()
                except OSError as error:
                    log.warning("%s can't be written: %s", display_path(self._path), error.strerror)
                    await trio.sleep(RETRY_DELAY)
        finally:
            with trio.CancelScope(shield=True), contextlib.suppress(OSError):
                await self._save()

    async def _save(self) -> None:
        async with self._save_lock:
            if not self._unsaved.is_set():
                return
            self._unsaved = trio.Event()
            try:
                await trio.to_thread.run_sync(_write_assignments, self._path, dict(self._assigned))
            except BaseException:
                self._unsaved.set()
                raise


def assign_id(assigned: dict[str, int], free: deque[int], name: str, busy: AbstractSet[str]) -> int:
    """Return this name's id, or else take a free one, or that of the name that was used longest ago and isn't busy.

    ``assigned`` and ``free`` are changed: the name is now the last of those assigned, as the most recently used.
    """
    number = assigned.pop(name, None)
    if number is None and free:
        number = free.popleft()
    elif number is None:
        idle = next((other for other in assigned if other not in busy), None)
        if idle is None:
            count = len(assigned)
            raise HostIdError(
                f"all {count} uids for agents are in use or belong to kept workspaces: remove some kept workspaces"
            )
        number = assigned.pop(idle)
    assigned[name] = number
    return number


def _drop_foreign(
    path: Path, loaded: Mapping[str, int], own: AbstractSet[int], names_with_files: AbstractSet[str]
) -> dict[str, int]:
    """The assignments without the ids that another kernel's registered before: those names get others."""
    foreign = {name: number for name, number in loaded.items() if number not in own}
    if kept := sorted(names_with_files & foreign.keys()):
        raise HostIdError(
            f"{display_path(path)}: uid {foreign[kept[0]]} of {kept[0]}, which has a kept workspace, is another "
            f"state directory's ({REGISTRY}/claims.json), of which this one may be a copy: remove the workspace, "
            "or stop the other kernel, move its state directory away and start this one first"
        )
    if foreign:
        log.warning("%d agents get another uid: theirs are another state directory's", len(foreign))
    return {name: number for name, number in loaded.items() if number in own}


def _write_assignments(path: Path, assigned: Mapping[str, int]) -> None:
    replace_file(path, "".join(json.dumps({"name": name, "id": number}) + "\n" for name, number in assigned.items()))


def _load_assignments(path: Path, ids: range) -> dict[str, int]:
    assigned: dict[str, int] = {}
    try:
        entries = list(_read_assignments(path))
        assigned = dict(entries)
        if not len(entries) == len(assigned) == len(set(assigned.values())):
            raise ValueError("a name or an id is in it twice")
        if outside := [number for number in assigned.values() if number not in ids]:
            raise ValueError(f"{outside[0]} is not in the range {ids[0]}+{len(ids)}")
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HostIdError(
            f"{display_path(path)} is damaged ({error}): restore it, or remove it together with the kept workspaces, "
            "because their files belong to the uids in it"
        ) from None
    return assigned


def _read_assignments(path: Path) -> Iterator[tuple[str, int]]:
    for line in read_file(path).splitlines():
        entry = json.loads(line)
        name, number = entry["name"], entry["id"]
        if not isinstance(name, str) or type(number) is not int:
            raise ValueError(f"not a name and an id: {line}")
        yield name, number
