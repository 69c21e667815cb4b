"""One plain HTTP request from a client to a server, and the response back; h11 writes both anew."""

import h11
import trio
from attrs import define

from agentos_sdk.errors import BadRequest, CallError, Unavailable

from .incoming import READ_SIZE, Body
from .refusal import CONTINUE
from .request_head import HOP_BY_HOP, MAX_HEAD_BYTES, BadHead, Headers, RequestHead
from .tunnel import Traffic

IDLE_SECONDS = 300.0  # without data; a client that has given up holds its connection no longer


@define(eq=False)
class Forward:
    """``host`` is the value of the Host header, and ``target`` path and query, both made from what was judged."""

    client: trio.SocketStream
    server: trio.SocketStream
    request: RequestHead
    body: Body
    host: str
    target: str
    traffic: Traffic
    status: int | None = None  # of the response, once its head has been sent on

    async def run(self) -> bool:
        """Pass on the request, its body and the response; whether the client's connection can be used again.

        Raises ``BadRequest`` for a malformed body, ``Unavailable`` for a malformed response, ``BrokenResourceError`` if
        either side is gone.
        """
        self.traffic.idle_seconds = IDLE_SECONDS
        self.traffic.count()
        if self.request.expects_continue and not self.body.at_end:
            await self.client.send_all(CONTINUE)  # before a response may come, which is sent by another task
        sending = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        head = sending.send(self._head())  # before a response, which may come at once
        failures: list[Exception] = []
        reusable = False
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                try:
                    await self._send_request(sending, head)
                except BadHead as error:
                    failures.append(BadRequest(str(error)))
                    nursery.cancel_scope.cancel()
                except trio.BrokenResourceError:
                    pass  # a server may answer, and disconnect, before it has read all

            nursery.start_soon(send)
            try:
                reusable = await self._pass_response(sending)
            except (CallError, trio.BrokenResourceError) as error:
                failures.append(error)
            nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]
        return reusable and self.body.at_end

    def _head(self) -> h11.Request:
        length = self.request.length
        announces = length != 0 or self.request.method in ("POST", "PUT", "PATCH")
        framing: Headers = (
            [(b"Transfer-Encoding", b"chunked")]
            if length is None
            else [(b"Content-Length", b"%d" % length)]
            if announces
            else []
        )
        headers = [(b"Host", self.host.encode()), *self.request.headers, *framing, (b"Connection", b"close")]
        return h11.Request(method=self.request.method, target=self.target, headers=headers)

    async def _send_request(self, sending: h11.Connection, head: bytes | None) -> None:
        await self._send(head)
        while data := await self.body.receive():
            await self._send(sending.send(h11.Data(data=data)))
        await self._send(sending.send(h11.EndOfMessage()))

    async def _send(self, data: bytes | None) -> None:
        if data:
            await self.server.send_all(data)
            self.traffic.count(sent=len(data))

    async def _pass_response(self, sending: h11.Connection) -> bool:
        answering = h11.Connection(h11.SERVER)
        answering.receive_data(self._head_for_framing())
        answering.next_event()
        while True:
            event = await self._next_event(sending)
            if isinstance(event, h11.InformationalResponse):
                await trio.lowlevel.checkpoint()  # one read may hold thousands
                continue  # 100 was sent already, if the client waits for it
            if isinstance(event, h11.Response):
                self.status = event.status_code
                event = self._rewrite(event)
            if not isinstance(event, h11.Response | h11.Data | h11.EndOfMessage):
                raise Unavailable("the server's response ends too early")
            try:
                data = answering.send(event)
            except h11.LocalProtocolError as error:
                raise Unavailable(f"the server's response is malformed: {error}") from None
            if data:
                await self.client.send_all(data)
            if isinstance(event, h11.EndOfMessage):
                return answering.our_state is not h11.MUST_CLOSE

    def _head_for_framing(self) -> bytes:
        """A request head that makes h11 frame the response as this client needs it, which may be an old one."""
        version = "1.1" if self.request.keep_alive else "1.0"
        return f"{self.request.method} / HTTP/{version}\r\nHost: x\r\n\r\n".encode()

    def _rewrite(self, response: h11.Response) -> h11.Response:
        named = {
            option.strip().lower()
            for name, value in response.headers
            if name == b"connection"
            for option in value.split(b",")
        }
        is_chunked = any(name == b"transfer-encoding" for name, _ in response.headers)
        dropped = named | (HOP_BY_HOP if is_chunked else HOP_BY_HOP - {b"content-length"})
        headers = [
            (raw, value)
            for (raw, value), (name, _) in zip(response.headers.raw_items(), response.headers, strict=True)
            if name not in dropped
        ]
        if not self.request.keep_alive:
            headers.append((b"Connection", b"close"))
        return h11.Response(status_code=response.status_code, reason=response.reason, headers=headers)

    async def _next_event(self, sending: h11.Connection) -> object:
        while True:
            try:
                event = sending.next_event()
            except h11.RemoteProtocolError as error:  # behind a colon it quotes what was sent
                raise Unavailable(f"the server's response is malformed: {str(error).partition(':')[0]}") from None
            if event is not h11.NEED_DATA:
                return event
            data = await self.server.receive_some(READ_SIZE)
            if not data and self.status is None:
                raise Unavailable("the server ended the connection without a response")
            self.traffic.count(received=len(data))
            sending.receive_data(bytes(data))
