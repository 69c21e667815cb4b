"""Poller: one epoll for all connections that wait for input, watched by one task.

Trio's ``wait_readable`` costs an ``epoll_ctl`` and a task switch, about 10 µs, and most calls take less. Here the
poller's task calls a function that reads and answers; the connection's own task runs only when that function says so.

Trio polls only when all runnable tasks have run a step. Where these take long the poller also reads between two steps:
it is one of Trio's instruments.
"""

import contextlib
import os
import select
from collections import deque
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
TURN_SECONDS = 0.00025  # seconds of reading before Trio's other tasks run, and of their steps before it reads again
MAX_PASSED = 3  # reads in a row while a descriptor waits whose reads defer work
MAX_YIELD_SECONDS = 0.0005  # seconds; a client needs less for its next request


@define(eq=False)
class Poller(trio.abc.Instrument):
    """Reads from file descriptors as soon as they are readable. :meth:`run` must be running.

    A descriptor stays registered while its task is busy, so nothing is re-registered for each request. It is removed at
    the first report that no task waits for, because epoll reports a hang-up until then whatever it is asked for.
    """

    _epoll: select.epoll = field(factory=select.epoll)
    _waiting: dict[int, tuple[Task, Callable[[], object]]] = field(factory=dict)  # by descriptor
    _on_hangup: dict[int, Callable[[], object]] = field(factory=dict)  # by descriptor
    _watched: dict[int, tuple[Callable[[int], object], trio.Nursery]] = field(factory=dict)  # by descriptor
    _registered: dict[int, int] = field(factory=dict)  # events by descriptor
    _deferred: Turns[object, Callable[[], object]] = field(factory=Turns)
    _worker: Task | None = None  # waits for deferred calls
    _ready: deque[tuple[int, int]] = field(factory=deque)  # descriptors and their events, not read yet
    _behind: dict[int, int] = field(factory=dict)  # the same of those whose last read deferred work
    _deferring: set[int] = field(factory=set)  # descriptors whose last read deferred work
    _has_deferred: bool = False  # since the present read began
    _passed: int = 0  # reads of others since the last one of ``_behind``
    _task: Task | None = None  # of :meth:`run`
    _read_again: float = 0.0  # time of perf_counter() before which it doesn't read between steps
    _yield_again: float = 0.0  # in the same time

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

    def watch(self, fd: int, notify: Callable[[int], object], nursery: trio.Nursery) -> None:
        """Call ``notify`` with epoll's events whenever ``fd`` has some, until :meth:`forget`; no task waits for it.

        ``notify`` must not block. It may get events of an earlier file with this descriptor. Its exceptions end the
        watching and are raised in the nursery.
        """
        self._watched[fd] = (notify, nursery)
        self._register(fd, select.EPOLLIN)

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
        """Call ``work`` later: in turns by owner, and after readable descriptors have been read.

        So requests that are answered at once don't wait for longer ones. ``work`` must not wait or raise.
        """
        self._deferred.add(owner, work)
        self._has_deferred = True
        if self._worker is not None:
            reschedule(self._worker)
            self._worker = None

    async def _do_deferred(self) -> None:
        while True:
            if not self._deferred:
                self._worker = current_task()
                await wait_task_rescheduled(self._stop_worker)
            turn_ends = perf_counter() + TURN_SECONDS
            while self._deferred and perf_counter() < turn_ends:
                _, work = self._deferred.take()
                work()
            await trio.lowlevel.checkpoint()

    def _stop_worker(self, _: object) -> Abort:
        self._worker = None
        return Abort.SUCCEEDED

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
        self._watched.pop(fd, None)
        self._behind.pop(fd, None)
        self._deferring.discard(fd)
        if self._registered.pop(fd, None) is not None and not self._epoll.closed:
            with contextlib.suppress(OSError):  # closed already, which Linux takes as unregistered
                self._epoll.unregister(fd)

    async def run(self) -> None:
        """Serve until cancelled. Errors of a connection are raised in its own task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._do_deferred)
            nursery.start_soon(self._read_ready)

    async def _read_ready(self) -> None:
        self._task = current_task()
        trio.lowlevel.add_instrument(self)
        try:
            with self._epoll:
                while True:
                    await wait_readable(self._epoll.fileno())
                    turn_ends = perf_counter() + TURN_SECONDS
                    while found := self._find_ready():
                        while self._ready or self._behind:
                            answered = self._read(*(self._take() if self._behind else self._ready.popleft()))
                            if perf_counter() > turn_ends:
                                self._end_turn()
                                await trio.lowlevel.checkpoint()
                                turn_ends = perf_counter() + TURN_SECONDS
                                self._find_ready()
                        if answered and found == 1:
                            self._yield_cpu()
                    self._end_turn()
        finally:
            trio.lowlevel.remove_instrument(self)

    def before_task_step(self, task: Task) -> None:
        """Read for a turn if the steps of other tasks have taken as long since the last one."""
        if perf_counter() < self._read_again or task is self._task:
            return
        turn_ends = perf_counter() + TURN_SECONDS
        self._find_ready()
        while (self._ready or self._behind) and perf_counter() < turn_ends:
            self._read(*(self._take() if self._behind else self._ready.popleft()))
        self._end_turn()

    def _end_turn(self) -> None:
        self._read_again = perf_counter() + TURN_SECONDS

    def _find_ready(self) -> int:
        """Poll if nothing is ready but what defers work; returns how many descriptors are to be read."""
        if not self._ready:
            found = self._epoll.poll(0, BATCH)
            if self._deferring:
                for fd, events in found:
                    if fd in self._deferring:
                        self._behind[fd] = events
                    else:
                        self._ready.append((fd, events))
            else:
                self._ready.extend(found)
        return len(self._ready) + len(self._behind)

    def _take(self) -> tuple[int, int]:
        """The next descriptor to read, and its events, where some wait behind the others.

        Those that defer work come after the others, so that 100 of them in a row delay no short call; but one in
        :data:`MAX_PASSED` + 1 is one of them.
        """
        if self._ready and self._passed < MAX_PASSED:
            self._passed += 1
            return self._ready.popleft()
        self._passed = 0
        fd = next(iter(self._behind))
        return fd, self._behind.pop(fd)

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

    def _read(self, fd: int, events: int) -> bool:
        """Call the function that waits for this descriptor; returns whether it has read, and waits on."""
        if fd in self._watched:
            self._notify(fd, events)
            return False
        if fd in self._on_hangup:
            if has_hung_up(fd):  # otherwise the report is for an earlier file with this descriptor
                self._on_hangup.pop(fd)()
            return False
        if fd not in self._waiting:
            self.forget(fd)
            return False
        task, read = self._waiting[fd]
        self._has_deferred = False
        try:
            result = read()
            if self._has_deferred:
                self._deferring.add(fd)
            elif self._deferring:
                self._deferring.discard(fd)
            if result is not None and self._waiting.pop(fd, None) is not None:  # otherwise ``read`` cancelled its task
                reschedule(task, Value(result))
            return result is None
        except Exception as error:
            if self._waiting.pop(fd, None) is not None:
                reschedule(task, Error(error))
            return False

    def _notify(self, fd: int, events: int) -> None:
        notify, nursery = self._watched[fd]
        try:
            notify(events)
        except Exception as error:
            self.forget(fd)
            nursery.start_soon(_fail, error)


async def _fail(error: Exception) -> None:
    raise error


def has_hung_up(fd: int) -> bool:
    """Whether the peer of this socket has closed it, or its writing end."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return bool(poll.poll(0))
