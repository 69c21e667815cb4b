"""Ports for servers of tests."""

import contextlib
import random
import socket
from pathlib import Path


def free_port() -> int:
    """A free port below those that Linux gives to connections: a server can listen there again later."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", random.randrange(1024, first))) as sock:
            return int(sock.getsockname()[1])
