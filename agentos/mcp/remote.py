"""The transport between the SDK's client and a server at a URL: streamable HTTP by the kernel's own HTTP client.

So the server's permission set decides about each host and address, and the kernel adds the secrets that it names. What
the server sends is bounded, parsed and cut as what a program sends. What goes wrong with one request becomes its
answer, an error of JSON-RPC; the others go on. A stream that breaks isn't resumed: its request fails.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import anyio
import mcp_types
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define, field, frozen
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from agentos.kernel.wire.request_body import parse_values
from agentos.services.http.client import Client, Response
from agentos.services.http.destination import parse_url
from agentos.services.http.request import Headers, OutgoingRequest, Permit
from agentos.threads import run_in_thread
from agentos_sdk.encoding.codec import Invalid
from agentos_sdk.errors import CallError, PermissionDenied

from .connection.messages import Parsed, check_depth, mend, parse_line, quote_line
from .connection.server_events import ServerEvents
from .errors import BadServer
from .validation import validate

MAX_MESSAGE_BYTES: Final = 1 << 20
MAX_OPEN_REQUESTS: Final = 16  # of a server
MAX_REDIRECTS: Final = 3
MAX_SESSION_CHARS: Final = 1024  # of a session's id
SESSION_ID: Final = re.compile(f"[!-~]{{1,{MAX_SESSION_CHARS}}}")  # as MCP has it
INLINE_BYTES: Final = 4 << 10  # a longer message is parsed in a thread
NOTIFY_SECONDS: Final = 30.0  # that a server has to accept a message without an answer
END_SECONDS: Final = 2.0  # that it has to accept the end of a session
LISTEN_AGAIN_SECONDS: Final = 5.0
FAILED: Final = -32099  # of the codes that JSON-RPC leaves to implementations; no other is used for this
JSON, EVENTS = "application/json", "text/event-stream"
NO_OAUTH: Final = (
    "OAuth isn't offered: put a token into [[http.secrets]], and name that secret in the server's permissions"
)


@frozen
class NoMessage:
    """What a server has sent instead of a message: its ``kind``, and its begin. ``is_reply``: it was meant as one."""

    kind: str
    is_reply: bool
    quoted: str

    def refuse(self) -> BadServer:
        return BadServer(f"it answered with {self.kind}: {self.quoted}")


Incoming = SessionMessage | Exception
Message = mcp_types.JSONRPCMessage


@define(eq=False)
class RemoteTransport:
    """``number`` is the id of the caller that asks, and ``permit`` what its rules say.

    ``over`` is set when the server has ended the session: it has to be connected anew. ``fault`` then says so.
    """

    url: str
    client: Client
    number: int
    permit: Permit
    over: trio.Event = field(factory=trio.Event)
    fault: str | None = None
    _session: str | None = None
    _version: str | None = None  # of the protocol, as the SDK's last message said
    _open: set[str | int] = field(factory=set)  # requests of the server that are being answered
    _asked: dict[str | int, trio.CancelScope] = field(factory=dict)  # requests to the server

    @contextlib.asynccontextmanager
    async def connect(
        self,
    ) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]]:
        """The two streams that the SDK's client takes."""
        to_client, incoming = anyio.create_memory_object_stream[Incoming](0)
        outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, nursery, from_client, to_client)
            try:
                yield incoming, outgoing
            finally:
                await self._end_session()  # noqa: ASYNC102 - it shields itself
                nursery.cancel_scope.cancel()

    # -- To the server ---------------------------------------------------------------------------------------------

    async def _write(
        self,
        nursery: trio.Nursery,
        from_client: MemoryObjectReceiveStream[SessionMessage],
        to_client: MemoryObjectSendStream[Incoming],
    ) -> None:
        async with from_client, to_client:
            async for item in from_client:
                message, headers = item.message, self._headers_of(item)
                if isinstance(message, mcp_types.JSONRPCRequest):
                    nursery.start_soon(self._ask, message, headers, to_client)
                elif not self._abort(message):
                    await self._notify(message, headers, to_client)
                    if getattr(message, "method", "") == "notifications/initialized" and self._session is not None:
                        nursery.start_soon(self._listen, to_client)

    def _headers_of(self, item: SessionMessage) -> Headers:
        """Those that the SDK wants for this message, with the session's."""
        given: dict[str, str] = {}
        if isinstance(item.metadata, ClientMessageMetadata):
            given = {name.lower(): value for name, value in (item.metadata.headers or {}).items()}
        if getattr(item.message, "method", "") == "initialize":
            self._version = None
        self._version = given.pop("mcp-protocol-version", self._version)
        own = {"accept": f"{JSON}, {EVENTS}", "content-type": JSON}
        return [*(own | given).items(), *self._session_headers()]

    def _session_headers(self) -> Headers:
        pairs = (("mcp-session-id", self._session), ("mcp-protocol-version", self._version))
        return [(name, value) for name, value in pairs if value]

    def _abort(self, message: Message) -> bool:
        """Whether the message withdraws a request where the protocol does that by ending its HTTP request."""
        if getattr(message, "method", "") != "notifications/cancelled" or self._version not in MODERN_PROTOCOL_VERSIONS:
            return False
        params = getattr(message, "params", None) or {}
        asked = self._asked.get(params.get("requestId", ""))
        if asked is not None:
            asked.cancel()
        return True

    async def _notify(self, message: Message, headers: Headers, to_client: MemoryObjectSendStream[Incoming]) -> None:
        """Send a message that has no answer: a notification, or an answer to a request of the server's."""
        if isinstance(message, mcp_types.JSONRPCResponse | mcp_types.JSONRPCError) and message.id is not None:
            self._open.discard(message.id)
        with trio.move_on_after(NOTIFY_SECONDS):
            try:
                async with self._exchange("POST", headers, encode(message)):
                    pass
            except (CallError, BadServer) as error:  # the SDK can't be told which message it was
                await _pass_on(to_client, ConnectionError(self._quote(error)))

    async def _ask(
        self, request: mcp_types.JSONRPCRequest, headers: Headers, to_client: MemoryObjectSendStream[Incoming]
    ) -> None:
        """Send a request and pass on all that comes for it, and in the end its answer or an error."""
        with trio.CancelScope() as scope:
            self._asked[request.id] = scope
            try:
                async with self._exchange("POST", headers, encode(request)) as response:
                    answer = await self._read_answer(request, response, to_client)
            except (CallError, BadServer) as error:
                answer = make_error(request.id, self._quote(error))
            finally:
                if self._asked.get(request.id) is scope:
                    del self._asked[request.id]
            await _pass_on(to_client, SessionMessage(answer))

    async def _listen(self, to_client: MemoryObjectSendStream[Incoming]) -> None:
        """Receive what the server sends of its own accord, as long as it offers that."""
        while True:
            try:
                headers = [("accept", EVENTS), *self._session_headers()]
                async with self._exchange("GET", headers) as response:
                    if response.status != 200 or kind_of(response) != EVENTS:
                        return
                    events = ServerEvents(response)
                    while (message := await self._next_message(events)) is not None:
                        await _pass_on(to_client, SessionMessage(message))
            except (CallError, BadServer) as error:
                await _pass_on(to_client, ConnectionError(self._quote(error)))
            await trio.sleep(LISTEN_AGAIN_SECONDS)

    async def _end_session(self) -> None:
        if self._session is not None and not self.over.is_set():
            with trio.move_on_after(END_SECONDS, shield=True):
                with contextlib.suppress(CallError, BadServer):  # the server ends unused sessions by itself
                    async with self._exchange("DELETE", self._session_headers()):
                        pass

    @contextlib.asynccontextmanager
    async def _exchange(self, method: str, headers: Headers, body: bytes = b"") -> AsyncIterator[Response]:
        """Send one HTTP request; raises ``CallError`` and :class:`BadServer`."""
        hop = self.permit.follow(method, self.url)
        if hop is None:
            raise BadServer(describe_refusal(self.permit, method, self.url))
        outgoing = OutgoingRequest(hop, headers, body, MAX_REDIRECTS)
        async with self.client.request(self.number, outgoing, self.permit) as response:
            yield response

    def _quote(self, error: Exception) -> str:
        return f"{self.url.partition('?')[0]}: {error}"

    # -- From the server -------------------------------------------------------------------------------------------

    async def _read_answer(
        self, request: mcp_types.JSONRPCRequest, response: Response, to_client: MemoryObjectSendStream[Incoming]
    ) -> Message:
        """Pass on what comes before the answer, and return that."""
        kind = kind_of(response)
        if response.status >= 300 and not (kind == JSON and response.status in (400, 404, 405)):
            self._check_session(response.status)
            raise BadServer(describe_status(response.status))
        if request.method == "initialize":
            [self._session] = [*filter(None, response.values("mcp-session-id")), None][:1]
            if self._session is not None and not SESSION_ID.fullmatch(self._session):
                self._session = None
                raise BadServer(f"its session's id isn't made of 1 to {MAX_SESSION_CHARS} visible ASCII characters")
        if kind == EVENTS:
            events = ServerEvents(response)
            while (message := await self._next_message(events, for_request=True)) is not None:
                if isinstance(message, mcp_types.JSONRPCResponse | mcp_types.JSONRPCError):
                    return message.model_copy(update={"id": request.id})
                await _pass_on(to_client, SessionMessage(message))
            raise BadServer("its stream ended without an answer")
        body, truncated = await response.read_all(MAX_MESSAGE_BYTES)
        if truncated:
            raise BadServer(f"it answered with more than {MAX_MESSAGE_BYTES >> 20} MiB")
        found = await self._parse(bytes(body)) if kind == JSON else None
        if not isinstance(found, mcp_types.JSONRPCResponse | mcp_types.JSONRPCError):
            self._check_session(response.status)
            if isinstance(found, NoMessage):
                raise found.refuse()
            raise BadServer(f"it answered {response.status} without an answer in JSON-RPC")
        return found.model_copy(update={"id": request.id})

    def _check_session(self, status: int) -> None:
        """Note that a session is over: a server says 404 then."""
        if status == 404 and self._session is not None:
            self.fault = "it has ended the session"
            self.over.set()

    async def _next_message(self, events: ServerEvents, for_request: bool = False) -> Message | None:
        """The next message of a stream; None at its end. Events that are none keep the connection alive.

        ``for_request``: the stream is that of a request, and a reply that can't be read fails it.
        """
        while (data := await events.receive()) is not None:
            message = await self._parse(data)
            if isinstance(message, NoMessage):
                if for_request and message.is_reply:
                    raise message.refuse()
            elif message is not None:
                return message
        return None

    async def _parse(self, data: bytes) -> Message | NoMessage | None:
        """A message cut to its limits; None for one that is dropped."""
        secrets = self.permit.redactor().values  # the client has redacted them, but not as JSON may escape them
        found = parse(data, secrets) if len(data) <= INLINE_BYTES else await run_in_thread(parse, data, secrets)
        if not isinstance(found, tuple):
            return found
        return found[1] if self._admit(found[0]) else None

    def _admit(self, parsed: Parsed) -> bool:
        """Whether a message is passed on: requests beyond :data:`MAX_OPEN_REQUESTS` aren't, and get no answer."""
        if parsed.withdrawn is not None:
            self._open.discard(parsed.withdrawn)
        if parsed.request is None:
            return True
        if parsed.request in self._open or len(self._open) >= MAX_OPEN_REQUESTS:
            return False
        self._open.add(parsed.request)
        return True


