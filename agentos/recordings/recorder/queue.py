"""The queue of calls that wait to be written, and the task that has a thread write them twenty times a second."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import trio
from attrs import define, field

from agentos.recordings.format import Manifest, encode_manifest
from agentos.threads import Limiter, run_in_thread

from .lines import LineMaker, Seen
from .writer import Batch, Target, write

WRITE_DELAY = 0.05  # seconds until a call is written, so that many are written together
MAX_WAITING = 10_000  # calls that wait to be written
MAX_WAITING_BYTES = 64 << 20  # … and what they hold; up to twice as much if several recordings have calls there
CALL_COST = 500  # bytes that a call takes at least


@define(eq=False)
class WriteQueue:
    """What waits to be written. ``settle`` is called after each write."""

    maker: LineMaker
    settle: Callable[[], None]
    _calls: list[tuple[Seen, Sequence[Target]]] = field(factory=list)
    _waiting: int = 0  # bytes
    _held: Counter[Target] = field(factory=Counter)  # bytes by recording
    _manifests: dict[Target, Manifest] = field(factory=dict)
    _wake: trio.Event = field(factory=trio.Event)
    _hurry: trio.Event = field(factory=trio.Event)
    _settled: trio.Event = field(factory=trio.Event)  # set when what waits now is written
    _under_way: trio.Event | None = None  # set when what is being written now is
    _closed: bool = False
    _limiter: Limiter = field(factory=lambda: Limiter(1))

    def put(self, seen: Seen, targets: Sequence[Target]) -> Collection[Target]:
        """Have a call written to these recordings; returns those that have no room for it.

        When all room is taken, a recording with less than its share still has some: an agent that asks much ends its
        own recording, and no other one.
        """
        size = max(seen.size + CALL_COST, MAX_WAITING_BYTES // MAX_WAITING)
        left: Collection[Target] = ()
        if self._calls and self._waiting + size > MAX_WAITING_BYTES:
            share = MAX_WAITING_BYTES // len({*self._held, *targets})
            left = [target for target in targets if self._held[target] + size > share]
            targets = [target for target in targets if target not in left]
            if not targets:
                return left
        self._calls.append((seen, targets))
        self._waiting += size
        for target in targets:
            self._held[target] += size
        if not self._wake.is_set():
            self._wake.set()
        return left

    def put_manifest(self, target: Target, manifest: Manifest) -> None:
        """Have the manifest written as it is then."""
        self._manifests[target] = manifest
        self._wake.set()

    async def flush(self) -> None:
        """Return when all that waits now has been written."""
        if self._calls or self._manifests:
            self._hurry.set()
            await self._settled.wait()
        elif self._under_way is not None:
            await self._under_way.wait()

    def close(self) -> None:
        """Write what waits, then nothing more."""
        self._closed = True
        self._wake.set()
        self._hurry.set()

    async def serve(self) -> None:
        """Write until it is closed and empty; cancellation waits for that."""
        with trio.CancelScope(shield=True):
            while self._calls or self._manifests or not self._closed:
                await self._wake.wait()
                with trio.move_on_after(WRITE_DELAY):
                    await self._hurry.wait()
                if not self._closed:
                    self._wake, self._hurry = trio.Event(), trio.Event()
                await self._write()

    async def _write(self) -> None:
        calls, self._calls, self._waiting = self._calls, [], 0
        self._held.clear()
        manifests, self._manifests = self._manifests, {}
        made = [(target, encode_manifest(manifest)) for target, manifest in manifests.items()]
        settled = self._under_way = self._settled
        self._settled = trio.Event()
        try:
            await run_in_thread(write, self.maker, Batch(calls, made), limiter=self._limiter)
        finally:
            self._under_way = None
            settled.set()
        self.settle()


def measure(request: Any) -> int:
    """About how many bytes a request holds: those of its texts, and of a question."""
    if isinstance(request, bytes):
        return len(request)
    if (question := getattr(request, "question", None)) is not None:
        size: int = question.size
        return size
    size = 0
    for name in getattr(request, "__slots__", ()):
        value = getattr(request, name, None)
        if isinstance(value, str | bytes | memoryview):
            size += len(value)
    return size
