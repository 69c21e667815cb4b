"""Hands messages out: they are taken for good, or leased until their reader acknowledges them.

A lease that ends, or whose reader's life has ended, gives its message back; after :data:`MAX_ATTEMPTS` it is a dead
letter. What is kept has changed in the database before a reader gets it.
"""

import heapq
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial

import trio
from attrs import define, field
from msgspec.structs import replace

from agentos.services.events import MailDead, Publish
from agentos_sdk.errors import NotFound

from . import rows
from .mailbox import MAX_MESSAGES, Lease, Mailbox, Message
from .store import MailStore, present

log = logging.getLogger(__name__)


@define(eq=False)
class Leases:
    """What the readers of ``boxes``, the open ones by id, have; :meth:`serve` has to run."""

    boxes: Mapping[int, Mailbox]
    store: MailStore | None
    publish: Publish
    _ends: list[tuple[float, int, int]] = field(factory=list)  # a heap: when a lease ends, its message and mailbox
    _most_ends: int = MAX_MESSAGES  # until those of leases that were removed are dropped
    _changed: trio.Event = field(factory=trio.Event)

    async def take(self, box: Mailbox, limit: int, lease: float | None) -> list[Message]:
        """Remove the oldest messages, or lease them for so many seconds; raises ``Unavailable``.

        Those of a mailbox that is kept are removed from the database, or their attempt counted there, before this
        returns.
        """
        taken = box.take(limit)
        numbers = [message.id for message in taken]
        leases = box.lease(taken, trio.current_time() + lease) if lease is not None else []
        if taken and box.kept is not None:
            batch = rows.count_attempts if leases else rows.remove_all
            undo = partial(self._undo_take, box, taken, leased=bool(leases))
            await present(self.store).write(batch, numbers, undo)
            if not leases:
                present(self.store).discharge(taken)
        self._watch(box, leases)
        return taken

    def lease_again(self, box: Mailbox, leases: Mapping[int, float]) -> None:
        """Lease waiting messages, by their ids, for so many seconds: the life that had leased them goes on."""
        for message in box.drop(leases, dead=False):
            self._watch(box, box.lease([message], trio.current_time() + leases[message.id]))

    def put_back(self, box: Mailbox, taken: Sequence[Message], *, leased: bool) -> None:
        """Undo :meth:`take` for a reader that has gone."""
        self._undo_take(box, taken, leased=leased)
        if box.kept is not None and not leased:
            present(self.store).insert_later(box.kept, [replace(one, attempt=one.attempt - 1) for one in taken])

    def _undo_take(self, box: Mailbox, taken: Sequence[Message], *, leased: bool) -> None:
        if leased:
            leases = [lease for one in taken if (lease := box.leases.get(one.id)) is not None and lease.message is one]
            taken = box.remove_leased([lease.message.id for lease in leases if not lease.acknowledging])
        box.put_back(taken)

    async def acknowledge(self, box: Mailbox, numbers: Sequence[int]) -> int:
        """Remove leased messages; returns how many. ``NotFound`` if some aren't leased any more; the rest is removed.

        Raises ``Unavailable``: then all are leased as before.
        """
        leases = [box.leases[number] for number in dict.fromkeys(numbers) if number in box.leases]
        leases = [lease for lease in leases if not lease.acknowledging]
        wanted = [lease.message.id for lease in leases]
        if wanted and box.kept is not None:
            for lease in leases:
                lease.acknowledging = True
            store = present(self.store)
            await store.write(rows.remove_for_good, wanted, partial(self._go_on, box, leases))
            store.discharge([lease.message for lease in leases])
        box.remove_leased(wanted)
        late = sorted(set(numbers).difference(wanted))
        if late:
            raise NotFound(
                f"ids: no lease of {', '.join(map(str, late[:10]))}{', ...' if late[10:] else ''} runs (any more): "
                f"it has ended, so the message is handed out again; {len(wanted)} others are acknowledged",
                acked=len(wanted),
                ids=late,
            )
        return len(wanted)

    def _go_on(self, box: Mailbox, leases: Sequence[Lease]) -> None:
        """Let leases run on that weren't acknowledged after all, but not into another life."""
        for lease in leases:
            lease.acknowledging = False
        self._watch(box, leases)
        self._end_former(box)

    async def serve(self) -> None:
        """End leases in time, until cancelled."""
        while True:
            with trio.move_on_at(self._ends[0][0] if self._ends else math.inf):
                await self._changed.wait()
            self._changed = trio.Event()
            ended = dict[Mailbox, set[int]]()  # one that went on after a failed ACK is in the heap twice
            while self._ends and self._ends[0][0] <= trio.current_time():
                at, number, owner = heapq.heappop(self._ends)
                if self._runs(at, number, owner):
                    ended.setdefault(self.boxes[owner], set()).add(number)
            for box, numbers in ended.items():
                self._end(box, sorted(numbers))

    def _watch(self, box: Mailbox, leases: Sequence[Lease]) -> None:
        """Have these leases end in time."""
        for lease in leases:
            heapq.heappush(self._ends, (lease.ends, lease.message.id, box.id))
        if leases:
            self._changed.set()
        if len(self._ends) > self._most_ends:
            self._ends = [one for one in dict.fromkeys(self._ends) if self._runs(*one)]
            heapq.heapify(self._ends)
            self._most_ends = max(MAX_MESSAGES, 2 * len(self._ends))

    def _runs(self, ends: float, number: int, owner: int) -> bool:
        box = self.boxes.get(owner)
        return box is not None and box.has_lease(number, ends)

    def end_life(self, box: Mailbox) -> None:
        """Give back what its reader has leased in a life that has ended."""
        box.life += 1
        self._end_former(box)

    def _end_former(self, box: Mailbox) -> None:
        """End leases of former lives."""
        former = [lease for lease in box.leases.values() if lease.life != box.life and not lease.acknowledging]
        self._end(box, [lease.message.id for lease in former])

    def _end(self, box: Mailbox, numbers: Sequence[int]) -> None:
        dead = box.end_leases(numbers)
        if not dead:
            return
        dropped = box.trim_dead()
        if box.kept is not None:
            present(self.store).write_later(rows.bury_all, [message.id for message in dead])
            present(self.store).forget(dropped)
        if dropped:
            log.warning("%s: its %d oldest dead letters were dropped for new ones", box.name, len(dropped))
        for message in dead:
            self.publish(MailDead(box.id, box.name, message.id, message.from_id, message.from_name, message.attempt))
