"""What a client has sent before its connection is accepted is read at once, even if the poller never runs."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from agentos.kernel.caller import Caller
from agentos.kernel.syscall import Syscall
from agentos.kernel.table import Table
from agentos.kernel.wire.listener import ConnectionLimit, Listener, Peer, listen
from agentos.kernel.wire.poller import Poller
from agentos_sdk.opcodes import Op
from tests.support.rights import Grants, Notebook
from tests.support.wire import HEADER_SIZE, frame


def echo(caller: Caller, body: bytes) -> bytes:
    return body


CALLER = Caller(7, "agent", "tester", Table([Syscall(Op.NOOP, None, echo)]), Grants(), Notebook())


async def admit(peer: Peer) -> Caller:
    return CALLER


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with listen(str(tmp_path / "kernel.sock")) as sock:
        yield sock


def connect(listening: socket.socket) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(listening.getsockname())
    client.setblocking(False)
    return client


async def test_it_is_answered_as_soon_as_the_kernel_listens(listening: socket.socket) -> None:
    listener = Listener(listening, ConnectionLimit(100), Poller(), admit)
    with connect(listening) as first, connect(listening) as second:
        first.sendall(frame(Op.NOOP, b"one", 1))
        second.sendall(frame(Op.NOOP, b"two", 1) + frame(Op.NOOP, b"three", 1))

        async with trio.open_nursery() as connections:
            listener.start(connections)
            await trio.testing.wait_all_tasks_blocked()
            assert first.recv(100)[HEADER_SIZE:] == b"one"
            assert second.recv(100) == frame(Op.NOOP, b"two", CALLER.id) + frame(Op.NOOP, b"three", CALLER.id)
            connections.cancel_scope.cancel()
        listener.stop()


async def test_a_request_of_which_a_part_has_arrived_waits_for_the_rest(listening: socket.socket) -> None:
    poller = Poller()
    listener = Listener(listening, ConnectionLimit(100), poller, admit)
    request = frame(Op.NOOP, b"in two parts", 1)
    with connect(listening) as client:
        client.sendall(request[:20])

        async with trio.open_nursery() as connections:
            listener.start(connections)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(BlockingIOError):
                client.recv(100)
            client.sendall(request[20:])
            connections.start_soon(poller.run)
            await trio.lowlevel.wait_readable(client)
            assert client.recv(100)[HEADER_SIZE:] == b"in two parts"
            connections.cancel_scope.cancel()
        listener.stop()


async def test_one_that_has_gone_already_is_forgotten(listening: socket.socket) -> None:
    limit = ConnectionLimit(100)
    listener = Listener(listening, limit, poller := Poller(), admit)
    with connect(listening) as client:
        client.sendall(frame(Op.NOOP, b"and goodbye", 1))

    async with trio.open_nursery() as connections:
        connections.start_soon(poller.run)
        listener.start(connections)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(BlockingIOError):
            listening.accept()  # it was accepted, and is over
        assert limit.connections == 0
        assert CALLER.allowance.connections == 0
        connections.cancel_scope.cancel()
    listener.stop()
