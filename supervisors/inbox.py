"""The inbox of a supervisor: exits, retries, stop requests and calls, in order of arrival."""

from collections import deque
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field
from msgspec import Struct

from supervisors.child import Life
from supervisors.children import Child
from supervisors.exits import Exit


class Over(Struct, frozen=True):
    """A life has ended. Ignored if the supervisor itself has waited for that end."""

    child: Child
    life: Life


class Retry(Struct, frozen=True):
    """A restart failed: retry if the child still waits for it. By id, as in OTP."""

    id: str


class Due(Struct, frozen=True):
    """A restart's delay is over; valid if ``timer`` is still the child's current one."""

    child: Child
    timer: trio.CancelScope


class Stop(Struct, frozen=True):
    """Stop with this exit."""

    exit: Exit


@define(eq=False)
class Call:
    """An API call to the supervisor, and its result."""

    do: Callable[[], Awaitable[None]]
    answered: trio.Event = field(factory=trio.Event)
    withdrawn: bool = False
    error: Exception | None = None

    def answer(self, error: Exception | None = None) -> None:
        self.error = error
        self.answered.set()


Item = Over | Retry | Due | Stop | Call


class Inbox:
    """A FIFO queue. Its length is bounded by the number of children and waiting callers, so it has no limit."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._arrival = trio.Event()

    def put(self, item: Item) -> None:
        self._items.append(item)
        self._arrival.set()

    async def take(self) -> Item:
        while not self._items:
            self._arrival = trio.Event()
            await self._arrival.wait()
        return self._items.popleft()

    def drain(self) -> list[Item]:
        """Remove and return all items."""
        items = list(self._items)
        self._items.clear()
        return items
