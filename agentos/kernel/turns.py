"""A queue that serves its owners in turn: one with many items waiting doesn't stand before another's first."""

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import trio
from attrs import define, field

Owner = TypeVar("Owner", bound=Hashable)
Item = TypeVar("Item")


@define(eq=False)
class Turns(Generic[Owner, Item]):
    """Items by their owner; those of one owner keep their order. Who adds bounds it, by its length."""

    _waiting: OrderedDict[Owner, deque[Item]] = field(factory=OrderedDict)  # whose turn is next comes first
    _length: int = 0
    _takers: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)
    _adders: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    def __len__(self) -> int:
        return self._length

    def add(self, owner: Owner, item: Item) -> None:
        """Queue an item behind its owner's others."""
        self._waiting.setdefault(owner, deque()).append(item)
        self._length += 1
        self._takers.unpark()

    async def take(self) -> tuple[Owner, Item]:
        """The first item of the owner whose turn it is; waits for one. That owner's next turn is after all others'."""
        while not self._waiting:
            await self._takers.park()
        owner, items = self._waiting.popitem(last=False)
        item = items.popleft()
        if items:
            self._waiting[owner] = items
        self._length -= 1
        self._adders.unpark_all()
        return owner, item

    def clear(self) -> Sequence[Item]:
        """Take all items, in no order."""
        items = [item for queue in self._waiting.values() for item in queue]
        self._waiting.clear()
        self._length = 0
        return items

    async def until_taken(self) -> None:
        """Return when an item has been taken."""
        await self._adders.park()
