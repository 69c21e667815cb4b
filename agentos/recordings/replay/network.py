"""The filtered network of an agent that lives a recorded life again: each attempt is refused and counted."""

import socket
from collections.abc import Callable

import trio

from agentos.agents.jail.filtered_network import FilteredNetwork

MAX_DATAGRAM = 4096  # bytes of a question for a name, which isn't answered


async def refuse_connections(network: FilteredNetwork, note: Callable[[], None]) -> None:
    """Close each connection at once, and answer no question for a name, until cancelled."""
    async with trio.open_nursery() as nursery:
        for listener in (network.proxy, network.dns_tcp, *network.ports.values()):
            nursery.start_soon(_close_each, listener, note)
        nursery.start_soon(_drop_each, network.dns_udp, note)


async def _close_each(listener: socket.socket, note: Callable[[], None]) -> None:
    while True:
        await trio.lowlevel.wait_readable(listener)
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            continue
        connection.close()
        note()


async def _drop_each(sock: socket.socket, note: Callable[[], None]) -> None:
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            sock.recv(MAX_DATAGRAM)
        except (BlockingIOError, ConnectionError):
            continue
        note()
