"""Tunnels pass on every byte and every end, and close at their limits."""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import frozen

from agentos.gateways.http_proxy import tunnel
from agentos.gateways.http_proxy.tunnel import Traffic, Tunnel, make_buffer
from tests.support.wire import PATIENCE

from .streams import connected, receive_all

LARGE = bytes(range(256)) * (40 << 10)  # 10 MiB: more than all buffers on the way


@frozen
class Ends:
    client: trio.SocketStream
    server: trio.SocketStream
    tunnel: Tunnel
    over: trio.Event


@asynccontextmanager
async def tunnelled() -> AsyncIterator[Ends]:
    """A client and a server with a tunnel between them."""
    (inner, client), (outer, server) = await connected(), await connected()
    ends = Ends(client, server, Tunnel(inner, outer, make_buffer(), Traffic()), trio.Event())

    async def run() -> None:
        async with inner, outer:
            with ends.tunnel.traffic.scope:
                await ends.tunnel.run()
        ends.over.set()

    async with client, server, trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(PATIENCE):
            yield ends
        nursery.cancel_scope.cancel()


async def test_large_data_passes_unchanged_in_both_directions_at_once() -> None:
    found: dict[str, bytes] = {}

    async def receive(name: str, stream: trio.SocketStream) -> None:
        found[name] = await receive_all(stream)

    async def send(stream: trio.SocketStream) -> None:
        await stream.send_all(LARGE)
        await stream.send_eof()

    async with tunnelled() as ends:
        async with trio.open_nursery() as nursery:
            for name, stream in (("client", ends.client), ("server", ends.server)):
                nursery.start_soon(receive, name, stream)
                nursery.start_soon(send, stream)
        await ends.over.wait()

    assert found == {"client": LARGE, "server": LARGE}
    assert (ends.tunnel.traffic.sent, ends.tunnel.traffic.received) == (len(LARGE), len(LARGE))


@pytest.mark.parametrize("first", ["client", "server"])
async def test_a_half_closed_tunnel_still_passes_the_other_direction(first: str) -> None:
    async with tunnelled() as ends:
        one, other = (ends.client, ends.server) if first == "client" else (ends.server, ends.client)
        await one.send_all(b"question")
        await one.send_eof()
        assert await receive_all(other) == b"question"
        await other.send_all(b"answer")
        await other.send_eof()

        assert await receive_all(one) == b"answer"
        await ends.over.wait()


@pytest.mark.parametrize("gone", ["client", "server"])
async def test_a_tunnel_ends_with_a_side_that_is_gone(gone: str) -> None:
    async with tunnelled() as ends:
        one, other = (ends.client, ends.server) if gone == "client" else (ends.server, ends.client)
        await other.send_all(b"unread")  # so that the closed side resets the connection
        await trio.testing.wait_all_tasks_blocked()
        await one.aclose()

        await ends.over.wait()


async def test_a_tunnel_ends_when_the_network_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    async with tunnelled() as ends:
        monkeypatch.setattr(os, "readv", fail)
        await ends.server.send_all(b"x")

        assert await receive_all(ends.client) == b""
        await ends.over.wait()


async def test_a_tunnel_that_is_silent_in_both_directions_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "IDLE_SECONDS", 0.3)
    async with tunnelled() as ends:
        await ends.client.send_eof()

        await ends.over.wait()


async def test_a_busy_tunnel_ends_at_its_total_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "MAX_SECONDS", 0.3)

    async def send(stream: trio.SocketStream) -> None:
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"x")
                await trio.sleep(0.01)

    async with tunnelled() as ends, trio.open_nursery() as nursery:
        nursery.start_soon(send, ends.client)
        await ends.over.wait()


async def test_data_that_a_slow_reader_waits_for_is_not_another_tunnels() -> None:
    """All tunnels share a buffer."""
    buffer = make_buffer()
    async with tunnelled() as slow, tunnelled() as fast:
        slow.tunnel.buffer = fast.tunnel.buffer = buffer
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await slow.client.send_all(b"a" * (8 << 20))
                await slow.client.send_eof()

            nursery.start_soon(send)
            for _ in range(50):
                await fast.client.send_all(b"b" * 1000)
                await fast.server.receive_some()
            received = await receive_all(slow.server)

    assert received == b"a" * (8 << 20)
