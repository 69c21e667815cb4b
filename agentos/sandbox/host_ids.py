"""Host uids of agents when the kernel has root: each name has its own uid, the same in each run.

A name keeps its id over restarts of agent and kernel until the range is used up. Then the least recently used id
goes to another name, if its own name neither runs nor has a kept workspace. Nothing is deleted for that: files that the
former agent left elsewhere on the host under this uid then belong to the uid of the next agent.

Stored in a file in the state directory, a line of JSON per name, the least recently used first::

    {"name": "writer", "id": 1610612736}

``id`` is both uid and gid.
"""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import trio

from agentos.private_files import read_file, replace_file, shown

from .plan import Outer

log = logging.getLogger(__name__)

FIRST, COUNT = 1610612736, 65536  # 0x60000000: above the ids of people, services and subordinate ids
_HIGHEST = (1 << 32) - 2  # -1 is no valid id
RETRY = 1.0  # seconds to wait after a failed write


class OuterIdError(Exception):
    """No uid can be assigned; the text says why and what to do."""


class OuterIds:
    """Assigns uids from a range. If all are assigned, the least recently used one is given to another name."""

    def __init__(self, path: Path, first: int = FIRST, count: int = COUNT) -> None:
        """:class:`OuterIdError` if the file is damaged: ids are never silently reassigned."""
        if first < 1 or count < 1 or first + count - 1 > _HIGHEST or first <= os.geteuid() < first + count:
            raise OuterIdError(
                f"{first}+{count} is no range for agents: it has root's, the kernel's or no user's id in it"
            )
        self._path, self._range = path, range(first, first + count)
        self._turn, self._saving, self._unsaved = trio.Lock(), trio.Lock(), trio.Event()
        self._given = _load(path, self._range)

    async def take(
        self,
        name: str,
        keeps: bool = True,
        in_use: AbstractSet[str] = frozenset(),
        kept: Callable[[], AbstractSet[str]] = frozenset,
    ) -> Outer:
        """Return the uid and gid of this name, which is now the most recently used.

        ``keeps``: files of this uid will remain, so the assignment is written to disk before return; for others
        :meth:`serve` writes it. ``in_use`` are the names that run; ``kept`` returns the names with kept files, and
        blocks: neither lose their uid. :class:`OuterIdError` if none is left.
        """
        async with self._turn:
            busy = in_use
            if name not in self._given and len(self._given) >= len(self._range):
                busy = in_use | await trio.to_thread.run_sync(kept)
            if name not in self._given:  # a change of order alone isn't worth a write
                self._unsaved.set()
            self._given = choose(self._given, name, self._range, busy)
        if keeps:
            await self._save()
        return Outer(self._given[name], self._given[name])

    async def serve(self) -> None:
        """Write new assignments to disk, until cancelled.

        If the host fails before that, only assignments of names without remaining files are lost.
        """
        try:
            while True:
                await self._unsaved.wait()
                try:
                    await self._save()
                except OSError as error:
                    log.warning("%s can't be written: %s", shown(self._path), error.strerror)
                    await trio.sleep(RETRY)
        finally:
            with trio.CancelScope(shield=True), contextlib.suppress(OSError):
                await self._save()

    async def _save(self) -> None:
        async with self._saving:
            if not self._unsaved.is_set():
                return
            self._unsaved = trio.Event()
            try:
                await trio.to_thread.run_sync(_write, self._path, self._given)
            except BaseException:
                self._unsaved.set()
                raise


def choose(given: Mapping[str, int], name: str, ids: range, busy: AbstractSet[str]) -> dict[str, int]:
    """Return the assignments after this name has taken its id: the name is last, as the most recently used."""
    left = {other: number for other, number in given.items() if other != name}
    if name in given:
        return {**left, name: given[name]}
    if len(left) < len(ids):
        return {**left, name: _free(ids, left.values())}
    idle = next((other for other in left if other not in busy), None)
    if idle is None:
        raise OuterIdError(
            f"all {len(ids)} ids for agents are in use or belong to kept workspaces: remove some of those"
        )
    number = left.pop(idle)
    return {**left, name: number}


def _free(ids: range, taken: Iterable[int]) -> int:
    """Return the next free id. In order, so it is found at once as long as no id was given up."""
    taken = frozenset(taken)
    after = ids[0] + len(taken)
    return after if after not in taken else next(number for number in ids if number not in taken)


def _write(path: Path, given: Mapping[str, int]) -> None:
    replace_file(path, "".join(json.dumps({"name": name, "id": number}) + "\n" for name, number in given.items()))


def _load(path: Path, ids: range) -> dict[str, int]:
    given: dict[str, int] = {}
    try:
        entries = list(_read(path))
        given = dict(entries)
        if not len(entries) == len(given) == len(set(given.values())):
            raise ValueError("a name or an id is in it twice")
        if outside := [number for number in given.values() if number not in ids]:
            raise ValueError(f"{outside[0]} is not in the range {ids[0]}+{len(ids)}")
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError) as error:
        raise OuterIdError(
            f"{shown(path)} can't be relied on ({error}): restore it, or remove it together with the kept workspaces, "
            "whose files belong to the users in it"
        ) from None
    return given


def _read(path: Path) -> Iterator[tuple[str, int]]:
    for line in read_file(path).splitlines():
        entry = json.loads(line)
        name, number = entry["name"], entry["id"]
        if not isinstance(name, str) or type(number) is not int:
            raise ValueError(f"not a name and an id: {line}")
        yield name, number
