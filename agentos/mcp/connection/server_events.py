"""Server-sent events of a response, one at a time, bounded and paced."""

from collections.abc import Iterator

from attrs import define, field

from agentos.http.sse import EventParser
from agentos.mcp.errors import BadServer
from agentos.mcp.pace import Pace
from agentos.services.http.client import Response


@define(eq=False)
class ServerEvents:
    """``receive`` returns the data of one event after the other."""

    response: Response
    _parser: EventParser = field(factory=lambda: EventParser(lambda text: BadServer(f"it {text}")))
    _lines: Iterator[bytes | None] = field(factory=lambda: iter(()))
    _pace: Pace = field(factory=Pace)

    async def receive(self) -> bytes | None:
        """The data of the next event that has any; None at the end. Raises :class:`BadServer` for one too large."""
        while True:
            for data in self._lines:
                if data is not None:
                    await self._pace.wait(len(data))
                if data:
                    return data
            part = await self.response.read()
            if not part:
                return None
            self._lines = self._parser.feed(part)
