"""A connection that waits for requests: what may happen meanwhile, in both versions of the protocol."""

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing
from attrs import define, field

from agentos.kernel.call import Call
from agentos.kernel.caller import MAX_CALLS, Caller
from agentos.kernel.syscall import Syscall
from agentos.kernel.table import Table
from agentos.kernel.wire.connection import Connection
from agentos.kernel.wire.poller import Poller
from agentos_sdk.opcodes import Op
from tests.support.rights import Grants, Notebook
from tests.support.wire import HEADER_SIZE, HELLO, frame, header

LARGE = bytes(8 << 20)  # more than a socket takes at once

pytestmark = pytest.mark.parametrize("version", [1, 2])


def echo(caller: Caller, body: bytes) -> bytes:
    return body


def reply_at_length(caller: Caller, body: bytes) -> bytes:
    return LARGE


def fail(caller: Caller, body: bytes) -> bytes:
    raise ZeroDivisionError("a bug")


async def wait(call: Call, body: bytes) -> bytes:
    await trio.sleep_forever()
    raise AssertionError


async def reply_late(call: Call, body: bytes) -> bytes:
    await trio.lowlevel.checkpoint()
    return body


ECHO, LONG, BUG, WAIT, LATE = Op.NOOP, Op.LIST, Op.KEYS, Op.RECV, Op.SLEEP
TABLE = Table(
    [
        Syscall(ECHO, None, echo, limit=16 << 20),
        Syscall(LONG, None, reply_at_length),
        Syscall(BUG, None, fail),
        Syscall(WAIT, None, wait),
        Syscall(LATE, None, reply_late),
    ]
)


@define
class Peer:
    """The other end of a connection, and how it ended."""

    sock: socket.socket
    served: socket.socket
    caller: Caller
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    ended: trio.Event = field(factory=trio.Event)
    error: Exception | None = None

    def send(self, op: int, body: bytes = b"") -> None:
        self.sock.sendall(frame(op, body, 1))

    async def write(self, data: bytes) -> None:
        """As much at a time as the socket takes."""
        rest = memoryview(data)
        while rest:
            await trio.lowlevel.wait_writable(self.sock)
            rest = rest[self.sock.send(rest) :]

    async def receive(self) -> bytes:
        """The body of the next reply."""
        head = await self._exactly(HEADER_SIZE)
        return await self._exactly(int.from_bytes(head[9:], "little"))

    async def ask(self, op: int, body: bytes = b"") -> bytes:
        self.send(op, body)
        return await self.receive()

    async def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            await trio.lowlevel.wait_readable(self.sock)
            part = self.sock.recv(count - len(data))
            assert part, "the connection ended"
            data += part
        return bytes(data)


Connect = Callable[[int], Awaitable[Peer]]


@pytest.fixture
async def connect(poller: Poller, nursery: trio.Nursery) -> AsyncIterator[Connect]:
    """``connect(version)``: the peer of a connection that waits for its next request."""

    async def serve(peer: Peer) -> None:
        with peer.served, peer.scope:
            try:
                await Connection(peer.served, peer.caller, poller).serve()
            except Exception as error:
                peer.error = error
        peer.ended.set()

    async def make(version: int) -> Peer:
        served, sock = socket.socketpair()
        served.setblocking(False)
        sock.setblocking(False)
        peers.append(peer := Peer(sock, served, Caller(7, "agent", "tester", TABLE, Grants(), Notebook())))
        nursery.start_soon(serve, peer)
        if version == 2:
            assert json.loads(await peer.ask(HELLO, b'{"protocol": 2}'))["protocol"] == 2
        assert await peer.ask(ECHO, b"ready?") == b"ready?"
        await trio.testing.wait_all_tasks_blocked()
        return peer

    peers: list[Peer] = []
    yield make
    for peer in peers:
        peer.scope.cancel()
        await peer.ended.wait()
        peer.sock.close()


async def test_what_the_socket_does_not_take_is_sent_without_a_further_request(version: int, connect: Connect) -> None:
    peer = await connect(version)

    for _ in range(3):
        assert await peer.ask(LONG) == LARGE

    assert await peer.ask(ECHO, b"next") == b"next"


