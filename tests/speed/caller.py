"""A caller in a few lines, for what is asked seldom: the SDK would be measured along with the kernel."""

import json
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.speed.processes import MeasurementError

HEADER = struct.Struct("<IIBQ")  # magic, id, opcode, length
MAGIC = 0x41474E54
NOOP, LIST, LOGS, RECORD_START, RECORD_STOP = 0x00, 0x12, 0x17, 0x70, 0x71


class Caller:
    """One connection, version 1, one request at a time."""

    def __init__(self, path: Path, timeout: float = 20.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(path))  # with a timeout it would fail where it has to wait for a full backlog
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def _take(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            piece = self._socket.recv(n - len(data))
            if not piece:
                raise MeasurementError("the kernel closed the connection")
            data += piece
        return data

    def call(self, opcode: int, body: bytes = b"") -> bytes:
        self._socket.sendall(HEADER.pack(MAGIC, 0, opcode, len(body)) + body)
        magic, _, answered, length = HEADER.unpack(self._take(HEADER.size))
        if magic != MAGIC or answered != opcode:
            raise MeasurementError(f"a reply with magic 0x{magic:08X} and opcode 0x{answered:02X} to 0x{opcode:02X}")
        return self._take(length)

    def ask(self, opcode: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The reply; ``MeasurementError`` unless it is a success, and that of a command that ended well."""
        reply: dict[str, Any] = json.loads(self.call(opcode, json.dumps(fields).encode()))
        if not reply.get("success", True) or reply.get("exit_code", 0) != 0:
            raise MeasurementError(f"0x{opcode:02X} {str(fields)[:200]}: {reply}")
        return reply

    def noop(self) -> None:
        if (said := self.call(NOOP, b"still there?")) != b"still there?":
            raise MeasurementError(f"NOOP answered {said[:50]!r}")

    def agents(self) -> dict[str, dict[str, Any]]:
        """LIST, by name."""
        return {agent["name"]: agent for agent in json.loads(self.call(LIST, b'{"all":true}'))}

    def lines(self, name: str) -> list[str]:
        """What an agent has printed."""
        return [line["text"] for line in self.ask(LOGS, {"name": name})["lines"]]
