"""Fair reading of program output: any number of programs that write nonstop share the read time of one."""

import errno
import os
from collections.abc import Awaitable, Callable, Hashable

import trio
from attrs import define, field

CREDIT_SECONDS = 0.1  # seconds of credit: a program below it doesn't wait, so one that writes little never does
READ_SECONDS = 0.02  # seconds of its time that a program uses per read, so that other tasks run in between
MIN_COST_SECONDS = 0.001  # seconds that a read costs at least, however few bytes it gets
MIN_READ_BYTES = 256  # bytes of the smallest read
MAX_FINAL_BYTES = 1 << 20  # read after the program's end; other processes may still write to the pipe


@define(eq=False)
class Turns:
    """Shares the read time among all programs of a kernel."""

    _busy: dict[Hashable, float] = field(factory=dict)  # by owner: when its used time is over, by trio's clock

    def charge(self, owner: Hashable, seconds: float) -> float:
        """Charge an owner for a read that costs ``seconds`` if it is alone; returns how long it must wait now.

        The cost is multiplied by the number of owners that are charged at the time, so the total rate stays the same.
        """
        now = trio.current_time()
        self._busy = {one: until for one, until in self._busy.items() if until > now}
        begin = self._busy.setdefault(owner, now)
        until = self._busy[owner] = begin + seconds * len(self._busy)
        return max(0.0, until - now - CREDIT_SECONDS)


class Pipe:
    """One stream of a program, read in the turns of its owner.

    ``take`` gets the data, at most ``max_bytes`` per read while the program runs, and returns the read's cost in
    seconds. If ``wait_delivered`` is given, nothing more is read until it has returned.
    """

    def __init__(
        self,
        fd: int,
        turns: Turns,
        owner: Hashable,
        max_bytes: int,
        take: Callable[[bytes], float],
        wait_delivered: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._turns = turns
        self._owner = owner
        self._max_bytes = max_bytes
        self._size = MIN_READ_BYTES
        self._take = take
        self._wait_delivered = wait_delivered

    async def run(self) -> None:
        """Read until the stream ends or this is cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            pause = self.read()
            if pause is None:
                return
            if self._wait_delivered is not None:
                await self._wait_delivered()
            if pause > 0:
                await trio.sleep(pause)

    def read(self) -> float | None:
        """Read once, without waiting; returns how long to wait until the next read, or None at the stream's end."""
        data = self._read(self._size)
        if data is None:
            return 0.0
        if data == b"":
            return None
        seconds = max(MIN_COST_SECONDS, self._take(data))
        affordable = int(len(data) * READ_SECONDS / seconds)
        self._size = max(MIN_READ_BYTES, min(self._max_bytes, 2 * self._size, affordable))
        return self._turns.charge(self._owner, seconds)

    def finish(self) -> None:
        """Read what the pipe holds now, then close it. Later writes by other holders of the pipe fail."""
        rest = bytearray()
        while len(rest) < MAX_FINAL_BYTES and (data := self._read(64 << 10)):
            rest += data
        take, self._take = self._take, lambda data: 0.0  # its owner's, which refers to this
        take(bytes(rest))
        os.close(self._fd)

    def _read(self, size: int) -> bytes | None:
        """The data read; empty at the end, None if there is nothing yet."""
        try:
            return os.read(self._fd, size)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EIO:  # a terminal that no process has open any more
                return b""
            raise
