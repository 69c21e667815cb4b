"""HTTP transport to an LLM vendor: the vendor's SDK composes a request, we send it and read the stream.

Only the SDK knows the format, but it takes half a millisecond per message. So it composes in a thread, with an HTTP
client that sends nothing. The SDK also reads by nested generators: if one is stopped in the middle, the inner ones and
the connection are left to the garbage collector. So the response is read here, with limits.
"""

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

import httpcore2
import httpx2
import trio

from agentos.llm.answers.embeddings import BodyReader
from agentos.llm.answers.malformed import MalformedResponse
from agentos.llm.answers.vendor_errors import message_of, plain_text
from agentos.llm.settings import Timeouts
from agentos.threads import Limiter, run_in_thread
from agentos_sdk.encoding import codec

from .account import ErrorOfStatus, ProviderAccount, retry_after_of
from .http_client import make_client
from .prompts.base64_parts import Base64Parts
from .provider import Answer, Delta, OnDelta, ProviderError, Question, Rejected

for _library in ("httpcore2", "httpx2", "openai", "google_genai", "anthropic"):
    logging.getLogger(_library).setLevel(logging.WARNING)  # below this level they log requests and headers

LINGER = 1.0  # seconds in which a connection has to end its body after an answer's end, to be used again
MAX_ERROR_BODY = 64 << 10  # bytes that are read of an error response
NO_REASON = "no reason given"
NO_COMPRESSION = {"accept-encoding": "identity"}  # compressed data may expand a thousand times

# Bytes per read. Everything in one read (headers, interim replies, chunks of one byte) is parsed without a pause.
httpcore2.AsyncHTTP11Connection.READ_NUM_BYTES = 4 << 10


class ResponseReader(Protocol):
    """Reads a response. ``finish`` isn't None once it is complete, ``ended`` is true once nothing of it follows.

    ``callback_error`` is what ``on_delta`` raised.
    """

    @property
    def finish(self) -> str | None: ...

    @property
    def ended(self) -> bool: ...

    @property
    def callback_error(self) -> Exception | None: ...

    @property
    def on_delta(self) -> OnDelta: ...

    def feed(self, chunk: bytes) -> Iterator[None]:
        """Read a chunk; other tasks run whenever it yields."""

    def end(self) -> None:
        """Read what is left: no chunk follows."""


