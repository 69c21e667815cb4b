"""One connection: reads frames from a socket, dispatches calls and writes replies.

Calls that never wait are answered while the input is read, and all replies to one read are sent together. Calls that
may wait are awaited in place under protocol version 1, where replies keep the order of the requests, and run in a task
of their own under version 2.
"""

import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter

import trio
from trio.lowlevel import wait_readable, wait_writable

from agentos_sdk.errors import BadRequest, CallError, Cancelled
from agentos_sdk.frames import HEADER, MAGIC, Frame, Frames
from agentos_sdk.opcodes import Op

from . import connection_calls
from .call import Call, Gone
from .caller import Caller
from .replies import encode_error
from .request_body import INLINE
from .table import Later

READ_SIZE = 64 << 10  # bytes per recv(); bodies up to this size are not reserved in the allowance
READ_SIZE_LARGE = 256 << 10
TURN = 0.005  # seconds one connection may answer before other tasks run
LINGER = 5.0  # seconds to keep offering finished replies to a peer that has stopped sending

_pack = HEADER.pack


class Connection:
    """One peer's socket, served until the peer closes it, sends EXIT or breaks the protocol."""

    __slots__ = (
        "_calls",
        "_frames",
        "_lock",
        "_nursery",
        "_outbox",
        "_over",
        "_pending",
        "_queued",
        "_reserved",
        "_sent",
        "_socket",
        "caller",
    )

    def __init__(self, sock: socket.socket, caller: Caller) -> None:
        self.caller = caller
        self._socket = sock
        self._frames = Frames(caller.table.limits)
        self._pending: Sequence[Frame] = ()  # complete frames that are not processed yet
        self._outbox: deque[memoryview] = deque()  # replies that the socket hasn't taken yet
        self._queued = self._sent = 0  # bytes in total
        self._reserved = 0  # bytes of the caller's allowance held for a large body that is arriving
        self._calls: dict[int, Call] = {}
        self._lock: trio.Lock | None = None
        self._over = False  # only finished replies are still sent
        self._nursery: trio.Nursery | None = None  # set after HELLO: protocol version 2

    async def serve(self) -> None:
        """Answer until the peer closes; then cancel all waiting calls and send the finished replies."""
        try:
            if await self._converse():
                self._lock = trio.Lock()
                async with trio.open_nursery() as self._nursery:
                    await self._converse()
                    self._over = True
                    await self._linger()
                    self._nursery.cancel_scope.cancel()
            else:
                await self._linger()
        except* Gone:
            pass  # the peer closed the connection in the middle of a reply
        finally:
            self.caller.allowance.give_back(self._reserved)

    async def _linger(self) -> None:
        for call in self._calls.values():
            call.scope.cancel()
        with trio.move_on_after(LINGER):
            await self._flush()

    async def _converse(self) -> bool:
        """Answer frames. True when HELLO has just raised the version, False when the connection ends."""
        caller, upgraded = self.caller, self._nursery is not None
        own = caller.id
        while True:
            requests, self._pending = self._pending, ()
            if not requests and self._frames.broken is None:
                found = await self._receive()
                if found is None:
                    return False
                requests = found
            nows = caller.table.now
            out: list[bytes] = []
            turn_ends = perf_counter() + TURN
            for at, (number, op, body) in enumerate(requests):
                if not upgraded:
                    number = own
                elif number in self._calls or not number:
                    refused = BadRequest(f"request id {number}: expected one that is not 0 and not in flight")
                    self._add(out, number, op, caller.table.failed(op, refused))
                    continue
                now = nows[op]
                turns = caller.table.turns[op] if now is None or len(body) > INLINE else None
                if turns is not None:
                    self._push(out)
                    # Nothing else of this connection is answered meanwhile, so messages keep their order.
                    self._reply(number, op, await turns(caller, body))
                    if perf_counter() > turn_ends:  # the await may have returned without a checkpoint
                        await self._yield(out)
                        turn_ends = perf_counter() + TURN
                    nows = caller.table.now
                    continue
                if now is not None:
                    reply = now(caller, body)
                    out.append(_pack(MAGIC, number, op, len(reply)))
                    if len(reply) > READ_SIZE:
                        self._push(out)
                    out.append(reply)
                    if perf_counter() > turn_ends:
                        await self._yield(out)
                        turn_ends = perf_counter() + TURN
                        nows = caller.table.now  # other tasks ran and may have changed the caller's permissions
                    continue
                self._push(out)
                if op == Op.HELLO and await self._hello(number, body):
                    self._pending = requests[at + 1 :]
                    return True
                if op == Op.EXIT or (op != Op.HELLO and not await self._special(number, op, body)):
                    if op == Op.EXIT:
                        self._reply(number, op, b"goodbye")
                    return False
                nows = caller.table.now
            self._push(out)
            if self._frames.broken is not None:
                number = self._frames.broken_id if upgraded else own
                op = self._frames.broken_op
                self._reply(number, op, caller.table.failed(op, self._frames.broken))
                return False

    async def _yield(self, out: list[bytes]) -> None:
        """Let other tasks run, and continue when the peer has taken all queued replies."""
        self._push(out)
        if self._outbox:
            await self._flush()
        else:
            await trio.lowlevel.checkpoint()

    async def _receive(self) -> Sequence[Frame] | None:
        """The next frames, possibly none yet; None when the peer has stopped sending."""
        if self._outbox:
            await self._flush()  # a peer that doesn't read its replies isn't read from either
        allowance, frames = self.caller.allowance, self._frames
        awaited = frames.awaited
        large = awaited if awaited > READ_SIZE else 0
        if large != self._reserved:
            allowance.give_back(self._reserved)
            self._reserved = 0
        if not self._reserved:
            if not allowance.room and not await self._unless_gone(allowance.wait_for_room):
                return None
            if large:
                allowance.reserve(large)
                self._reserved = large
        await wait_readable(self._socket)
        try:
            data = self._socket.recv(READ_SIZE_LARGE if large else READ_SIZE)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return frames.take(data) if data else None

    async def _hello(self, number: int, body: bytes) -> bool:
        """Answer HELLO; True when it starts version 2."""
        try:
            version, reply = await connection_calls.hello(self.caller, body, 1 if self._nursery is None else 2)
        except CallError as error:
            self._reply(number, Op.HELLO, encode_error(error))
            return False
        self._reply(number, Op.HELLO, reply)
        self.caller.greeted.set()
        return version == 2 and self._nursery is None

    async def _special(self, number: int, op: int, body: bytes) -> bool:
        """Answer CANCEL or start a call that may wait; False when the peer closed the connection meanwhile."""
        if op == Op.CANCEL:
            self._reply(number, op, await connection_calls.cancel(self.caller, self._calls, body))
            return True
        later = self.caller.table.later[op]
        assert later is not None, "an opcode is answered now, later, or by the connection"
        answer = partial(self._answer, number, op, later, body)
        if self._nursery is None:
            return await self._unless_gone(answer)
        allowance = self.caller.allowance
        if not allowance.room and not await self._unless_gone(allowance.wait_for_room):
            return False
        self._begin(number, body)
        self._nursery.start_soon(answer)
        return True

    def _begin(self, number: int, body: bytes) -> Call:
        call = Call(self.caller, self._nursery is not None, partial(self._send_chunk, number))
        self._calls[number] = call
        self.caller.allowance.begin(len(body))
        return call

    async def _answer(self, number: int, op: int, later: Later, body: bytes) -> None:
        call = self._calls.get(number) or self._begin(number, body)
        held, delivered = len(body), False
        try:
            reply = self.caller.table.failed(op, Cancelled("withdrawn by its caller"))
            with call.scope:
                reply = await later(call, body)
            if self._over:
                return  # the connection is ending: only finished replies are sent
            self._calls.pop(number)
            self.caller.allowance.reserve(len(reply))
            held += len(reply)
            end = self._reply(number, op, reply)
            await self._flush()
            delivered = self._sent >= end
        except Gone:
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()
        finally:
            self._calls.pop(number, None)
            self.caller.allowance.end(held)
            if not delivered and call.undelivered is not None:
                call.undelivered()

    async def _send_chunk(self, number: int, body: bytes) -> None:
        self._reply(number, Op.CHUNK, body)
        await self._flush()

    async def _unless_gone(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Run ``wait`` without reading more; False, with ``wait`` cancelled, when the peer hangs up first.

        Readiness alone doesn't tell a hang-up from more data, hence the epoll with EPOLLRDHUP.
        """
        done = False
        try:
            poll = select.epoll()
        except OSError:  # no file descriptor is left: a hang-up isn't noticed until ``wait`` is over
            await wait()
            return True
        with poll:
            poll.register(self._socket, select.EPOLLRDHUP)

            async def watch() -> None:
                while not poll.poll(0):  # the wake-up may be for a previous file with this descriptor number
                    await wait_readable(poll.fileno())
                nursery.cancel_scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await wait()
                done = True
                nursery.cancel_scope.cancel()
        return done

    def _add(self, out: list[bytes], number: int, op: int, reply: bytes) -> None:
        """Add a reply to ``out``; a large one is sent directly instead of being copied again."""
        out.append(_pack(MAGIC, number, op, len(reply)))
        if len(reply) > READ_SIZE:
            self._push(out)
            self._push([reply])
        else:
            out.append(reply)

    def _reply(self, number: int, op: int, reply: bytes) -> int:
        """Queue a reply; returns the total of bytes sent at which it is completely out."""
        out: list[bytes] = []
        self._add(out, number, op, reply)
        self._push(out)
        return self._queued

    def _push(self, parts: list[bytes]) -> None:
        """Send what the socket takes at once and queue the rest; empties ``parts``."""
        if not parts:
            return
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._queued += len(data)
        sent = 0
        if not self._outbox:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                pass
            except OSError:
                raise Gone from None
            self._sent += sent
        if sent < len(data):
            self._outbox.append(memoryview(data)[sent:])

    async def _flush(self) -> None:
        """Return when the socket has taken everything that was queued before this call."""
        if self._lock is None:
            await self._drain()
        else:
            async with self._lock:  # only one task at a time may wait for a socket
                await self._drain()

    async def _drain(self) -> None:
        outbox = self._outbox
        while outbox:
            await wait_writable(self._socket)
            try:
                sent = self._socket.send(outbox[0])
            except BlockingIOError:
                continue
            except OSError:
                raise Gone from None
            self._sent += sent
            if sent == len(outbox[0]):
                outbox.popleft()
            else:
                outbox[0] = outbox[0][sent:]
