"""Server-sent events of a response, one at a time and bounded."""

import re
from collections import deque
from typing import Final

from attrs import define, field

from agentos.mcp.errors import BadServer
from agentos.mcp.pace import Pace
from agentos.services.http.client import Response

MAX_EVENT_BYTES: Final = 1 << 20
END_OF_EVENT: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@define(eq=False)
class ServerEvents:
    """``receive`` returns the data of one event after the other."""

    response: Response
    _rest: bytearray = field(factory=bytearray)
    _events: deque[bytes] = field(factory=deque)
    _pace: Pace = field(factory=Pace)

    async def receive(self) -> bytes | None:
        """The data of the next event that has any; None at the end. Raises :class:`BadServer` for one too large."""
        while True:
            while self._events:
                data = read_data(self._events.popleft())
                await self._pace.wait(len(data))
                if data:
                    return data
            part = await self.response.read()
            if not part:
                return None
            searched = max(0, len(self._rest) - len(b"\r\n\r"))  # the end of an event may have been received in parts
            self._rest += part
            begin = 0
            for end in END_OF_EVENT.finditer(self._rest, searched):
                self._events.append(bytes(self._rest[begin : end.start()]))
                begin = end.end()
            del self._rest[:begin]
            if len(self._rest) > MAX_EVENT_BYTES:
                raise BadServer(f"it sent an event of more than {MAX_EVENT_BYTES >> 20} MiB")


def read_data(event: bytes) -> bytes:
    """The data of an event. Its other fields are for a client that connects again, which this isn't."""
    lines = (line.partition(b":") for line in event.splitlines())
    return b"\n".join(value.removeprefix(b" ") for name, _, value in lines if name == b"data")
