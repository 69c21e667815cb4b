"""One connection: reads frames from a socket, dispatches calls and writes replies.

Calls that never wait are answered while the input is read, by a function that the poller calls; all replies to one read
are sent together. Other requests wake the connection's task. Each protocol version has a loop of its own: version 1
awaits calls that may wait in place, so replies keep the order of the requests; version 2 runs them in tasks.
"""

import contextlib
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter

import trio

from agentos.kernel.call import Call, Gone, Input
from agentos.kernel.caller import MAX_CALLS, Caller
from agentos.kernel.deferred import Deferred, DeferredCalls
from agentos.kernel.drivers import WITHDRAWN
from agentos.kernel.ports import MustAsk
from agentos.kernel.table import InTurns
from agentos_sdk.errors import BadRequest, CallError, Cancelled
from agentos_sdk.frames import HEADER, MAGIC, Frame, Frames
from agentos_sdk.opcodes import Op

from . import connection_calls
from .poller import Poller
from .replies import encode_error
from .socket_writer import LARGE_REPLY_BYTES, SocketWriter

READ_SIZE = 64 << 10  # bytes that a caller's connections read at once, each its share; such bodies aren't reserved
READ_SIZE_SMALL = 4 << 10  # bytes; nearly always enough, and a buffer of READ_SIZE costs more than the recv() itself
READ_SIZE_LARGE = 256 << 10
MAX_LONG_READERS = READ_SIZE // READ_SIZE_SMALL
TURN_SECONDS = 0.005  # seconds that all connections of a caller may answer, each its share, before other tasks run
LINGER_SECONDS = 5.0  # seconds to keep offering finished replies to a peer that has stopped sending

_pack = HEADER.pack


