"""A client that knows the protocol from its document only: no line of the SDK is used here.

What the kernel and the SDK get wrong in the same way, a test through the SDK would not see.
"""

import contextlib
import json
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

MAGIC = bytes.fromhex("544e4741")  # 0x41474E54, little-endian
HEADER_SIZE = 17
# Seconds that anything may take in a test before it has failed: to import a large SDK takes more than a minute where
# twenty processes share two cores.
PATIENCE = 300.0

NOOP, THINK, READ, WRITE, EXEC = 0x00, 0x01, 0x02, 0x03, 0x04
SPAWN, KILL, LIST, WAIT, PAUSE = 0x10, 0x11, 0x12, 0x13, 0x14
RESUME, TREE, LOGS, INSPECT, RELOAD = 0x15, 0x16, 0x17, 0x18, 0x19
START, STOP, RESTART, SHUTDOWN, STATUS, USAGE = 0x1A, 0x1B, 0x1C, 0x1D, 0x1E, 0x1F
SEND, RECV, BROADCAST, REGISTER, ACK, MAIL = 0x20, 0x21, 0x22, 0x23, 0x24, 0x25
STORE, FETCH, DELETE, KEYS, EXPORT, IMPORT = 0x30, 0x31, 0x32, 0x33, 0x34, 0x35
SNAPSHOT, ROLLBACK, FORK, DIFF, APPLY, SNAPSHOTS, IMAGES, UNDO = 0x36, 0x37, 0x38, 0x39, 0x3A, 0x3B, 0x3C, 0x3D
RECORD_START, RECORD_STOP, RECORD_STATUS = 0x70, 0x71, 0x72
SUBSCRIBE, UNSUBSCRIBE, POLL_EVENTS, EMIT = 0x60, 0x61, 0x62, 0x63
GET_PERMS, SET_PERMS, EXPLAIN, GET_AUDIT_LOG, SET_AUDIT_CONFIG = 0x40, 0x41, 0x44, 0x76, 0x77
APPROVALS, DECIDE, ASYNC_POLL, GET_CONTENTS = 0x42, 0x43, 0x80, 0x78
REPLAY_START, REPLAY_STATUS, REPLAY_STOP = 0x73, 0x74, 0x75
HTTP, NOW, SLEEP, RANDOM = 0x50, 0x51, 0x52, 0x53
TOOLS, TOOL_CALL, LLM_REPORT = 0x90, 0x91, 0xF0
METRICS_SYSTEM, METRICS_AGENT, METRICS_ALL_AGENTS, METRICS_CGROUP = 0xC0, 0xC1, 0xC2, 0xC3
CHUNK, CANCEL, HELLO, EXIT = 0xF1, 0xFD, 0xFE, 0xFF

SERVED = frozenset(
    {NOOP, EXEC, SPAWN, KILL, LIST, WAIT, PAUSE, RESUME, START, STOP, RESTART, SHUTDOWN, STATUS, RELOAD, USAGE}
    | {TREE, LOGS, INSPECT, SEND, RECV, BROADCAST, REGISTER, ACK, MAIL}
    | {HTTP, NOW, SLEEP, RANDOM, TOOLS, TOOL_CALL, THINK, LLM_REPORT, CANCEL, HELLO, EXIT, READ, WRITE}
    | {METRICS_SYSTEM, METRICS_AGENT, METRICS_ALL_AGENTS, METRICS_CGROUP}
    | {SNAPSHOT, ROLLBACK, FORK, DIFF, APPLY, SNAPSHOTS, IMAGES, UNDO, RECORD_START, RECORD_STOP, RECORD_STATUS}
    | {REPLAY_START, REPLAY_STATUS, REPLAY_STOP}
    | {EXPORT, IMPORT, STORE, FETCH, DELETE, KEYS, SUBSCRIBE, UNSUBSCRIBE, POLL_EVENTS, EMIT}
    | {GET_PERMS, SET_PERMS, APPROVALS, DECIDE, EXPLAIN, GET_AUDIT_LOG, SET_AUDIT_CONFIG, GET_CONTENTS, ASYNC_POLL}
)


class Reply(NamedTuple):
    """A frame that came back."""

    id: int
    op: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def header(op: int, length: int, number: int = 0, magic: bytes = MAGIC) -> bytes:
    """Magic, id, opcode, length: 4 + 4 + 1 + 8 bytes, little-endian."""
    return magic + number.to_bytes(4, "little") + bytes([op]) + length.to_bytes(8, "little")


def frame(op: int, body: object = b"", number: int = 0) -> bytes:
    """A whole frame; a body that isn't bytes is written as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return header(op, len(data), number) + data


class Wire:
    """One connection, blocking; everything it waits for has a deadline. A context manager."""

    def __init__(self, path: str, timeout: float = PATIENCE) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """With replies unread this is a reset for the kernel (ECONNRESET)."""
        self.socket.close()

    def send(self, op: int, body: object = b"", number: int = 0) -> None:
        self.write(frame(op, body, number))

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def stop_sending(self) -> None:
        """Half-close: the kernel reads an end of file, and we still read."""
        self.socket.shutdown(socket.SHUT_WR)

    def receive(self) -> Reply:
        """The next frame; ``ConnectionError`` at the end of the stream, ``TimeoutError`` when nothing comes."""
        head = self._exactly(HEADER_SIZE)
        assert head[:4] == MAGIC, f"a reply begins with {head[:4]!r}"
        length = int.from_bytes(head[9:17], "little")
        return Reply(int.from_bytes(head[4:8], "little"), head[8], self._exactly(length))

    def replies(self, count: int) -> Sequence[Reply]:
        return [self.receive() for _ in range(count)]

    def ask(self, op: int, body: object = b"", number: int = 0) -> Reply:
        """A request and the frame that comes next."""
        self.send(op, body, number)
        return self.receive()

    def call(self, op: int, body: object = b"", number: int = 0) -> Any:
        """A request and its reply, which must be JSON, have its opcode, and in version 2 its id."""
        reply = self.ask(op, body, number)
        assert reply.op == op
        assert not number or reply.id == number
        return reply.json

    def hello(self) -> Any:
        """Begin version 2; the welcome."""
        welcome = self.call(HELLO, {"protocol": 2})
        assert welcome["success"], welcome
        return welcome

    def ends(self) -> bool:
        """Whether the kernel closes now: an end of file, with nothing before it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:  # it closed with some of what we sent unread
            return True

    def is_silent(self, seconds: float = 0.2) -> bool:
        """Whether nothing comes for that long: for what must *not* be answered yet."""
        before = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        else:
            return False
        finally:
            self.socket.settimeout(before)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self.socket.recv(min(count - len(data), 1 << 20))
            if not part:
                raise ConnectionError(f"the stream ended {count - len(data)} bytes too early")
            data += part
        return bytes(data)


def fill(wire: Wire, data: bytes, seconds: float = 0.5, times: int = 1 << 30) -> int:
    """Write ``data`` so many times, or until the kernel takes no more for ``seconds``; gives how many bytes it took."""
    wire.socket.settimeout(seconds)
    sent = 0
    with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and sent < len(data) * times:
            sent += wire.socket.send(memoryview(data)[sent % len(data) :])
    wire.socket.settimeout(PATIENCE)
    return sent


def settle(wire: Wire) -> None:
    """Return when the kernel has seen to all that any connection had sent before: it serves them in turns."""
    for _ in range(4):
        wire.ask(NOOP, b"", 0xFFFFFFFE)
