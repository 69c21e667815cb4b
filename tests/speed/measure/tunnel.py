"""Throughput of a tunnel out of a jail with a filtered network, beside the same transfer without a kernel between.

On every CPU: the sender, the kernel and the receiver are three processes.
"""

import json
import subprocess
import sys
import time

from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.processes import MeasurementError
from tests.speed.results import Result, Row

SPAWN = 0x10
MIB = 1 << 20
SENT = 256 * MIB  # in each connection
ROWS = (Row("tunnel of a filtered jail: bytes received", " MiB/s", least=200, floor="direct", more=True),)
SENDER = """\
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
data, size = memoryview(bytes(1 << 20)), int(sys.argv[1])
while True:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1)
        left = size
        while left:
            left -= connection.send(data[:left])
"""
RECEIVER = """\
import socket, sys, time
address, target, rounds = sys.argv[1:]
host, port = address.split(":")
buffer = bytearray(1 << 20)
for _ in range(int(rounds)):
    with socket.create_connection((host, int(port))) as connection:
        if target:
            connection.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
            said = b""
            while not said.endswith(b"\\r\\n\\r\\n"):
                said += connection.recv(1)
        connection.sendall(b"x")
        began, received = time.perf_counter(), 0
        while size := connection.recv_into(buffer):
            received += size
        print(received / (1 << 20) / (time.perf_counter() - began), flush=True)
"""


def tunnel(place: Place) -> list[Result]:
    """In turn: direct, and through a tunnel."""
    rounds = 3 if place.quick else 6
    sender = subprocess.Popen([sys.executable, "-c", SENDER, str(SENT)], stdout=subprocess.PIPE, text=True)
    try:
        assert sender.stdout is not None
        target = f"127.0.0.1:{int(sender.stdout.readline())}"
        with place.serve(free=True) as kernel, Caller(kernel.socket, 60) as caller:
            spawn = {
                "name": "receiver",
                "command": [sys.executable, "-c", RECEIVER, "127.0.0.1:880", target, str(rounds)],
                "network": "filtered",
                "permissions": {"level": "sandboxed", "allow": {"domains": [target]}},
            }
            reply = json.loads(caller.call(SPAWN, json.dumps(spawn).encode()))
            if not reply.get("success"):
                raise MeasurementError(f"SPAWN {spawn}: {reply}")
            tunnelled = wait_for_lines(caller, "receiver", rounds)
        direct = subprocess.run(
            [sys.executable, "-c", RECEIVER, target, "", str(rounds)], capture_output=True, text=True, check=True
        )
    finally:
        sender.kill()
        sender.communicate()
    alone = [float(line) for line in direct.stdout.split()]
    return [Result.of(ROWS[0], tunnelled, alone)]


def wait_for_lines(caller: Caller, name: str, count: int) -> list[float]:
    deadline = time.monotonic() + 60
    while len(found := caller.lines(name)) < count:  # at its end the kernel adds a line
        if time.monotonic() > deadline:
            raise MeasurementError(f"{name} has printed {found}")
        time.sleep(0.1)
    return [float(line) for line in found[:count]]
