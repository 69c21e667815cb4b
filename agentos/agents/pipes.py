"""What programs write is read in turns: all who write without end cost no more time together than one of them alone."""

import os
from collections.abc import Awaitable, Callable, Hashable

import trio
from attrs import define, field

AHEAD = 0.1  # seconds: who has used up less than that of its turns doesn't wait, so who writes little never does
PIECE = 0.02  # seconds of its turns that a program uses up at a time, so that what else there is to do comes between
WORTH = 0.001  # seconds that a read is worth at least: it takes time, however little there was
LEAST = 256  # bytes read at a time
LAST = 1 << 20  # bytes read at most after the program's end; what still writes then is not the program


@define(eq=False)
class Turns:
    """How the time for reading is shared by all of a kernel's programs."""

    _busy: dict[Hashable, float] = field(factory=dict)  # until when somebody has used up its turns, by trio's clock

    def use(self, whose: Hashable, seconds: float) -> float:
        """What was read is worth so many seconds of turns, to one who is alone: how long ``whose`` have to wait now.

        As many as have used up theirs at a time get that part each of what one would: in all it is the same.
        """
        now = trio.current_time()
        self._busy = {one: until for one, until in self._busy.items() if until > now}
        begin = self._busy.setdefault(whose, now)
        until = self._busy[whose] = begin + seconds * len(self._busy)
        return max(0.0, until - now - AHEAD)


class Pipe:
    """One stream of a program, read in the turns of ``whose`` it is.

    ``take`` gets what comes, at most ``most`` bytes while it comes, and says how many seconds of turns that is worth.
    Nothing more is read until ``taken``, if there is one, has returned.
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
        """Take what is there now, then close. Whoever else still holds the pipe writes to nobody."""
        rest = bytearray()
        while len(rest) < LAST and (data := self._read(64 << 10)):
            rest += data
        self._take(bytes(rest))
        os.close(self._fd)

    def _read(self, size: int) -> bytes | None:
        """What came; empty at the end, None when there is nothing yet."""
        try:
            return os.read(self._fd, size)
        except BlockingIOError:
            return None