class Connection:
    """One peer's socket, served until the peer closes it, sends EXIT or breaks the protocol."""

    __slots__ = (
        "_approval_timeout",
        "_calls",
        "_deferred",
        "_frames",
        "_nursery",
        "_poller",
        "_reply_id",
        "_requests",
        "_reserved",
        "_socket",
        "_turn_ends",
        "_writer",
        "caller",
    )

    def __init__(self, sock: socket.socket, caller: Caller, poller: Poller) -> None:
        self.caller = caller
        self._socket = sock
        self._poller = poller
        self._frames = Frames(caller.table.limits)
        self._requests: deque[Frame] = deque()  # that have arrived
        self._writer = SocketWriter(sock)
        self._reserved = 0  # bytes of the caller's allowance held for a large body that is arriving
        self._calls: dict[int, Call | Deferred] = {}
        self._deferred = DeferredCalls(caller, sock, self._writer, poller, self._calls)
        self._turn_ends = 0.0  # in the time of perf_counter()
        self._approval_timeout: float | None = None  # seconds, of all its calls; by HELLO
        self._reply_id = caller.id  # of all replies in version 1; 0 after HELLO: each reply has its request's id
        self._nursery: trio.Nursery | None = None  # set after HELLO: protocol version 2

    async def serve(self) -> None:
        """Answer until the peer closes; then cancel all waiting calls and send the finished replies."""
        try:
            self._read()  # many a client has sent something by now; what isn't answered at once, the loop finds
            if not await self._answer_in_order():
                await self._linger()
                return
            self._writer.share()
            self._reply_id = 0
            async with trio.open_nursery() as self._nursery:
                await self._answer_concurrently()
                self._deferred.over = True
                await self._linger()
                self._nursery.cancel_scope.cancel()
        except* Gone:
            pass  # the peer closed the connection in the middle of a reply
        finally:
            self._deferred.over = True
            self._poller.forget(self._socket.fileno())
            self.caller.allowance.give_back(self._reserved)

    async def _linger(self) -> None:
        for call in list(self._calls.values()):
            call.cancel()
        with trio.move_on_after(LINGER_SECONDS):
            if not self._deferred.over:
                await self._deferred.wait_answered()
            if self._writer.unsent:
                await self._writer.flush()

    async def _answer_in_order(self) -> bool:
        """The loop of version 1, which has no request ids: replies carry the caller's id.

        Returns whether a HELLO for version 2 has been answered; otherwise the connection ends.
        """
        caller, writer, own = self.caller, self._writer, self.caller.id
        while (request := await self._next_request()) is not None:
            _, op, body = request
            if (turns := caller.table.entries[op].turns) and await self._answer_in_turn(own, op, body, turns):
                pass
            elif op == Op.HELLO:
                if await self._hello(own, body, 1) == 2:
                    return True
            elif op == Op.EXIT:
                writer.reply(own, op, connection_calls.leave(caller, body))
                return False
            elif op == Op.CANCEL:
                writer.reply(own, op, await connection_calls.cancel(caller, self._calls, body))
            else:
                answer = partial(self._answer, self._begin(own, op, body), own, op, body)
                if not await self._unless_gone(answer):
                    return False
        return False

    async def _answer_concurrently(self) -> None:
        """The loop of version 2, whose replies carry the id of their request."""
        caller, writer, calls = self.caller, self._writer, self._calls
        while (request := await self._next_request()) is not None:
            number, op, body = request
            given = calls[number].input if op == Op.CHUNK and number in calls else None
            if given is not None:
                if not given.has_room and not await self._unless_gone(given.wait_for_room):
                    return
                given.put(body)
            elif number in calls or not number:
                refused = BadRequest(f"request id {number}: expected one that is not 0 and not in flight")
                failure = caller.table.encode_failure(op, refused)
                writer.reply(number, op, connection_calls.tell(caller, op, body, failure))
            elif (turns := caller.table.entries[op].turns) and await self._answer_in_turn(number, op, body, turns):
                pass  # nothing else was answered meanwhile, so messages keep their order
            elif op == Op.HELLO:
                await self._hello(number, body, 2)
            elif op == Op.EXIT:
                writer.reply(number, op, connection_calls.leave(caller, body))
                return
            elif op == Op.CANCEL:
                writer.reply(number, op, await connection_calls.cancel(caller, calls, body))
            elif not await self._start_call(number, op, body):
                return

    async def _answer_in_turn(self, number: int, op: int, body: bytes, turns: InTurns) -> bool:
        """Answer a call that needs no task; False if it needs one after all."""
        try:
            reply = await turns(self.caller, body)
        except MustAsk:
            return False
        self._writer.reply(number, op, reply)
        return True

    async def _next_request(self) -> Frame | None:
        """The next request that isn't answered at once; those before it are. None when the connection ends."""
        frames = self._frames
        while True:
            if self._requests and perf_counter() > self._turn_ends:
                await self._yield()
            # Version 1 answers what has arrived only after the call in flight.
            behind = self._reply_id and self._calls and (self._requests or frames.broken is not None)
            if behind and not await self._unless_gone(self._deferred.wait_answered):
                return None
            if self._deferred.asked:
                return self._deferred.asked.pop(0)
            request = self._answer_at_once()
            if request is not None:
                return request
            if self._requests:
                continue
            if frames.broken is not None:
                op = frames.broken_op
                failure = self.caller.table.encode_failure(op, frames.broken)
                connection_calls.tell(self.caller, op, b"", failure)
                self._writer.reply(self._reply_id or frames.broken_id, op, failure)
                return None
            if not await self._receive():
                return None

    def _answer_at_once(self) -> Frame | None:
        """Answer requests that never wait, in order, until the turn is over. Returns the first other request."""
        caller, requests, calls, own, writer = self.caller, self._requests, self._calls, self._reply_id, self._writer
        table, turn_ends, take = caller.table, self._turn_ends, self._requests.popleft
        entries, found = table.entries, None
        out: list[bytes] = []
        if own and calls:
            return None  # version 1 answers in order
        while requests:
            number, op, body = request = take()
            entry = entries[op]
            if len(body) > entry.most:
                found = request
                break
            if own:
                number = own
            elif not number or number in calls:
                found = request
                break
            try:
                if (now := entry.now) is not None:
                    reply: bytes | None = now(caller, body)
                else:
                    reply = self._deferred.begin((number, op, body), entry, self._reserved)
            except MustAsk:
                found = request
                break
            if reply is None:
                self._reserved = 0
                if own:
                    break
                continue
            size = len(reply)
            if size > LARGE_REPLY_BYTES:
                out.append(_pack(MAGIC, number, op, size))
                writer.push(out)
                out.append(reply)
            else:
                out += _pack(MAGIC, number, op, size), reply
            if perf_counter() > turn_ends:
                break
        writer.push(out)
        return found

    async def _yield(self) -> None:
        """Let other tasks run, and continue when the peer has taken all queued replies."""
        if not self._writer.unsent:
            await trio.lowlevel.checkpoint()
        else:
            await self._writer.flush()
        self._turn_ends = perf_counter() + TURN_SECONDS / self.caller.allowance.sharers

    async def _receive(self) -> bool:
        """Read requests, and answer them, until one is left for this task; False when the peer has stopped sending."""
        if self._writer.unsent:
            await self._writer.flush()  # a peer that doesn't read its replies isn't read from either
        allowance, large = self.caller.allowance, self._large
        if large != self._reserved:
            allowance.give_back(self._reserved)
            self._reserved = 0
        if not self._reserved:
            if not allowance.has_room and not await self._unless_gone(allowance.wait_for_room):
                return False
            if large:
                allowance.take(large)
                self._reserved = large
        if self._deferred.asked or self._writer.unsent:
            return True  # that has changed meanwhile
        return await self._poller.wait(self._socket.fileno(), self._read)

    @property
    def _large(self) -> int:
        """Size in bytes of the frame that is arriving, if it has to be reserved in the allowance; otherwise 0."""
        awaited = self._frames.awaited
        return awaited if awaited > READ_SIZE else 0

    def _read(self) -> bool | None:
        """Read once and answer what never waits. True: the task has to go on; False: the peer has stopped sending."""
        if not self._reserved and not self.caller.allowance.has_room:
            return True
        try:
            if self._reserved:
                data = self._socket.recv(READ_SIZE_LARGE)
            else:
                data = self._socket.recv(READ_SIZE_SMALL)
                if len(data) == READ_SIZE_SMALL and (sharers := self.caller.allowance.sharers) < MAX_LONG_READERS:
                    with contextlib.suppress(BlockingIOError):
                        data += self._socket.recv(READ_SIZE // sharers - READ_SIZE_SMALL)
        except BlockingIOError:
            return None
        except OSError:
            return False
        if not data:
            return False
        self._requests += self._frames.take(data)
        self.caller.activity.at = now = perf_counter()
        self._turn_ends = now + TURN_SECONDS / self.caller.allowance.sharers
        request = None if self._deferred.asked else self._answer_at_once()
        if request is not None:
            self._requests.appendleft(request)
        idle = not self._requests and not self._writer.unsent and self._frames.broken is None
        return None if idle and self._large == self._reserved else True

    async def _hello(self, number: int, body: bytes, version: int) -> int:
        """Answer HELLO; returns the protocol version from the next frame on. ``version`` is the present one."""
        try:
            request, reply = await connection_calls.hello(self.caller, body, version)
        except CallError as error:
            refusal = encode_error(error)
            connection_calls.tell(self.caller, Op.HELLO, body, refusal)
            self._writer.reply(number, Op.HELLO, refusal)
            return version
        connection_calls.tell(self.caller, Op.HELLO, body, reply)
        self._writer.reply(number, Op.HELLO, reply)
        self.caller.greeted.set()
        if request.approval_timeout is not None:
            self._approval_timeout = request.approval_timeout
        return request.protocol

    async def _start_call(self, number: int, op: int, body: bytes) -> bool:
        """Start a task for a call that may wait; False when the peer closed the connection meanwhile."""
        assert self._nursery is not None, "version 2 has a nursery"
        allowance = self.caller.allowance
        if self._reserved:  # it had room when it began to arrive; waiting for bytes while it holds some might never end
            if allowance.calls >= MAX_CALLS and not await self._unless_gone(allowance.wait_for_call):
                return False
        elif not allowance.has_room and not await self._unless_gone(allowance.wait_for_room):
            return False
        self._nursery.start_soon(self._answer, self._begin(number, op, body), number, op, body)
        return True

    def _begin(self, number: int, op: int, body: bytes) -> Call:
        call = Call(self.caller, self._nursery is not None, partial(self._send_chunk, number))
        call.approval_timeout = self._approval_timeout
        if call.streams and self.caller.table.syscalls[op].takes_chunks:
            call.input = Input(self.caller.allowance)
        self._calls[number] = call
        self.caller.allowance.take(len(body) - self._reserved, calls=1)
        self._reserved = 0
        return call

    async def _answer(self, call: Call, number: int, op: int, body: bytes) -> None:
        """Answer a call that may wait. Once its reply is sent, another call may have its number."""
        later = self.caller.table.entries[op].later
        assert later is not None, "an opcode is answered now, later, or by the connection"
        allowance, activity, held, delivered = self.caller.allowance, self.caller.activity, 0, False
        try:
            reply: bytes | None = None
            activity.waiting += 1
            try:
                with call.scope:
                    reply = await later(call, body)
            finally:
                activity.end_wait()
            if self._deferred.over:
                return  # the connection is ending: only finished replies are sent
            if reply is None:
                reply = self.caller.table.encode_failure(op, Cancelled(WITHDRAWN))
            self._calls.pop(number)
            held = len(reply)
            allowance.take(replies=held)
            end = self._writer.reply(number, op, reply)
            if self._writer.unsent:
                await self._writer.flush()
            delivered = self._writer.sent >= end
        except Gone:
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()
        finally:
            if self._calls.get(number) is call:
                del self._calls[number]
            if call.input is not None:
                call.refuse_input()
            allowance.give_back(len(body), replies=held, calls=1)
            if not delivered and call.undelivered is not None:
                call.undelivered()

    async def _send_chunk(self, number: int, body: bytes) -> None:
        self._writer.reply(number, Op.CHUNK, body)
        self.caller.activity.end_wait()
        try:
            await self._writer.flush()
        finally:
            self.caller.activity.waiting += 1

    async def _unless_gone(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Run ``wait`` without reading more; False, with ``wait`` cancelled, when the peer hangs up first."""
        with trio.CancelScope() as scope, self._poller.watch_hangup(self._socket.fileno(), scope.cancel):
            await wait()
            return True
        return False
