"""Ports for servers of tests."""

import contextlib
import secrets
import socket
from pathlib import Path


def free_port() -> int:
    """A free port below those that Linux gives to connections: a server can listen there again later.

    Drawn by Linux: the generator of ``random`` has the same seed in all workers where the order of tests is shuffled.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = 1024 + secrets.randbelow(first - 1024)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as sock:
            return int(sock.getsockname()[1])
