"""Fair queue: serves owners round-robin, so one with many waiting items doesn't delay another's first."""

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import trio
from attrs import define, field

Owner = TypeVar("Owner", bound=Hashable)
Item = TypeVar("Item")


@define(eq=False)
class Turns(Generic[Owner, Item]):
    """Items by owner, in order per owner. Unlimited: producers check ``len()`` and call ``wait_taken``."""

    _waiting: OrderedDict[Owner, deque[Item]] = field(factory=OrderedDict)  # the next owner comes first
    _length: int = 0
    _adders: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    def __len__(self) -> int:
        return self._length

    def add(self, owner: Owner, item: Item) -> None:
        """Append an item to its owner's queue."""
        self._waiting.setdefault(owner, deque()).append(item)
        self._length += 1

    def take(self) -> tuple[Owner, Item]:
        """Remove and return the first item of the owner that is next; that owner then moves behind all others.

        ``KeyError`` if there is none.
        """
        owner, items = self._waiting.popitem(last=False)
        item = items.popleft()
        if items:
            self._waiting[owner] = items
        self._length -= 1
        self._adders.unpark_all()
        return owner, item

    def clear(self) -> Sequence[Item]:
        """Remove and return all items, in no particular order."""
        items = [item for queue in self._waiting.values() for item in queue]
        self._waiting.clear()
        self._length = 0
        return items

    async def wait_taken(self) -> None:
        """Wait until an item has been taken."""
        await self._adders.park()