async def _pass_on(to_client: MemoryObjectSendStream[Incoming], item: Incoming) -> None:
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client has ended
        await to_client.send(item)


def parse(data: bytes, secrets: Sequence[bytes]) -> tuple[Parsed, Message] | NoMessage | None:
    """One message cut to its limits; None for one that is dropped. Blocks for a long one. Raises :class:`BadServer`."""
    check_depth(data)
    parsed = parse_line(data, secrets)
    if isinstance(parsed, str):
        return NoMessage(*name_kind(data), parsed)
    if parsed is None:
        return None
    return validate(parsed) or NoMessage("a message that the protocol doesn't have", False, quote_line(data))


def name_kind(data: bytes) -> tuple[str, bool]:
    """What a text is that is no message of JSON-RPC, and whether a reply is in it."""
    try:
        found: Any = parse_values(mend(data))
    except Invalid:
        return "text that isn't JSON", False
    if isinstance(found, list):
        is_batch = any(isinstance(each, dict) and "jsonrpc" in each for each in found)
        return "a JSON array instead of one message (MCP has no batches)", is_batch
    if not isinstance(found, dict) or "jsonrpc" not in found:
        return "JSON that is no message of JSON-RPC", False
    if found["jsonrpc"] != "2.0":
        return "a message of another JSON-RPC than 2.0", "method" not in found
    if "method" in found or not ("error" in found or "result" in found):
        return "a message that JSON-RPC doesn't have", False
    return f"{'an error' if 'error' in found else 'a result'} whose id names no request", True


def encode(message: Message) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


def make_error(number: str | int, text: str) -> mcp_types.JSONRPCError:
    return mcp_types.JSONRPCError(jsonrpc="2.0", id=number, error=mcp_types.ErrorData(code=FAILED, message=text))


def kind_of(response: Response) -> str:
    """The media type, in lower case and without its parameters."""
    return ",".join(response.values("content-type")).partition(";")[0].strip().lower()


def describe_refusal(permit: Permit, method: str, url: str) -> str:
    """Why a request isn't allowed, as the rules say it."""
    try:
        destination, _ = parse_url(url, method)
    except ValueError as error:
        return f"url: {error}"
    refusal = permit.find_refusal(destination)
    return (
        str(refusal)
        if isinstance(refusal, PermissionDenied)
        else "a rule asks about it, and a request of an MCP server can't wait"
    )


def describe_status(status: int) -> str:
    if status == 401:
        return f"it asks for authorization (401 Unauthorized). {NO_OAUTH}"
    if status == 403:
        return "it refuses the request (403 Forbidden): check the token in [[http.secrets]]"
    if status < 400:
        return f"it answered {status}, a redirect that no rule allows to follow"
    return f"it answered {status}"
