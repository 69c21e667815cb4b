"""One HTTP request and its response over ASGI: limits the body, handles slow readers and disconnects."""

from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import parse_qs

import trio
from attrs import define, field
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from agentos.kernel.caller import Allowance
from agentos_sdk.errors import BadRequest, TooLarge

BODY_TIMEOUT = 60.0  # seconds in which a body has to arrive


@define(eq=False)
class Exchange:
    """A body may have ``most`` bytes; its announced size counts towards ``allowance`` until the response has ended."""

    head: HTTPScope
    _receive: ASGIReceiveCallable
    _send: ASGISendCallable
    _max_bytes: int
    _allowance: Allowance
    begun: bool = False  # whether the response has begun
    _ended: bool = False
    _body: bytearray = field(factory=bytearray)
    _size: int = 0  # of the body, as far as it has arrived
    _body_done: trio.Event = field(factory=trio.Event)  # set when the body is complete or too large

    def header(self, name: str) -> str:
        return next((value.decode("latin1") for key, value in self.head["headers"] if key == name.encode()), "")

    def query(self, name: str) -> str:
        """The first value of a parameter in the URL."""
        return parse_qs(self.head["query_string"].decode("latin1")).get(name, [""])[0]

    async def run(self, answer: Callable[["Exchange"], Awaitable[None]]) -> None:
        """Run ``answer``, which is cancelled as soon as the client disconnects."""
        await self._allowance.wait_for_room()
        reserved = min(self._announced_bytes, self._max_bytes)
        self._allowance.take(reserved, calls=1)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive_events, nursery.cancel_scope)
                await answer(self)
                nursery.cancel_scope.cancel()
        finally:
            self._allowance.give_back(reserved, calls=1)

    async def body(self) -> bytes:
        """The whole body. ``TooLarge``, or ``BadRequest`` if it takes too long."""
        if self._announced_bytes <= self._max_bytes:
            with trio.move_on_after(BODY_TIMEOUT) as patience:
                await self._body_done.wait()
            if patience.cancelled_caught:
                raise BadRequest(f"the body did not arrive within {BODY_TIMEOUT:g} s")
        if max(self._announced_bytes, self._size) > self._max_bytes:
            raise TooLarge(f"expected a body of at most {self._max_bytes} bytes")
        return bytes(self._body)

    async def reply(self, status: int, data: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send a whole response, which is JSON."""
        self._allowance.take(replies=len(data))
        try:
            await self.begin(status, "application/json", [("content-length", str(len(data))), *headers])
            await self.write(data)
            await self.end()
        finally:
            self._allowance.give_back(replies=len(data))

    async def begin(self, status: int, kind: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        self.begun = True
        named = [(name.encode(), value.encode()) for name, value in [("content-type", kind), *headers]]
        await self._send({"type": "http.response.start", "status": status, "headers": named, "trailers": False})

    async def write(self, data: bytes) -> None:
        """Return when the client has room for more."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        self._ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    @property
    def _announced_bytes(self) -> int:
        """Bytes of the body; if the client doesn't say, the limit."""
        length = self.header("content-length")
        if length.isdecimal():
            return int(length[:20])
        return 0 if self.head["method"] in ("GET", "HEAD") else self._max_bytes

    async def _receive_events(self, answering: trio.CancelScope) -> None:
        """Take every event from hypercorn, even if not needed: its queue is short, and if full it blocks us."""
        while True:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                if not self._ended:  # else hypercorn reports the end of our response, and still has to finish it
                    answering.cancel()
                return
            if event["type"] == "http.request":
                self._size += len(event["body"])
                if self._size <= self._max_bytes:
                    self._body += event["body"]
                if self._size > self._max_bytes or not event["more_body"]:
                    self._body_done.set()
