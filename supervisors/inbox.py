"""All that reaches a supervisor, in the order it came: ends, retries, a wish to stop, calls."""

from collections import deque
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field, frozen

from supervisors.child import Life
from supervisors.children import Child
from supervisors.exits import Exit


@frozen
class Over:
    """A life has ended. No longer of interest once the supervisor itself has waited for that end."""

    child: Child
    life: Life


@frozen
class Retry:
    """A restart failed: try once more, if the child still waits for it. By id, as OTP does."""

    id: str


@frozen
class Due:
    """A restart's delay is over, if ``timer`` is still the one the child waits for."""

    child: Child
    timer: trio.CancelScope


@frozen
class Stop:
    """End, with this exit."""

    exit: Exit


@define(eq=False)
class Call:
    """An API call on its way to the supervisor and back."""

    do: Callable[[], Awaitable[None]]
    answered: trio.Event = field(factory=trio.Event)
    withdrawn: bool = False
    error: Exception | None = None

    def answer(self, error: Exception | None = None) -> None:
        self.error = error
        self.answered.set()


Item = Over | Retry | Due | Stop | Call


class Inbox:
    """First in, first out. Its length is bounded by the children and the callers that wait, so it has no limit."""

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
        """What nobody will take any more."""
        items = list(self._items)
        self._items.clear()
        return items
