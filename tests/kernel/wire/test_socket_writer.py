"""Replies in order through a socket that takes them piece by piece."""

import socket
from collections.abc import Iterator

import pytest
import trio

from agentos.kernel.call import Gone
from agentos.kernel.wire.socket_writer import LARGE_REPLY_BYTES, SocketWriter
from agentos_sdk.frames import MAX_PAYLOAD, Frames
from tests.support.wire import PATIENCE

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


async def read(sock: socket.socket, count: int) -> list[tuple[int, int, bytes]]:
    frames, found = Frames([MAX_PAYLOAD] * 256), list[tuple[int, int, bytes]]()
    while len(found) < count:
        await trio.lowlevel.wait_readable(sock)
        found += frames.take(sock.recv(1 << 16))
    return found


async def test_what_the_socket_does_not_take_is_queued_and_flushed_in_order(pair: Pair) -> None:
    ours, theirs = pair
    writer = SocketWriter(ours)
    replies = [(1, 0, bytes(4 << 20)), (2, 0, b"small"), (3, 0, bytes(LARGE_REPLY_BYTES + 1))]

    ends = [writer.reply(*reply) for reply in replies]
    assert writer.unsent
    assert writer.sent < ends[0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.flush)
        with trio.fail_after(PATIENCE):
            assert await read(theirs, 3) == replies

    assert not writer.unsent
    assert writer.sent == writer.queued == ends[-1]


async def test_several_tasks_may_flush_a_shared_writer(pair: Pair) -> None:
    ours, theirs = pair
    writer = SocketWriter(ours)
    writer.share()
    replies = [(number, 0, bytes(1 << 20)) for number in range(1, 5)]

    async with trio.open_nursery() as nursery:
        for reply in replies:
            writer.reply(*reply)
            nursery.start_soon(writer.flush)
        with trio.fail_after(PATIENCE):
            assert await read(theirs, 4) == replies


async def test_a_peer_that_has_closed_the_socket_is_gone(pair: Pair) -> None:
    ours, theirs = pair
    writer = SocketWriter(ours)
    writer.reply(1, 0, bytes(4 << 20))
    theirs.close()

    with pytest.raises(Gone):
        await writer.flush()
    writer = SocketWriter(ours)
    with pytest.raises(Gone):
        writer.reply(2, 0, b"")
