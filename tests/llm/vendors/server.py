"""HTTP/1.1 on a loopback socket, scripted; remembers what it was sent, and when a client went away."""

import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import h11
import trio
from attrs import define, field

from agentos.llm.providers.provider import Question

from .script import Break, Raw, Refuses, Says, Script, Silent, Step, Until

LINGER = struct.pack("ii", 1, 0)  # close() sends RST


class Wire(Protocol):
    """A vendor's format (a module is one)."""

    BASE: str  # of its base_url

    def question(self, path: str, body: Mapping[str, Any]) -> Question:
        """What is asked."""

    def key(self, headers: Mapping[str, str]) -> str | None:
        """By whose key."""

    def wrong_key(self, key: str) -> Refuses:
        """What it says to that."""

    def events(self, says: Says, body: Mapping[str, Any]) -> Iterator[bytes | Step]:
        """The stream, and in its place what is not for the client."""

    def refusal(self, refuses: Refuses) -> tuple[Mapping[str, str], bytes]:
        """Headers and body."""


@define(eq=False)
class Exchange:
    """One request. ``left`` is set when the client closed the connection before all was said; ``left_at`` is when."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    question: Question
    began: trio.Event = field(factory=trio.Event)  # to answer
    left: trio.Event = field(factory=trio.Event)
    left_at: float | None = None  # trio's clock


@define(eq=False)
class Vendor:
    wire: Wire
    base_url: str
    key: str = "canary-key-4711-never-show-this"
    scripts: deque[Script] = field(factory=deque)
    exchanges: list[Exchange] = field(factory=list)
    connections: int = 0
    # what is always answered for a model, or what says it, instead of a script
    models: dict[str, Script | Callable[[Question], Script]] = field(factory=dict)
    _token: trio.lowlevel.TrioToken = field(factory=trio.lowlevel.current_trio_token)

    def release(self, step: Until) -> None:
        """Let an answer go on, from another thread."""
        trio.from_thread.run_sync(step.event.set, trio_token=self._token)

    def will(self, *scripts: Script) -> None:
        self.scripts.extend(scripts)

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        try:
            await _Connection(self, stream).run()
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            pass  # it left
        finally:
            await trio.aclose_forcefully(stream)


async def serve(wire: Wire, *, task_status: trio.TaskStatus[Vendor]) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    vendor = Vendor(wire, f"http://127.0.0.1:{port}{wire.BASE}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, vendor.serve, listeners)
        task_status.started(vendor)


@define(eq=False)
class _Connection:
    vendor: Vendor
    stream: trio.SocketStream
    http: h11.Connection = field(factory=lambda: h11.Connection(h11.SERVER))

    async def run(self) -> None:
        while exchange := await self._request():
            self.vendor.exchanges.append(exchange)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, exchange, nursery.cancel_scope)
                try:
                    await self._answer(exchange)
                except trio.BrokenResourceError:
                    await exchange.left.wait()
                nursery.cancel_scope.cancel()
            if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
                return
            self.http.start_next_cycle()

    async def _request(self) -> Exchange | None:
        head, body = None, bytearray()
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                self.http.receive_data(await self.stream.receive_some())
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                if head.method != b"POST":  # what is there besides models, and which
                    await self._send(h11.Response(status_code=404, headers=[("content-length", "0")]))
                    await self._send(h11.EndOfMessage())
                    self.http.start_next_cycle()
                    continue
                headers = {name.decode(): value.decode() for name, value in head.headers}
                path, content = head.target.decode(), json.loads(body)
                return Exchange(path, headers, content, self.vendor.wire.question(path, content))
            else:
                return None

    async def _watch(self, exchange: Exchange, rest: trio.CancelScope) -> None:
        """A client that is being answered can only leave, or send its next request once it has seen the end."""
        try:
            data = await self.stream.receive_some()
        except trio.BrokenResourceError:
            data = b""
        if data:
            self.http.receive_data(data)
            return
        exchange.left_at = trio.current_time()
        exchange.left.set()
        rest.cancel()

    async def _answer(self, exchange: Exchange) -> None:
        wire = self.vendor.wire
        script: Script
        match self.vendor.models.get(exchange.question.model):
            case None:
                script = self.vendor.scripts.popleft() if self.vendor.scripts else Says()
            case Says() | Refuses() | Silent() as always:
                script = always
            case answer:
                script = answer(exchange.question)
        if (key := wire.key(exchange.headers)) != self.vendor.key:
            script = wire.wrong_key(key or "")
        match script:
            case Silent():
                exchange.began.set()
                await trio.sleep_forever()
            case Refuses():
                headers, body = wire.refusal(script)
                headers = {"content-type": "application/json", **headers, **script.headers}
                body = body if script.body is None else script.body
                await self._send(h11.Response(status_code=script.status, headers=[*headers.items()]))
                await self._send(h11.Data(data=body))
                await self._send(h11.EndOfMessage())
            case Says():
                await self._send(h11.Response(status_code=200, headers=[("content-type", "text/event-stream")]))
                exchange.began.set()
                for event in wire.events(script, exchange.body):
                    if not await self._step(event):
                        return
                await self._send(h11.EndOfMessage())

    async def _step(self, event: bytes | Step) -> bool:
        """Whether there is more to say."""
        match event:
            case Until():
                await event.event.wait()
            case Break("reset"):
                self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
                return False
            case Break():
                return False
            case Raw():
                await self._send(h11.Data(data=event.data))
            case bytes():
                await self._send(h11.Data(data=event))
        return True

    async def _send(self, event: Any) -> None:
        data = self.http.send(event)
        if data:
            await self.stream.send_all(data)
