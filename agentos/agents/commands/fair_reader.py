"""Fair reading of program output: any number of programs that write nonstop share the read time of one."""

import os
from collections.abc import Awaitable, Callable, Hashable

import trio
from attrs import define, field

AHEAD = 0.1  # seconds of credit: a program below it doesn't wait, so one that writes little never does
PIECE = 0.02  # seconds of its time that a program uses per read, so that other tasks run in between
WORTH = 0.001  # seconds that a read costs at least, however few bytes it gets
LEAST = 256  # bytes of the smallest read
LAST = 1 << 20  # bytes read at most after the program's end; other processes may still write to the pipe


@define(eq=False)
class Turns:
    """Shares the read time among all programs of a kernel."""

    _busy: dict[Hashable, float] = field(factory=dict)  # by owner: when its used time is over, by trio's clock

    def use(self, whose: Hashable, seconds: float) -> float:
        """Charge an owner for a read that costs ``seconds`` if it is alone; returns how long it must wait now.

        The cost is multiplied by the number of owners that are charged at the time, so the total rate stays the same.
        """
        now = trio.current_time()
        self._busy = {one: until for one, until in self._busy.items() if until > now}
        begin = self._busy.setdefault(whose, now)
        until = self._busy[whose] = begin + seconds * len(self._busy)
        return max(0.0, until - now - AHEAD)


class Pipe:
    """One stream of a program, read in the turns of its owner.

    ``take`` gets the data, at most ``most`` bytes per read while the program runs, and returns the read's cost in
    seconds. If ``taken`` is given, nothing more is read until it has returned.
    """

    def __init__(
        self,
        fd: int,
        turns: Turns,
        whose: Hashable,
        most: int,
        take: Callable[[bytes], float],
        taken: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._turns = turns
        self._whose = whose
        self._most = most
        self._size = LEAST
        self._take = take
        self._taken = taken

    async def run(self) -> None:
        """Read until the stream ends or this is cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            data = self._read(self._size)
            if data == b"":
                return
            if data is not None:
                seconds = max(WORTH, self._take(data))
                if self._taken is not None:
                    await self._taken()
                self._size = max(LEAST, min(self._most, 2 * self._size, int(len(data) * PIECE / seconds)))
                await trio.sleep(self._turns.use(self._whose, seconds))

    def finish(self) -> None:
        """Read what the pipe holds now, then close it. Later writes by other holders of the pipe fail."""
        rest = bytearray()
        while len(rest) < LAST and (data := self._read(64 << 10)):
            rest += data
        self._take(bytes(rest))
        os.close(self._fd)

    def _read(self, size: int) -> bytes | None:
        """The data read; empty at the end, None if there is nothing yet."""
        try:
            return os.read(self._fd, size)
        except BlockingIOError:
            return None
