"""Server-sent events: parsed as their bytes arrive, and bounded. Other tasks may run between two lines."""

import math
from collections.abc import Callable, Iterator

from attrs import define, field

MAX_EVENT = 1 << 20  # bytes of one event: parsed without a pause
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
FIELD_NAMES = (b"data", b"event", b"id", b"retry")


@define(eq=False)
class EventParser:
    """Parser of server-sent events; chunks may be split anywhere.

    ``malformed`` makes the error of a stream that exceeds a limit, of what it has done: "sent an event of more than 1
    MiB". ``most`` are the bytes of the whole stream.

    ``name`` is that of the event that was yielded last. ``stray`` are the lines that belong to no event, such as a body
    that is JSON or a page.
    """

    malformed: Callable[[str], Exception]
    most: float = math.inf
    name: str = ""
    _stray: list[bytes] = field(factory=list)
    _line: list[bytes] = field(factory=list)  # pieces of a line that hasn't ended
    _data: list[bytes] = field(factory=list)
    _arriving: str = ""  # name of the event that is arriving
    _size: int = 0  # of the event
    _stray_size: int = 0
    _total_size: int = 0
    _after_return: bool = False  # whether the last chunk ended with a carriage return, which a line feed may follow

    @property
    def stray(self) -> bytes:
        if self._stray_size > MAX_EVENT:
            raise self.malformed(f"sent more than {MAX_EVENT >> 20} MiB that is no event")
        return b"\n".join(self._stray)

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield once per line: the data of an event if the line ends one, which may be none, else ``None``.

        Line feeds and carriage returns end lines: JSON may contain the other line separators of Unicode.
        """
        self._total_size += len(chunk)
        if self._total_size > self.most:
            raise self.malformed(f"answers without an end: more than {int(self.most) >> 20} MiB")
        if chunk:
            rest = chunk.removeprefix(b"\n") if self._after_return else chunk
            self._after_return = chunk.endswith(b"\r")
            chunk = rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = chunk.split(b"\n")
        self._grow(first)
        for piece in others:
            line = b"".join(self._line)
            self._line.clear()
            yield self._end(line)
            self._grow(piece)

    def _grow(self, piece: bytes) -> None:
        self._line.append(piece)
        self._size += len(piece) + 1
        if self._size > MAX_EVENT:
            raise self.malformed(f"sent an event of more than {MAX_EVENT >> 20} MiB")

    def _end(self, line: bytes) -> bytes | None:
        if line := line.removeprefix(BYTE_ORDER_MARK):
            self._take_line(line)
            return None
        data = b"\n".join(self._data)
        self.name, self._arriving = self._arriving, ""
        self._data.clear()
        self._size = 0
        return data

    def _take_line(self, line: bytes) -> None:
        name, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            if value.strip() or self._data:
                self._data.append(value)
        elif name == b"event":
            self._arriving = value.strip().decode(errors="replace")
        elif name and not (colon and name in FIELD_NAMES):
            self._stray_size += len(line) + 1
            if self._stray_size <= MAX_EVENT:
                self._stray.append(line)
