"""A command with a terminal (EXEC with ``tty``), for a program that passes on its own. Standard library only."""

from __future__ import annotations

from .blocking import check_reply, encode, open_connection, parse, receive
from .errors import ConnectionFailed
from .frames import Frames, frame
from .opcodes import Op

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

READ_SIZE = 64 << 10
MAX_INPUT = 16 << 10  # bytes in one frame
NO_LIMIT = [1 << 62] * 256


class Terminal:
    """A running command and its terminal, on a connection of its own; a context manager that ends it.

    Nothing here blocks once it has begun: wait for :meth:`fileno` to become readable, then :meth:`receive`; and, while
    ``unsent`` holds something, to become writable, then :meth:`send`. Type no more until it is empty.
    ``executed`` is the reply, once the command has ended.
    """

    def __init__(self, path: str, fields: Mapping[str, object]) -> None:
        """``fields`` of EXEC, with ``tty``. Raises :class:`ConnectionFailed`."""
        self.path = path
        self.executed: dict[str, Any] | None = None
        self.unsent = bytearray()
        self._frames = Frames(NO_LIMIT)
        self._sock = open_connection(path)
        try:
            self._sock.sendall(frame(0, Op.HELLO, b'{"protocol":2}'))
            check_reply(receive(self._sock)[2])
            given = {name: value for name, value in fields.items() if value is not None}
            self._sock.sendall(frame(1, Op.EXEC, encode(given)))
        except BaseException:
            self._sock.close()
            raise
        self._sock.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._sock.close()  # a command that still runs ends

    def fileno(self) -> int:
        return self._sock.fileno()

    def type(self, data: bytes) -> None:
        """Type bytes into the terminal: queue them to be sent."""
        from binascii import b2a_base64

        for at in range(0, len(data), MAX_INPUT):
            self._queue({"stdin": b2a_base64(data[at : at + MAX_INPUT], newline=False).decode()})

    def resize(self, rows: int, cols: int) -> None:
        """Tell the terminal its size."""
        self._queue({"resize": [rows, cols]})

    def send(self) -> None:
        """Send what the connection takes of ``unsent``."""
        try:
            del self.unsent[: self._sock.send(self.unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._broken(error) from None

    def receive(self) -> str:
        """What the command has written since. Raises its ``CallError``, or :class:`ConnectionFailed`."""
        try:
            data = self._sock.recv(READ_SIZE)
        except BlockingIOError:
            return ""
        except OSError as error:
            raise self._broken(error) from None
        if not data:
            raise self._broken("closed by the kernel")
        written = []
        for number, op, body in self._frames.take(data):
            if number == 1 and op == Op.CHUNK:
                written.append(parse(body).get("text", ""))
            elif number == 1:
                self.executed = check_reply(body)
        if self._frames.broken is not None:
            raise self._broken(self._frames.broken)
        return "".join(written)

    def _queue(self, fields: Mapping[str, object]) -> None:
        self.unsent += frame(1, Op.CHUNK, encode(fields))

    def _broken(self, why: object) -> ConnectionFailed:
        return ConnectionFailed(f"the connection to the kernel at {self.path} broke: {why}")
