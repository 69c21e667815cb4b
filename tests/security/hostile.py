"""Agents that don't play by the rules: what they are told to do, with frames that no client would send."""

import json
from typing import Any

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import lines, up, write

PRELUDE = """
import array, ctypes, json, os, signal, socket, sys, time
MAGIC = bytes.fromhex("544e4741")
def frame(op, body=b"", number=0, length=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return MAGIC + number.to_bytes(4, "little") + bytes([op]) + (len(data) if length is None else length).to_bytes(8, "little") + data
def connect():
    wire = socket.socket(socket.AF_UNIX)
    wire.settimeout(60)
    wire.connect(os.environ["AGENTOS_SOCKET"])
    return wire
def exactly(wire, count):
    data = b""
    while len(data) < count:
        part = wire.recv(count - len(data))
        if not part: raise ConnectionError("closed")
        data += part
    return data
def receive(wire):
    head = exactly(wire, 17)
    return exactly(wire, int.from_bytes(head[9:], "little"))
def ask(op, body=b"", number=0):
    with connect() as wire:
        wire.sendall(frame(op, body, number))
        return json.loads(receive(wire))
def exchange(one, other):
    ctypes.CDLL(None).renameat2(-100, one.encode(), -100, other.encode(), 2)
def say(found): print(json.dumps(found), flush=True)
NOOP, SPAWN, KILL, LIST, PAUSE, LOGS, SEND, RECV, REGISTER, HELLO = 0, 0x10, 0x11, 0x12, 0x14, 0x17, 0x20, 0x21, 0x23, 0xFE
"""  # noqa: E501
WAITS = "\nwhile True: time.sleep(1000)\n"


def begin(kernel: Kernel, client: AgentOSClient, name: str, code: str, **more: Any) -> int:
    """Start an attacker; its id. When it has done its worst it stays."""
    return int(up(client.spawn(name, write(kernel, f"{name}.py", PRELUDE + code + WAITS), **more))["id"])


def told(client: AgentOSClient, name: str, seconds: float = PATIENCE) -> Any:
    """What an attacker says came of it: the first that it says."""

    def said() -> list[str]:
        return [line for line in lines(client, name, "stdout") if line.startswith(("{", "["))]

    until(said, f"{name} has something to say: {lines(client, name)}", seconds)
    return json.loads(said()[0])


def attack(kernel: Kernel, client: AgentOSClient, name: str, code: str, **more: Any) -> Any:
    """Start an attacker; what it says came of it."""
    begin(kernel, client, name, code, **more)
    return told(client, name)
