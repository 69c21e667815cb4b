"""A question's way to a vendor and the answer's way back: the vendor's SDK composes it, we send it and listen.

The SDK alone knows the format, but it works for half a millisecond on each message: so it composes in a thread, for an
HTTP client that sends nothing. And it reads by generators within generators: whatever stops one of these in the middle
leaves those inside it, and the connection, to the garbage collector. So what comes is read here, and within bounds.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpcore2
import httpx2
import trio

from agentos_sdk import codec

from .arriving import Arriving, Nonsense
from .provider import Failing, ProviderError, Rejected
from .settings import Timeouts
from .vendor import Account, Refusal, seconds_of

for _library in ("httpcore2", "httpx2", "openai", "google_genai"):
    logging.getLogger(_library).setLevel(logging.WARNING)  # below, they tell of questions and of headers

MOST_REFUSED = 64 << 10  # bytes that are read of what is said with a refusal
NO_REASON = "no reason given"
AS_IT_IS = {"accept-encoding": "identity"}  # what is compressed may be a thousand times as large

# Bytes of one read. Whatever they are, headers or interim replies or chunks of a byte each, is parsed without a pause.
httpcore2.AsyncHTTP11Connection.READ_NUM_BYTES = 4 << 10


class Transport:
    """The connections to a vendor. Takes 30 ms to make, for certificates are read.

    ``composing`` is what the SDK believes to send by, ``http`` what really sends. They wait for an answer as long as
    they are let, follow nobody to another host with the key, and keep no cookies.
    """

    def __init__(self, account: Account, timeouts: Timeouts) -> None:
        self._account = account
        self._timeout = {"connect": timeouts.connect}
        self._kept = _Kept()
        self._one = trio.CapacityLimiter(1)
        self.composing = httpx2.Client(transport=self._kept, headers=AS_IT_IS)
        self.http = httpx2.AsyncClient(
            limits=httpx2.Limits(max_connections=None),  # the line says how many
            cookies=CookieJar(DefaultCookiePolicy(netscape=False)),
            follow_redirects=False,
        )

    async def ask(self, compose: Callable[[], object], arriving: Arriving, refusal: Refusal) -> None:
        """Let the SDK ask in ``compose``, and hear the answer; raises a :class:`ProviderError` when there is none.

        What ``hear`` raised comes out as it is.
        """
        # Not to be abandoned: whoever asks for much holds the provider for as long as that takes.
        request = await trio.to_thread.run_sync(self._composed, compose, limiter=self._one)
        with self._in_our_words(arriving):
            response = await self.http.send(request, stream=True)
            try:
                await self._listen(response, arriving, refusal)
            finally:
                with trio.CancelScope(shield=True):
                    await response.aclose()

    async def aclose(self) -> None:
        await self.http.aclose()

    def _composed(self, compose: Callable[[], object]) -> httpx2.Request:
        try:
            compose()
        except Exception as error:  # the SDK's, of a schema or a model that it doesn't like
            raise Rejected(f"{self._account.vendor} can't be asked this: {self._account.clean(error)}") from None
        request, self._kept.request = self._kept.request, None
        assert request is not None, "the SDK sends what it has composed"
        request.extensions["timeout"] = self._timeout  # not the SDK's own
        return request

    async def _listen(self, response: httpx2.Response, arriving: Arriving, refusal: Refusal) -> None:
        stream, status = response.stream, response.status_code
        assert isinstance(stream, httpx2.AsyncByteStream)
        readable = response.headers.get("content-encoding", "identity") == "identity"
        if status != 200:
            said = await _refused(stream) if readable else None
            raise refusal(status, said or response.reason_phrase or NO_REASON, seconds_of(response.headers))
        if not readable:
            raise Nonsense("compresses its answer, though asked not to")
        await _drain(stream, arriving.feed)
        for _ in arriving.feed(b"\n\n"):  # behind the last event too
            pass

    @contextlib.contextmanager
    def _in_our_words(self, arriving: Arriving) -> Iterator[None]:
        """Make a :class:`ProviderError` of whatever goes wrong on the way or on the other side."""
        vendor = self._account.vendor
        try:
            yield
        except ProviderError:
            raise
        except httpx2.TransportError as error:
            if arriving.finish is None:  # else all was said, and only the farewell is missing
                raise self._account.broken(error) from None
        except (Nonsense, codec.Invalid) as error:
            raise Failing(f"{vendor} {self._account.clean(error)}") from None
        except Exception as error:
            if error is arriving.unheard:
                raise
            raise Failing(f"{vendor} answered what can't be read ({type(error).__name__})") from None


class _Kept(httpx2.BaseTransport):
    """Keeps the request that an SDK sends, and answers nothing."""

    request: httpx2.Request | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.request = request
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=b"")


async def _drain(body: AsyncIterator[bytes] | httpx2.AsyncByteStream, feed: Callable[[bytes], Iterator[None]]) -> None:
    """Feed all of a body; others get their turn whenever ``feed`` yields.

    When that fails, the wait for what comes next is cancelled, so that the body's generators end from within. For their
    sake, too, nothing else in here can be cancelled.
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
            await trio.lowlevel.cancel_shielded_checkpoint()
    if failure is not None:
        raise failure


class _Enough(Exception):
    """More needn't be read."""


async def _refused(body: httpx2.AsyncByteStream) -> object:
    """What is said with a refusal, or the beginning: as JSON, if it is."""
    said = bytearray()

    def feed(chunk: bytes) -> Iterator[None]:
        said.extend(chunk[: MOST_REFUSED - len(said)])
        if len(said) == MOST_REFUSED:
            raise _Enough
        yield

    with contextlib.suppress(_Enough, httpx2.TransportError):
        await _drain(body, feed)
    try:
        return codec.parse(bytes(said))
    except codec.Invalid:
        return said.decode(errors="replace")
