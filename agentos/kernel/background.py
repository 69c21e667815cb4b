"""Background calls: those that version 1 clients make with ``"async": true`` and whose replies they poll for."""

from collections.abc import Awaitable, Callable, Sequence

import trio
from attrs import define, field

from agentos_sdk.errors import BadRequest, Busy, TooLarge
from agentos_sdk.opcodes import Op

from .call import Call
from .caller import Allowance, Caller
from .wire.replies import encode_error

MAX_CALLS = 64  # of one caller: under way, and answered but not collected
MAX_HELD_BYTES = 16 << 20  # of one caller's replies; with as many no further call is accepted, and no reply kept
MAX_TAKEN_BYTES = 1 << 20  # of the replies taken at once, or a single larger one
MAX_ID_CHARS = 100  # of a request id that is text
KEEP_SECONDS = 600.0  # after which a reply that the caller hasn't collected is dropped
SWEEP_SECONDS = 10.0


@define(eq=False)
class BackgroundCall:
    """A call under way, or its ``reply`` once there is one; ``answered_at`` is trio's time of that.

    A reply counts in the ``allowance`` of its caller until it is collected or dropped.
    """

    id: int | str
    op: Op
    allowance: Allowance
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    reply: bytes | None = None
    answered_at: float = 0.0

    @property
    def size(self) -> int:
        """Bytes of the reply, 0 without one."""
        return len(self.reply or b"")


@define(eq=False)
class Background:
    """The background calls of all callers, in the order in which they were made. :meth:`serve` must be running.

    A call belongs to its caller, not to the connection: it ends when the caller does (see :meth:`drop`).
    """

    _calls: dict[int, list[BackgroundCall]] = field(factory=dict)  # by id of the caller
    _made: int = 0
    _nursery: trio.Nursery | None = None

    async def serve(self) -> None:
        """Run the calls, and drop replies that weren't collected, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            while True:
                await trio.sleep(SWEEP_SECONDS)
                for number in [*self._calls]:
                    self._drop_old(number)

    def start(
        self, call: Call, op: Op, request_id: int | str | None, size: int, answer: Callable[[Call], Awaitable[bytes]]
    ) -> int | str:
        """Start a call with a body of ``size`` bytes, and return its id; ``answer`` makes its reply.

        The id is that of the request, or else a number of our own. Raises ``BadRequest`` on a connection that doesn't
        use version 1, and ``Busy`` if the caller has too much running or uncollected.
        """
        assert self._nursery is not None, "calls are accepted while it runs"
        caller = call.caller
        if call.streams:
            raise BadRequest("async: expected in version 1 only: in version 2 a request never waits for another")
        if isinstance(request_id, str) and len(request_id) > MAX_ID_CHARS:
            raise BadRequest(f"request_id: expected a number, or at most {MAX_ID_CHARS} characters")
        self._drop_old(caller.id)
        own = self._calls.get(caller.id, ())
        if len(own) >= MAX_CALLS or self._held_bytes(caller.id) >= MAX_HELD_BYTES:
            raise Busy(
                f"async: {len(own)} such calls run or wait to be collected; at most {MAX_CALLS} may, with less than"
                f" {MAX_HELD_BYTES >> 20} MiB of replies: collect them by ASYNC_POLL first"
            )
        self._made += 1
        started = BackgroundCall(self._made if request_id is None else request_id, op, caller.allowance)
        self._calls.setdefault(caller.id, []).append(started)
        self._nursery.start_soon(self._run, started, caller, size, answer)
        return started.id

    async def _run(
        self, started: BackgroundCall, caller: Caller, size: int, answer: Callable[[Call], Awaitable[bytes]]
    ) -> None:
        caller.allowance.take(size, calls=1)
        try:
            with started.scope:
                reply = await answer(Call(caller, streams=False, scope=started.scope))
                self._keep(started, caller.id, reply)
        finally:
            caller.allowance.give_back(size, calls=1)
            started.answered_at = trio.current_time()

    def _keep(self, answered: BackgroundCall, number: int, reply: bytes) -> None:
        """Keep a reply until it is collected; a failure instead if the caller has too many."""
        if answered not in self._calls.get(number, ()):
            return  # the caller has ended
        if self._held_bytes(number) >= MAX_HELD_BYTES:
            reply = encode_error(
                TooLarge(
                    f"async: the call is done, but its reply of {len(reply)} bytes was dropped, because"
                    f" {MAX_HELD_BYTES >> 20} MiB of replies wait to be collected: collect replies by ASYNC_POLL while"
                    " calls run, or start fewer at once"
                )
            )
        answered.reply = reply
        answered.allowance.take(replies=answered.size)

    def _held_bytes(self, number: int) -> int:
        return sum(each.size for each in self._calls.get(number, ()))

    def take(self, number: int, most: int) -> Sequence[BackgroundCall]:
        """Remove and return the oldest answered calls of the caller with id ``number``, at most ``most``."""
        self._drop_old(number)
        taken: list[BackgroundCall] = []
        size = 0
        for each in self._calls.get(number, ()):
            if each.reply is None:
                continue
            size += each.size
            if len(taken) == most or (taken and size > MAX_TAKEN_BYTES):
                break
            taken.append(each)
        self._remove(number, taken)
        return taken

    def put_back(self, number: int, taken: Sequence[BackgroundCall]) -> None:
        """Undo :meth:`take`."""
        self._calls[number] = [*taken, *self._calls.get(number, ())]
        for each in taken:
            each.allowance.take(replies=each.size)

    def drop(self, number: int) -> None:
        """Cancel all calls of a caller that has ended, and drop their replies."""
        for each in self._calls.pop(number, ()):
            each.scope.cancel()
            each.allowance.give_back(replies=each.size)

    def _drop_old(self, number: int) -> None:
        now = trio.current_time()
        own = self._calls.get(number, ())
        self._remove(number, [each for each in own if each.reply is not None and now - each.answered_at > KEEP_SECONDS])

    def _remove(self, number: int, gone: Sequence[BackgroundCall]) -> None:
        if not gone:
            return
        for each in gone:
            each.allowance.give_back(replies=each.size)
        self._calls[number] = [each for each in self._calls[number] if each not in gone]
        if not self._calls[number]:
            del self._calls[number]
