"""When leases of messages end: one heap for all mailboxes."""

import heapq
import math
from collections.abc import Mapping, Sequence

import trio
from attrs import define, field

from .mailbox import MAX_MESSAGES, Lease, Mailbox


@define(eq=False)
class LeaseEnds:
    """The ends of leases, earliest first. Those of leases that were removed stay until there are twice as many."""

    _heap: list[tuple[float, int, int]] = field(factory=list)  # end, message and mailbox
    _most: int = MAX_MESSAGES
    _changed: trio.Event = field(factory=trio.Event)

    def add(self, box: Mailbox, leases: Sequence[Lease], boxes: Mapping[int, Mailbox]) -> None:
        """Add the ends of leases of ``box``, one of ``boxes``."""
        for lease in leases:
            heapq.heappush(self._heap, (lease.ends, lease.message.id, box.id))
        if leases:
            self._changed.set()
        if len(self._heap) > self._most:
            self._heap = [one for one in dict.fromkeys(self._heap) if _has_lease(boxes, *one)]
            heapq.heapify(self._heap)
            self._most = max(MAX_MESSAGES, 2 * len(self._heap))

    def __len__(self) -> int:
        return len(self._heap)

    async def wait(self, boxes: Mapping[int, Mailbox]) -> Mapping[Mailbox, Sequence[int]]:
        """Wait for the next end, or that there are more; return the messages whose leases have ended, by mailbox."""
        with trio.move_on_at(self._heap[0][0] if self._heap else math.inf):
            await self._changed.wait()
        self._changed = trio.Event()
        ended = dict[Mailbox, set[int]]()  # one that went on after a failed ACK is in the heap twice
        while self._heap and self._heap[0][0] <= trio.current_time():
            at, number, owner = heapq.heappop(self._heap)
            if _has_lease(boxes, at, number, owner):
                ended.setdefault(boxes[owner], set()).add(number)
        return {box: sorted(numbers) for box, numbers in ended.items()}


def _has_lease(boxes: Mapping[int, Mailbox], ends: float, number: int, owner: int) -> bool:
    box = boxes.get(owner)
    return box is not None and box.has_lease(number, ends)
