"""Poller: one epoll for all connections that wait for input, watched by one task.

Trio's ``wait_readable`` costs an ``epoll_ctl`` and a task switch, about 10 µs, and most calls take less. Here the
poller's task calls a function that reads and answers; the connection's own task runs only when that function says so.
"""

import contextlib
import os
import select
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TypeVar

import trio
from attrs import define, field
from outcome import Error, Value
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_readable, wait_task_rescheduled

from .turns import Turns

T = TypeVar("T")

BATCH = 256  # file descriptors per epoll_wait(); Linux reports the others first the next time
TURN_SECONDS = 0.00025  # seconds of reading before Trio's other tasks run
READS_PER_DEFERRED = 4  # descriptors that are read for each deferred call that is begun, if there are so many
MAX_YIELD_SECONDS = 0.0005  # seconds; a client needs less for its next request


@define(eq=False)
class Poller:
    """Reads from file descriptors as soon as they are readable. :meth:`run` must be running.

    A descriptor stays registered while its task is busy, so nothing is re-registered for each request. It is removed at
    the first report that no task waits for, because epoll reports a hang-up until then whatever it is asked for.
    """

    _epoll: select.epoll = field(factory=select.epoll)
    _waiting: dict[int, tuple[Task, Callable[[], object]]] = field(factory=dict)  # by descriptor
    _on_hangup: dict[int, Callable[[], object]] = field(factory=dict)  # by descriptor
    _registered: dict[int, int] = field(factory=dict)  # events by descriptor
    _deferred: Turns[object, Callable[[], object]] = field(factory=Turns)
    _pending: int = 0  # of these; asking their queue costs a call for each read
    _idle: bool = True  # nothing is readable
    _yield_again: float = 0.0  # in the time of perf_counter()

    async def wait(self, fd: int, read: Callable[[], T | None]) -> T:
        """Call ``read`` whenever ``fd`` is readable until it returns something other than None, or raises.

        ``read`` must not block, and must not expect data: the report may be for an earlier file with this descriptor.
        """
        self._register(fd, select.EPOLLIN)
        self._waiting[fd] = (current_task(), read)

        def abort(_: object) -> Abort:
            del self._waiting[fd]
            return Abort.SUCCEEDED

        result: T = await wait_task_rescheduled(abort)
        return result

    def wake(self, fd: int) -> None:
        """Have :meth:`wait` return True, if a task waits for this descriptor."""
        if (waiting := self._waiting.pop(fd, None)) is not None:
            reschedule(waiting[0], Value(True))

    @contextlib.contextmanager
    def watch_hangup(self, fd: int, notify: Callable[[], object]) -> Iterator[None]:
        """Call ``notify`` if the peer has closed ``fd``, or hangs up during the block. Unread data is no hang-up."""
        self._register(fd, select.EPOLLRDHUP)
        self._on_hangup[fd] = notify
        try:
            yield
        finally:
            self._on_hangup.pop(fd, None)

    def defer(self, owner: object, work: Callable[[], object]) -> None:
        """Call ``work`` when other owners have had their turn, and what is readable meanwhile has been read.

        So requests that are answered at once don't wait for those that take longer. ``work`` must not wait or raise.
        """
        if self._idle:
            work()
        else:
            self._deferred.add(owner, work)
            self._pending += 1

    def _register(self, fd: int, events: int) -> None:
        registered = self._registered.get(fd)
        if registered == events or self._epoll.closed:
            return
        if registered is None:
            self._epoll.register(fd, events)
        else:
            self._epoll.modify(fd, events)
        self._registered[fd] = events

    def forget(self, fd: int) -> None:
        """Stop watching ``fd``. Must be called before it is closed."""
        if self._registered.pop(fd, None) is not None and not self._epoll.closed:
            with contextlib.suppress(OSError):  # closed already, which Linux takes as unregistered
                self._epoll.unregister(fd)

    async def run(self) -> None:
        """Serve until cancelled. Errors of a connection are raised in its own task."""
        poll = self._epoll.poll
        with self._epoll:
            while True:
                self._idle = True
                await wait_readable(self._epoll.fileno())
                self._idle = False
                turn_ends = perf_counter() + TURN_SECONDS
                while (ready := poll(0, BATCH)) or self._pending:
                    for fd, _ in ready:
                        answered = self._read(fd)
                        if perf_counter() > turn_ends:
                            await trio.lowlevel.checkpoint()
                            turn_ends = perf_counter() + TURN_SECONDS
                    if not self._pending:
                        if answered and len(ready) == 1:
                            self._yield_cpu()
                        continue
                    for _ in range(min(self._pending, max(1, len(ready) // READS_PER_DEFERRED))):
                        _, work = self._deferred.take()
                        self._pending -= 1
                        work()
                        if perf_counter() > turn_ends:
                            await trio.lowlevel.checkpoint()
                            turn_ends = perf_counter() + TURN_SECONDS

    def _yield_cpu(self) -> None:
        """Let the client that was answered send its next request before the next poll, if it runs on this CPU.

        This forfeits the rest of the time slice. If another process used the CPU instead, it isn't done for a while, so
        that at most 1 % of the time is lost.
        """
        begin = perf_counter()
        if begin > self._yield_again:
            os.sched_yield()
            lost = perf_counter() - begin
            if lost > MAX_YIELD_SECONDS:
                self._yield_again = begin + 100 * lost

    def _read(self, fd: int) -> bool:
        """Call the function that waits for this descriptor; returns whether it waits on."""
        if fd in self._on_hangup:
            if has_hung_up(fd):  # otherwise the report is for an earlier file with this descriptor
                self._on_hangup.pop(fd)()
            return False
        if fd not in self._waiting:
            self.forget(fd)
            return False
        task, read = self._waiting[fd]
        try:
            result = read()
            if result is not None and self._waiting.pop(fd, None) is not None:  # otherwise ``read`` cancelled its task
                reschedule(task, Value(result))
            return result is None
        except Exception as error:
            if self._waiting.pop(fd, None) is not None:
                reschedule(task, Error(error))
            return False


def has_hung_up(fd: int) -> bool:
    """Whether the peer of this socket has closed it, or its writing end."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return bool(poll.poll(0))
