"""One open page: the WebSocket that carries the feed down and system calls up, on a connection of its own."""

import zlib
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec
import trio
from attrs import define, field
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentos.threads import run_in_thread
from agentos_sdk.client import Kernel
from agentos_sdk.clients.streams import Stream
from agentos_sdk.errors import BadRequest, CallError
from agentos_sdk.opcodes import Op

from .recordings import PageAskAgain, PageRecordings
from .sessions import Session

if TYPE_CHECKING:
    from .feed import Feeds

MAX_QUEUED = 256 << 10  # bytes for a page; beyond that the feed starts anew with a snapshot, and replies wait
MESSAGES_PER_SECOND = 20.0
MAX_BURST = 40.0  # messages
MAX_CALLS = 16  # of a page at once
MAX_REPLY = 1 << 20  # bytes of one reply
MAX_UNREAD = 64 << 10  # bytes of one stream's chunks that wait for room
COMPRESSED_FROM = 8 << 10  # bytes of a message, which is then binary: its text, compressed by zlib
CHECK_SECONDS = 10.0  # at most so late a page ends after its session
CLOSE_SECONDS = 5.0  # in which a page has to take that it is logged out
# They would change the connection itself.
NOT_FOR_PAGES = {Op.HELLO, Op.EXIT, Op.CANCEL, Op.CHUNK}


class PageCall(msgspec.Struct, tag="call", forbid_unknown_fields=True):
    """A system call by name; the reply has the same ``id``. With ``stream`` its chunks come before the reply."""

    id: int
    call: str
    args: msgspec.Raw = msgspec.Raw(b"{}")
    stream: bool = False


class PageCancel(msgspec.Struct, tag="cancel", forbid_unknown_fields=True):
    """Withdraw the call with this id."""

    id: int


class PageSessions(msgspec.Struct, tag="sessions", forbid_unknown_fields=True):
    """List the links to the dashboard, after ending ``revoke``; no other page than the operator's gets others'."""

    id: int
    revoke: Annotated[str, msgspec.Meta(max_length=16)] | None = None


class PageUse(msgspec.Struct, tag="use", forbid_unknown_fields=True):
    """A person uses the page: a key, a click. All other messages may be the page's own, which asks again by itself."""


decode = msgspec.json.Decoder(PageCall | PageCancel | PageSessions | PageUse | PageRecordings | PageAskAgain).decode


class Browsers(Protocol):
    """The browsers that are logged in, and what all of their pages read."""

    async def use(self, session: Session) -> None: ...
    async def revoke(self, number: str) -> bool: ...
    async def list_links(self) -> list[dict[str, object]]: ...
    async def read_recordings(self, session: Session, asked: PageRecordings) -> bytes: ...
    async def build_question(self, session: Session, asked: PageAskAgain) -> bytes: ...


class RawStream(Stream[bytes]):
    """A streamed call by opcode; ``reply`` is the body after the last chunk."""

    _max_unread = MAX_UNREAD

    def __init__(self, kernel: Kernel, op: Op, body: bytes) -> None:
        super().__init__(kernel, {})
        self._op, self._encoded = op, body
        self.reply = b""

    @property
    def op(self) -> Op:
        return self._op

    async def _body(self) -> bytes:
        return self._encoded

    def _piece(self, chunk: bytes) -> bytes:
        return chunk

    def _last(self, reply: bytes) -> bytes:
        self.reply = reply
        raise StopAsyncIteration


