"""Whose connection gives way where all places of a port are taken."""

import os
import socket
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.http.connection import KEEP
from agentos.http.places import MIN_AGE, Places
from agentos.http.users import AnySocket
from tests.support.wire import PATIENCE

MOST = 4
MAX_SENT = 16 << 20  # bytes that Linux takes for a client that reads nothing: some of its buffers' largest sizes
BUSY = b"GET /busy HTTP/1.1\r\nhost: x\r\n\r\n"
QUICK = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
OPENED, KEPT = (
    b"GET /%s HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" % path
    for path in (b"opened", b"kept")
)


class Port:
    """A port with four places; each connection is charged to the user that the test names."""

    def __init__(self, listener: socket.socket) -> None:
        self.address, self.users = listener.getsockname(), dict[int, str]()
        self.streams, self._begun = list[trio.SocketStream](), trio.Semaphore(0)
        self.free = trio.Event()  # from then on nothing is busy

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            if scope["path"] == "/kept":
                scope["extensions"][KEEP]["keep"]()
            await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
            await self.free.wait()
            return
        if scope["path"] == "/busy":
            self._begun.release()
            await self.free.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def find_user(self, sock: AnySocket) -> Hashable:
        return self.users[sock.getpeername()[1]]

    async def connect(self, user: str, request: bytes = b"") -> trio.SocketStream:
        sock = trio.socket.socket()
        await sock.bind(("127.0.0.1", 0))
        self.users[sock.getsockname()[1]] = user
        await sock.connect(self.address)
        stream = trio.SocketStream(sock)
        self.streams.append(stream)
        await stream.send_all(request)
        if request == BUSY:
            await self._begun.acquire()
        return stream


@asynccontextmanager
async def serving(clock: MockClock, by_user: bool = True) -> AsyncIterator[Port]:
    clock.rate = 1
    async with trio.open_nursery() as nursery:
        with socket.create_server(("127.0.0.1", 0)) as listener, trio.fail_after(PATIENCE):
            listener.setblocking(False)
            port = Port(listener)
            nursery.start_soon(Places(listener, port.answer, MOST, find_user=port.find_user if by_user else None).serve)
            try:
                yield port
            finally:
                for stream in port.streams:
                    stream.socket.close()
            nursery.cancel_scope.cancel()


async def is_ended(stream: trio.SocketStream) -> bool:
    try:
        return await stream.receive_some() == b""
    except trio.BrokenResourceError:
        return True


async def is_served(stream: trio.SocketStream) -> bool:
    return (await stream.receive_some()).startswith(b"HTTP/1.1 204")


async def test_a_user_with_more_than_its_share_gives_one_up_whatever_it_is_busy_with(mock_clock: MockClock) -> None:
    async with serving(mock_clock) as port:
        greedy = [await port.connect("greedy", BUSY) for _ in range(MOST)]

        assert await is_served(await port.connect("other", QUICK))
        assert await is_ended(greedy[0]), "the oldest"
        assert await is_served(await port.connect("other", QUICK))
        assert await is_ended(greedy[1])
        await wait_all_tasks_blocked()
        mock_clock.jump(MIN_AGE)
        assert await is_served(await port.connect("other", QUICK)), "its own gives way, as both have their share"
        assert await is_ended(await port.connect("greedy", QUICK)), "none of its own waits for a request"


async def test_where_users_are_not_told_apart_only_what_waits_for_a_request_gives_way(mock_clock: MockClock) -> None:
    async with serving(mock_clock, by_user=False) as port:
        busy = [await port.connect("", BUSY) for _ in range(MOST)]
        late = await port.connect("", QUICK)
        await wait_all_tasks_blocked(0.01)
        port.free.set()
        for one in busy:
            assert await is_served(one)
        busy[0].socket.close()
        assert await is_served(late), "it had to wait for a place"
        await wait_all_tasks_blocked()
        mock_clock.jump(MIN_AGE)
        assert await is_served(await port.connect("", QUICK)), "one of the others has given way"


