"""The network of an agent that lives a recorded life again: each attempt to reach it is refused and counted."""

import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

import trio

from agentos.agents.jail.filtered_network import FilteredNetwork

from .progress import Progress

MAX_DATAGRAM = 4096  # bytes of a question for a name, which isn't answered
MAX_COUNTERS = 1 << 16  # bytes of a file of counters
# Of Linux' counters for IPv4, whose names are one line and whose values the next, and of those for IPv6.
NO_ROUTES = (
    ("snmp", re.compile(rb"^Ip:(?: [A-Z]\w+)*\nIp:(?: -?\d+){11} (\d+)")),
    ("snmp6", re.compile(rb"^Ip6OutNoRoutes\s+(\d+)", re.MULTILINE)),
)


@contextmanager
def count_unsent(pid: int, progress: Progress) -> Iterator[None]:
    """Count the attempts that find no route in the network namespace of a process, until the block ends.

    Its process may be gone then: the open files keep the namespace.
    """
    with ExitStack() as held:
        counters = list[tuple[BinaryIO, re.Pattern[bytes]]]()
        try:
            for name, find in NO_ROUTES:
                counters.append((held.enter_context(open(f"/proc/{pid}/net/{name}", "rb")), find))
        except OSError as error:
            progress.notes.append(f"attempts to reach the network aren't counted: {error.strerror}")
        before = _count(counters)
        try:
            yield
        finally:
            progress.sealed += _count(counters) - before


def _count(counters: Sequence[tuple[BinaryIO, re.Pattern[bytes]]]) -> int:
    texts = [(os.pread(file.fileno(), MAX_COUNTERS, 0), find) for file, find in counters]
    return sum(int(found[1]) for text, find in texts if (found := find.search(text)) is not None)


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