@define(eq=False)
class Page:
    """The page of one browser's tab. Its feed and its calls have the rights of its session."""

    socket: WebSocket
    session: Session
    feeds: "Feeds"
    browsers: Browsers
    _replies: deque[bytes] = field(factory=deque)
    _changes: deque[bytes] = field(factory=deque)
    _queued: int = 0  # bytes in both
    _dropped: int = 0  # times that the feed started anew, as the page was too slow
    _behind: bool = True  # it gets a snapshot next
    _filled: trio.Event = field(factory=trio.Event)
    _drained: trio.Event = field(factory=trio.Event)
    _calls: dict[int, trio.CancelScope] = field(factory=dict)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    async def run(self) -> None:
        """Serve the page until it is closed, or its session ends."""
        with self._scope:
            async with (
                self.feeds.connect(self.session.caller_name, self.session.role) as kernel,
                trio.open_nursery() as nursery,
            ):
                with self.feeds.join(self, self.session.role):
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._end_with_session)
                    with suppress(WebSocketDisconnect):
                        await self._read(kernel, nursery)
                    nursery.cancel_scope.cancel()
        if self._scope.cancelled_caught and self.session.is_over():
            with trio.move_on_after(CLOSE_SECONDS):
                await self.socket.close(4401, "logged out")

    def close(self) -> None:
        self._scope.cancel()

    async def _end_with_session(self) -> None:
        while True:
            await trio.sleep(min(CHECK_SECONDS, max(0.0, self.session.seconds_left)))
            if self.session.is_over():
                self.close()

    # -- Down: the feed and replies --------------------------------------------------------------------------------

    def change(self, delta: bytes) -> None:
        """Queue a change of the feed. A page that reads too slowly loses queued changes and gets a snapshot later."""
        if self._behind:
            pass  # the snapshot will contain it
        elif self._queued + len(delta) > MAX_QUEUED:
            self._queued -= sum(map(len, self._changes))
            self._changes.clear()
            self._behind = True
            self._dropped += 1
        else:
            self._changes.append(delta)
            self._queued += len(delta)
        self._filled.set()

    def start_anew(self) -> None:
        """Send a snapshot, if the feed has read one already."""
        self._filled.set()

    async def _reply(self, text: bytes) -> None:
        """Queue a reply once there is room."""
        while self._queued >= MAX_QUEUED:
            await self._drained.wait()
        self._replies.append(text)
        self._queued += len(text)
        self._filled.set()

    async def _write(self) -> None:
        while True:
            await self._filled.wait()
            self._filled = trio.Event()
            while text := self._next():
                if len(text) < COMPRESSED_FROM:
                    await self.socket.send_text(text.decode())
                else:
                    await self.socket.send_bytes(await run_in_thread(zlib.compress, text))
                self._drained.set()
                self._drained = trio.Event()

    def _next(self) -> bytes:
        for queue in (self._replies, self._changes):
            if queue:
                text = queue.popleft()
                self._queued -= len(text)
                return text
        if self._behind and (snapshot := self.feeds.snapshot(self.session.role, self._dropped)):
            self._behind = False
            return snapshot
        return b""

    # -- Up: calls -------------------------------------------------------------------------------------------------

    async def _read(self, kernel: Kernel, nursery: trio.Nursery) -> None:
        """Read messages, at most :data:`MESSAGES_PER_SECOND` on average."""
        allowed, last = MAX_BURST, trio.current_time()
        while True:
            text = await self.socket.receive_text()
            now = trio.current_time()
            allowed = min(MAX_BURST, allowed + (now - last) * MESSAGES_PER_SECOND) - 1
            last = now
            if allowed < 0:
                await trio.sleep(-allowed / MESSAGES_PER_SECOND)
            try:
                message = decode(text or "")  # None: a binary one
            except (msgspec.DecodeError, RecursionError) as error:
                await self.socket.close(1007, f"not a message of the dashboard: {error}"[:120])
                return
            if isinstance(message, PageCancel):
                if message.id in self._calls:
                    self._calls[message.id].cancel()
            elif isinstance(message, PageUse):
                await self.browsers.use(self.session)
            elif isinstance(message, PageSessions):
                await self._answer_sessions(message)
            elif message.id in self._calls or len(self._calls) >= MAX_CALLS:
                await self._reply(_error(message.id, "busy", f"this page waits for {MAX_CALLS} calls already"))
            else:
                self._calls[message.id] = trio.CancelScope()
                nursery.start_soon(self._call, kernel, message)

    async def _call(self, kernel: Kernel, message: PageCall | PageRecordings | PageAskAgain) -> None:
        try:
            with self._calls[message.id]:
                try:
                    reply = await self._answer(kernel, message)
                except CallError as error:
                    await self._reply(_error(message.id, error.code, str(error)))
                    return
                if len(reply) > MAX_REPLY:
                    large = f"the reply has {len(reply)} bytes, a page takes {MAX_REPLY}: ask for less, or use the CLI"
                    await self._reply(_error(message.id, "too_large", large))
                else:
                    await self._reply(b'{"id":%d,"reply":%s}' % (message.id, reply or b"null"))
        finally:
            del self._calls[message.id]

    async def _answer(self, kernel: Kernel, message: PageCall | PageRecordings | PageAskAgain) -> bytes:
        if isinstance(message, PageRecordings):
            return await self.browsers.read_recordings(self.session, message)
        if isinstance(message, PageAskAgain):
            return await kernel.exchange(Op.THINK, await self.browsers.build_question(self.session, message))
        op = Op.__members__.get(message.call)
        if op is None or op in NOT_FOR_PAGES:
            raise BadRequest(f"call: a page can't make {message.call!r}")
        return await self._exchange(kernel, op, message)

    async def _exchange(self, kernel: Kernel, op: Op, message: PageCall) -> bytes:
        if not message.stream:
            return await kernel.exchange(op, bytes(message.args))
        async with RawStream(kernel, op, bytes(message.args)) as stream:
            async for chunk in stream:
                await self._reply(b'{"id":%d,"chunk":%s}' % (message.id, chunk))
            return stream.reply

    async def _answer_sessions(self, message: PageSessions) -> None:
        own, is_operator = self.session.id, self.session.role == "operator"
        if message.revoke is not None:
            if not is_operator and message.revoke != own:
                refusal = f"revoke: the link of a {self.session.role} ends no other session"
                await self._reply(_error(message.id, "permission_denied", refusal))
                return
            await self.browsers.revoke(message.revoke)
        listed = await self.browsers.list_links()
        reply = {"sessions": [one for one in listed if is_operator or one["id"] == own], "own": own}
        await self._reply(b'{"id":%d,"reply":%s}' % (message.id, msgspec.json.encode(reply)))


def _error(number: int, code: str, text: str) -> bytes:
    reply: dict[str, object] = {"success": False, "code": code, "error": text}
    return b'{"id":%d,"reply":%s}' % (number, msgspec.json.encode(reply))