async def test_what_has_just_come_or_been_answered_has_time_for_its_request(mock_clock: MockClock) -> None:
    async with serving(mock_clock, by_user=False) as port:
        new, answered = [await port.connect("") for _ in range(2)], [await port.connect("", QUICK) for _ in range(2)]
        for one in answered:
            assert await is_served(one)
        late = await port.connect("", QUICK)
        await wait_all_tasks_blocked(0.01)

        for one in [*new, *answered]:
            await one.send_all(QUICK)
            assert await is_served(one)
        await wait_all_tasks_blocked()
        mock_clock.jump(MIN_AGE)
        assert await is_served(late), "one of the others has given way"


async def test_of_one_user_only_what_waits_for_a_request_for_a_while_gives_way(mock_clock: MockClock) -> None:
    async with serving(mock_clock) as port:
        await port.connect("one", BUSY)
        idle = [await port.connect("one") for _ in range(MOST - 1)]

        assert await is_ended(await port.connect("one", QUICK)), "a flood gets no further"
        await wait_all_tasks_blocked()
        mock_clock.jump(MIN_AGE)
        assert await is_served(await port.connect("one", QUICK))
        assert await is_ended(idle[0])


async def test_what_has_sent_no_request_for_the_longest_time_gives_way_first(mock_clock: MockClock) -> None:
    async with serving(mock_clock, by_user=False) as port:
        kept = [await port.connect("", QUICK) for _ in range(MOST)]
        for one in kept:
            assert await is_served(one)
        for again in ([kept[0]], []):
            await wait_all_tasks_blocked()
            mock_clock.jump(MIN_AGE)
            for one in again:
                await one.send_all(QUICK)
                assert await is_served(one)

        assert await is_served(await port.connect("", QUICK))
        for one in (kept[0], *kept[2:]):
            await one.send_all(QUICK)
            assert await is_served(one)
        assert await is_ended(kept[1])


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_websocket_gives_way_to_another_user_unless_it_is_kept(mock_clock: MockClock, is_kept: bool) -> None:
    async with serving(mock_clock) as port:
        for _ in range(MOST):
            opened = await port.connect("greedy", KEPT if is_kept else OPENED)
            assert (await opened.receive_some()).startswith(b"HTTP/1.1 101")

        late = await port.connect("other", QUICK)
        assert await (is_ended(late) if is_kept else is_served(late))


async def test_what_has_sent_a_request_that_was_not_read_yet_does_not_give_way(mock_clock: MockClock) -> None:
    async with serving(mock_clock, by_user=False) as port:
        kept = [await port.connect("", QUICK) for _ in range(MOST)]
        for _ in range(5):  # which of the tasks runs first is left to chance
            for one in kept:
                assert await is_served(one)
            await wait_all_tasks_blocked()
            mock_clock.jump(MIN_AGE)
            with socket.create_connection(port.address):
                for one in kept:
                    os.write(one.socket.fileno(), QUICK)  # without a turn for others
                await wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize("chunk", [b": ping\r\n\r\n", b"x" * 1000, b"x" * 100_000], ids=["pings", "events", "bodies"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
async def test_a_stream_whose_client_reads_nothing_is_ended_after_a_bounded_number_of_bytes(
    tmp_path: Path, family: int, chunk: bytes
) -> None:
    sent, ended = 0, trio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_with, receive, nursery.cancel_scope)
            while True:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                sent += len(chunk)
        ended.set()

    async def end_with(receive: Any, scope: trio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    address: Any = ("127.0.0.1", 0) if family == socket.AF_INET else str(tmp_path / "socket")
    with socket.create_server(address, family=family) as listener, trio.socket.socket(family) as client:
        listener.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Places(listener, stream, MOST, 0.2).serve)
            with trio.fail_after(PATIENCE):
                await client.connect(listener.getsockname())
                await client.send(QUICK)
                await ended.wait()
            nursery.cancel_scope.cancel()

    assert 0 < sent < MAX_SENT