async def test_nothing_more_is_read_while_a_reply_is_unread(version: int, connect: Connect) -> None:
    peer = await connect(version)
    peer.send(LONG)
    await trio.testing.wait_all_tasks_blocked()

    peer.send(ECHO, b"behind it")
    await trio.testing.wait_all_tasks_blocked()
    assert unread(peer.served) > 0

    assert await peer.receive() == LARGE
    assert await peer.receive() == b"behind it"


async def test_nothing_more_is_read_while_the_caller_has_all_its_calls_in_flight(
    version: int, connect: Connect
) -> None:
    peer = await connect(version)
    peer.caller.allowance.calls += MAX_CALLS  # on other connections, while this one waits for a request

    peer.send(ECHO, b"when there is room")
    await trio.testing.wait_all_tasks_blocked()
    assert unread(peer.served) > 0

    peer.caller.allowance.calls -= MAX_CALLS - 1
    peer.caller.allowance.give_back(calls=1)
    assert await peer.receive() == b"when there is room"


async def test_a_large_body_is_counted_until_it_is_answered(version: int, connect: Connect) -> None:
    peer = await connect(version)
    body = bytes(1 << 20)

    peer.sock.sendall(header(ECHO, len(body), 1))
    await trio.testing.wait_all_tasks_blocked()
    assert peer.caller.allowance.requests == HEADER_SIZE + len(body)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.write, body)
        assert await peer.receive() == body
    await trio.testing.wait_all_tasks_blocked()
    assert peer.caller.allowance.requests == 0
    assert await peer.ask(ECHO, b"next") == b"next"


async def test_what_answered_calls_took_of_the_allowance_is_given_back(version: int, connect: Connect) -> None:
    peer = await connect(version)

    for op in (ECHO, LONG, LATE):
        await peer.ask(op, b"a body")
    await trio.testing.wait_all_tasks_blocked()

    allowance = peer.caller.allowance
    assert (allowance.calls, allowance.requests, allowance.replies) == (0, 0, 0)


async def test_an_error_in_a_call_ends_its_own_connection_only(version: int, connect: Connect) -> None:
    peer, other = await connect(version), await connect(version)

    peer.send(BUG)
    await peer.ended.wait()

    assert peer.error is not None
    assert "ZeroDivisionError" in repr(peer.error)
    assert await other.ask(ECHO, b"still here") == b"still here"


@pytest.mark.parametrize("waits", [False, True], ids=["idle", "a call waits"])
async def test_an_end_of_file_ends_it(version: int, waits: bool, connect: Connect) -> None:
    peer, other = await connect(version), await connect(version)
    if waits:
        peer.send(WAIT)
        await trio.testing.wait_all_tasks_blocked()

    peer.sock.shutdown(socket.SHUT_WR)
    await peer.ended.wait()

    assert peer.error is None
    assert peer.caller.allowance.calls == 0
    assert await other.ask(ECHO, b"still here") == b"still here"


async def test_a_peer_that_resets_it_with_a_request_unread_ends_it(version: int, connect: Connect) -> None:
    peer = await connect(version)
    peer.send(ECHO, b"its reply is never read")
    await trio.testing.wait_all_tasks_blocked()

    peer.sock.close()
    await peer.ended.wait()

    assert peer.error is None


async def test_a_cancelled_one_leaves_nothing_to_the_next_with_its_descriptor(version: int, connect: Connect) -> None:
    for _ in range(20):
        peer = await connect(version)
        peer.send(ECHO, b"arrives, and is never read")
        peer.scope.cancel()
        await peer.ended.wait()

    peer = await connect(version)
    assert await peer.ask(ECHO, b"next") == b"next"


async def test_a_report_without_data_changes_nothing(version: int, connect: Connect, poller: Poller) -> None:
    """As for an earlier file with the same descriptor."""
    peer = await connect(version)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poller.wait, ours.fileno(), lambda: peer.served.recv(100))
            await trio.testing.wait_all_tasks_blocked()
            theirs.send(b"x")
            peer.send(ECHO, b"stolen")  # both are reported by the next poll, in this order
        poller.forget(ours.fileno())

    assert await peer.ask(ECHO, b"next") == b"next"


def unread(sock: socket.socket) -> int:
    """Bytes that have arrived and are not read."""
    try:
        return len(sock.recv(1 << 20, socket.MSG_PEEK))
    except BlockingIOError:
        return 0