class Transport:
    """The connections to a vendor. Takes 30 ms to make where certificates are read.

    ``composing`` is the client given to the SDK, ``http`` the one that sends. They have no read timeout, don't follow
    redirects, which would send the key to another host, and keep no cookies.
    """

    def __init__(self, account: ProviderAccount, base_url: str, timeouts: Timeouts) -> None:
        self._account = account
        self._timeout = {"connect": timeouts.connect}
        self._captured = _CapturingTransport()
        self._limiter = Limiter(1)
        self.composing = httpx2.Client(transport=self._captured, headers=NO_COMPRESSION)
        self.http = make_client(base_url)

    async def send(
        self,
        compose: Callable[[], object],
        builder: ResponseReader,
        error_of_status: ErrorOfStatus,
        parts: Base64Parts | None = None,
    ) -> None:
        """Let the SDK compose a request in ``compose``, and read the answer; raises :class:`ProviderError` without one.

        Exceptions of ``on_delta`` pass through unchanged. ``parts`` are sent in place of their tokens.
        """
        # Not abandonable: a caller with a large request holds its place at the provider as long as composing takes.
        request = await run_in_thread(self._compose_request, compose, limiter=self._limiter)
        if parts is not None:
            parts.splice(request)
        with self._convert_errors(builder):
            response = await self.http.send(request, stream=True)
            try:
                await self._read_response(response, builder, error_of_status)
            finally:
                with trio.CancelScope(shield=True):
                    await response.aclose()

    async def embed(
        self,
        compose: Callable[[], object],
        read: Callable[[bytes, Question], Answer],
        question: Question,
        error_of_status: ErrorOfStatus,
        on_delta: OnDelta,
    ) -> Answer:
        """Let the SDK compose a request for embeddings, and ``read`` its response in a thread."""
        reader = BodyReader(on_delta)
        await self.send(compose, reader, error_of_status)
        with self._convert_errors(reader):
            return await run_in_thread(read, reader.body, question, limiter=self._limiter)

    async def aclose(self) -> None:
        await self.http.aclose()

    def _compose_request(self, compose: Callable[[], object]) -> httpx2.Request:
        try:
            compose()
        except Exception as error:  # the SDK's: for a schema or a model that it refuses
            why = f"its package fails on a schema or another part of the question ({type(error).__name__})"
            if isinstance(error, ValueError) and not isinstance(error, UnicodeError | json.JSONDecodeError):
                why = self._account.clean_message(error)  # it is meant to be read
            raise Rejected(f"{self._account.vendor} can't be asked this: {why}") from None
        request, self._captured.request = self._captured.request, None
        assert request is not None, "the SDK sends what it has composed"
        request.extensions["timeout"] = self._timeout  # not the SDK's own
        return request

    async def _read_response(
        self, response: httpx2.Response, builder: ResponseReader, error_of_status: ErrorOfStatus
    ) -> None:
        stream, status = response.stream, response.status_code
        assert isinstance(stream, httpx2.AsyncByteStream)
        readable = response.headers.get("content-encoding", "identity") == "identity"
        if not 200 <= status < 300:
            message = await _read_error_body(stream) if readable else None
            if response.is_redirect:
                raise self._redirected(response, message)
            raise error_of_status(
                status, message or response.reason_phrase or NO_REASON, retry_after_of(response.headers)
            )
        builder.on_delta(Delta(accepted=True))
        if not readable:
            raise MalformedResponse("compresses its answer, though asked not to")
        redactor = self._account.make_redactor()
        await _drain(stream, lambda chunk: builder.feed(redactor.feed(chunk)), lambda: builder.ended)
        for _ in builder.feed(redactor.end()):
            await trio.lowlevel.cancel_shielded_checkpoint()
        builder.end()

    def _redirected(self, response: httpx2.Response, message: object) -> Rejected:
        """The error for a redirect. Of its target, the query and the password aren't shown."""
        try:
            target = response.url.join(response.headers["location"])
            where = str(target.copy_with(query=None, fragment=None, username=None, password=None))
        except (KeyError, ValueError, httpx2.InvalidURL):
            where = "no address"
        shown, said = self._account.clean_message(where), self._account.clean_message(message_of(message))
        text = (
            f"{self._account.vendor} redirects to {shown} ({response.status_code}), which isn't followed, as it would "
            "get the key: set base_url to the server that answers"
        )
        return Rejected(f"{text}: {said}" if said else text, status=response.status_code)

    @contextlib.contextmanager
    def _convert_errors(self, builder: ResponseReader) -> Iterator[None]:
        """Convert errors of the connection or the vendor into a :class:`ProviderError`; none behind a whole answer."""
        try:
            yield
        except ProviderError:
            raise
        except Exception as error:
            if error is builder.callback_error:
                raise
            if builder.finish is not None:
                return
            if isinstance(error, httpx2.TransportError):
                raise self._account.connection_error(error) from None
            if isinstance(error, MalformedResponse | codec.Invalid):
                raise self._account.unforeseen(self._account.clean_message(error)) from None
            raise self._account.unforeseen(f"answered what can't be read ({type(error).__name__})") from None


class _CapturingTransport(httpx2.BaseTransport):
    """An HTTP transport that keeps the request that an SDK sends, and sends nothing."""

    request: httpx2.Request | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.request = request
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=b"")


async def _drain(
    body: AsyncIterator[bytes] | httpx2.AsyncByteStream,
    feed: Callable[[bytes], Iterator[None]],
    has_ended: Callable[[], bool] = lambda: False,
) -> None:
    """Feed a whole body; other tasks run whenever ``feed`` yields. Once it ``has_ended`` no more than its end is read.

    If ``feed`` fails, the wait for the next chunk is cancelled, so that the body's generators end from within. For the
    same reason nothing else in here can be cancelled.
    """
    failure: Exception | None = None
    with trio.CancelScope() as scope:
        async for chunk in body:
            try:
                for _ in feed(chunk) if failure is None else ():
                    await trio.lowlevel.cancel_shielded_checkpoint()
            except Exception as error:
                failure = error
                scope.cancel()
            if has_ended():
                scope.deadline = min(scope.deadline, trio.current_time() + LINGER)
            await trio.lowlevel.cancel_shielded_checkpoint()
    if failure is not None:
        raise failure


class _BodyLimit(Exception):
    """Enough of an error response has been read."""


async def _read_error_body(body: httpx2.AsyncByteStream) -> object:
    """The body of an error response or its beginning: parsed as JSON if possible."""
    message = bytearray()

    def feed(chunk: bytes) -> Iterator[None]:
        message.extend(chunk[: MAX_ERROR_BODY - len(message)])
        if len(message) == MAX_ERROR_BODY:
            raise _BodyLimit
        yield

    with contextlib.suppress(_BodyLimit, httpx2.TransportError):
        await _drain(body, feed)
    try:
        return codec.parse(bytes(message))
    except codec.Invalid:
        return plain_text(message.decode(errors="replace"))
