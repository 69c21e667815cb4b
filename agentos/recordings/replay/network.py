"""The network of an agent that lives a recorded life again: each attempt to reach it is refused and counted."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import trio

from agentos.agents.jail.filtered_network import FilteredNetwork

MAX_DATAGRAM = 4096  # bytes of a question for a name, which isn't answered
MAX_COUNTERS = 1 << 16  # bytes of a file of counters
# Of Linux' counters for IPv4, whose names are one line and whose values the next, and of those for IPv6.
NO_ROUTES = (
    ("snmp", re.compile(rb"^Ip:(?: [A-Z]\w+)*\nIp:(?: -?\d+){11} (\d+)")),
    ("snmp6", re.compile(rb"^Ip6OutNoRoutes\s+(\d+)", re.MULTILINE)),
)


@contextmanager
def read_unsent(pid: int) -> Iterator[Callable[[], int]]:
    """Gives what counts the attempts that found no route in the network namespace of a process since then.

    It counts also when the process is gone: the open files keep the namespace. Raises ``OSError`` if it was gone.
    """
    with ExitStack() as held:
        counters = [(held.enter_context(open(f"/proc/{pid}/net/{name}", "rb")), find) for name, find in NO_ROUTES]

        def count() -> int:
            texts = [(os.pread(file.fileno(), MAX_COUNTERS, 0), find) for file, find in counters]
            return sum(int(found[1]) for text, find in texts if (found := find.search(text)) is not None)

        before = count()
        yield lambda: count() - before


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
