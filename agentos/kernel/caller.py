"""Who calls: known from the socket, never from what a frame says."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import trio
from attrs import define, field

from .ports import Authorizer, Right

if TYPE_CHECKING:
    from .table import Table

MAX_CONNECTIONS = 64
MAX_CALLS = 256
MAX_BODIES = 64 << 20  # bytes


@define(eq=False)
class Allowance:
    """What one caller may have under way at once, over all its connections.

    ``bodies`` counts the bytes of requests that are arriving, being answered, or whose replies the peer hasn't read.
    Over the limit nothing is refused: the caller's connections are not read until there is room again.
    """

    connections: int = 0
    calls: int = 0
    bodies: int = 0
    _waiting: trio.lowlevel.ParkingLot | None = None

    @property
    def room(self) -> bool:
        """One more call may be read."""
        return self.calls < MAX_CALLS and self.has_bytes

    @property
    def has_bytes(self) -> bool:
        """A call under way may make its reply, however large."""
        return self.bodies < MAX_BODIES

    def begin(self, size: int) -> None:
        """A call with a body of ``size`` bytes is under way."""
        self.calls += 1
        self.bodies += size

    def end(self, size: int) -> None:
        """That call is over and its reply is out."""
        self.calls -= 1
        self.give_back(size)

    def reserve(self, size: int) -> None:
        """A large body of ``size`` bytes is about to arrive, or a large reply waits to be read."""
        self.bodies += size

    def give_back(self, size: int) -> None:
        """Undo :meth:`reserve`."""
        self.bodies -= size
        if self._waiting is not None and self.has_bytes:
            self._waiting.unpark_all()

    async def wait_for_room(self) -> None:
        """Return when :attr:`room` is true; at once if it is."""
        while not self.room:
            await self._wait()

    async def wait_for_bytes(self) -> None:
        """Return when :attr:`has_bytes` is true; at once if it is."""
        while not self.has_bytes:
            await self._wait()

    async def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()


@define(eq=False)
class Caller:
    """Somebody who makes calls: an agent with all its connections, or one connection of the operator's."""

    id: int
    kind: Literal["operator", "agent"]
    name: str
    table: "Table"
    authorizer: Authorizer
    allowance: Allowance = field(factory=Allowance)
    on_hello: Callable[[], None] | None = None

    def check(self, right: Right) -> None:
        """Raise ``PermissionDenied`` unless this caller holds ``right``."""
        self.authorizer.check(self, right)
