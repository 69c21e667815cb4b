"""The client for HTTP requests of agents: pools of connections, redirects, and limits on what one caller has in flight.

It connects only through :class:`~.egress.Egress`, to the host that was judged, and takes nothing from the environment.
It sends what the request says: no cookies, no credentials, no URL that is parsed again.
"""

import importlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import trio
from attrs import define, field

from agentos.services.events import AgentExited
from agentos.threads import Limiter, run_in_thread
from agentos_sdk.errors import CallError, QuotaExceeded

from .cassette import Cassette, RecordedExchange
from .decompression import WINDOWS, Inflater, limit_accepted
from .destination import MAX_URL_LENGTH, Destination
from .egress import Egress
from .request import Headers, Hop, OutgoingRequest, Permit, Unreadable
from .secrets import Redactor
from .settings import trust

if TYPE_CHECKING:
    from .connections import Exchange, Pool

MAX_REQUESTS = 16  # of one caller at once; further ones wait
LARGE_BODY_BYTES = 1 << 20  # one caller's larger bodies are received one after the other
CHARGED_BYTES = 1 << 20  # of a response are charged at a time, and the rest at its end
MAX_DRAINED_BYTES = 16 << 10  # of a redirect's body: if it has more the connection is closed
SWEEP_SECONDS = 5.0
TURN_SECONDS = 0.001  # that one response may take at once, in chunks of a byte
REDIRECTS = frozenset({301, 302, 303, 307, 308})
ABOUT_BODY = frozenset({"content-type", "content-encoding", "content-language", "content-location"})
FOR_ANY_HOST = ABOUT_BODY | {"accept", "accept-language", "accept-encoding", "user-agent"}
"""The headers that are sent to another host than the one that they were written for."""


class Response:
    """A response without secrets, and its body, inflated as it is read. It comes from ``hop``.

    ``received`` is how many bytes of the body have been read, as they were sent.
    """

    def __init__(
        self,
        exchange: "Exchange | RecordedExchange",
        hop: Hop,
        large: Limiter,
        permit: Permit,
        redactor: Redactor,
    ) -> None:
        self._exchange, self._large, self._charge, self._charged = exchange, large, permit.charge, 0
        self._redactor, self._ended = redactor, False
        self.hop, self.received = hop, 0
        self._turn_ends = perf_counter() + TURN_SECONDS
        self.status = exchange.status
        self.headers = [(redactor.redact(name).lower(), redactor.redact(value)) for name, value in exchange.headers]
        coding = ", ".join(self.values("content-encoding")).strip().lower()
        self._inflater = Inflater(coding) if coding in WINDOWS else None
        self._hides_values = bool(redactor.values) and coding not in (*WINDOWS, "", "identity")
        if self._inflater is not None:
            gone = ("content-encoding", "content-length")
            self.headers = [(name, value) for name, value in self.headers if name not in gone]

    def values(self, name: str) -> list[str]:
        """The values of all headers of that name, in lower case."""
        return [value for each, value in self.headers if each == name]

    async def read_all(self, most: int) -> tuple[bytearray, bool]:
        """The body, or its first ``most`` bytes; and whether there are more."""
        body = bytearray()
        if await self._read_into(body, min(most, LARGE_BODY_BYTES)):
            return body, False
        async with self._large:
            complete = await self._read_into(body, most)
        del body[most:]
        return body, not complete

    async def _read_into(self, body: bytearray, most: int) -> bool:
        """Read until ``body`` has more than ``most`` bytes (or they were more before they were inflated to nothing)."""
        while len(body) <= most and self.received <= most:
            part = await self.read()
            if not part:
                return True
            body += part
        return False

    async def read(self) -> bytes:
        """The next bytes of the body, about 64 KiB at most; none at its end. Other tasks run now and then."""
        while not self._ended:
            part = await self._read()
            self._ended = not part
            if found := self._redactor.feed(part) if part else self._redactor.end():
                return found
        return b""

    def charge(self) -> None:
        """Charge what has been received since the last time. Raises ``QuotaExceeded``."""
        size, self._charged = self.received - self._charged, self.received
        if size:
            self._charge(0, size, True)

    async def _read(self) -> bytes:
        while True:
            if perf_counter() > self._turn_ends:
                await trio.lowlevel.checkpoint()
                self._turn_ends = perf_counter() + TURN_SECONDS
            if self._inflater is not None and (piece := self._inflater.take()):
                return piece
            part = await self._exchange.next_part()
            self.received += len(part)
            if self.received - self._charged >= CHARGED_BYTES:
                self.charge()
            if self._hides_values and part:
                raise Unreadable("its body has a content coding in which the kernel can't look for secrets")
            if self._inflater is None:
                return part
            if not part:
                self._inflater.check_end()
                return b""
            self._inflater.feed(part)


@define(eq=False)
class _Owner:
    """What the client keeps of one caller that has requests in flight or connections."""

    slots: Limiter = field(factory=lambda: Limiter(MAX_REQUESTS))
    large: Limiter = field(factory=lambda: Limiter(1))
    requests: int = 0
    pool: "Pool | None" = None

    def drop_pool(self) -> None:
        if self.pool is not None:
            self.pool.retire()
            self.pool = None


@define(eq=False)
class _InFlight:
    """A request in flight, which may be refused while it lasts."""

    permit: Permit
    destination: Destination
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    refusal: CallError | None = None

    def judge_again(self) -> None:
        self.refusal = self.refusal or self.permit.find_refusal(self.destination)
        if self.refusal is not None:
            self.scope.cancel()


@define(eq=False)
class Client:
    """One per kernel. A connection serves one caller, and only until rules change.

    With a ``cassette`` none is opened: it has the responses. ``authorities`` are trusted instead of the host's.
    """

    egress: Egress
    cassette: Cassette | None = None
    authorities: ssl.SSLContext | None = None
    _owners: dict[int, _Owner] = field(factory=dict)
    _in_flight: set[_InFlight] = field(factory=set)
    _loading: trio.Lock = field(factory=trio.Lock)
    _loaded: tuple[ModuleType, ssl.SSLContext] | None = None
    _has_pools: trio.Event = field(factory=trio.Event)

    @asynccontextmanager
    async def request(self, number: int, outgoing: OutgoingRequest, permit: Permit) -> AsyncIterator[Response]:
        """Send a request of the caller with that id, follow redirects, and receive the head of the response.

        The body is read inside the context. Raises ``Unavailable``, ``Timeout`` for a name that isn't resolved, and
        ``PermissionDenied`` if all addresses of a host are refused, or when rules change so that the request would be.
        """
        owner = self._owners.setdefault(number, _Owner())
        owner.requests += 1
        request = _InFlight(permit, outgoing.hop.destination)
        try:
            async with owner.slots:
                self._in_flight.add(request)
                with request.scope:
                    async with self._follow(number, owner, outgoing, request) as response:
                        yield response
            if request.refusal is not None:
                raise request.refusal
        finally:
            self._in_flight.discard(request)
            owner.requests -= 1
            self._forget_unused(number)

    async def serve(self) -> None:
        """Close connections that are not used, until cancelled; then all."""
        try:
            while True:
                await self._has_pools.wait()
                await trio.sleep(SWEEP_SECONDS)
                for number, owner in list(self._owners.items()):
                    if owner.pool is not None and owner.pool.is_idle:
                        self.forget(number)
                if not self._owners:
                    self._has_pools = trio.Event()
        finally:
            for owner in self._owners.values():
                owner.drop_pool()
            if self.cassette is not None:
                self.cassette.close()

    def end_life(self, event: AgentExited) -> None:
        """Close the connections of an agent whose life has ended; a subscriber."""
        self.forget(event.agent_id)

    def forget(self, number: int) -> None:
        """Close a caller's connections."""
        if number in self._owners:
            self._owners[number].drop_pool()
            self._forget_unused(number)

    def judge_again(self) -> None:
        """Rules have changed: no further request uses a present connection, and requests in flight may be refused."""
        for owner in self._owners.values():
            owner.drop_pool()
        for request in list(self._in_flight):
            request.judge_again()

    def _forget_unused(self, number: int) -> None:
        owner = self._owners.get(number)
        if owner is not None and not owner.requests and owner.pool is None:
            del self._owners[number]

    @asynccontextmanager
    async def _follow(
        self, number: int, owner: _Owner, outgoing: OutgoingRequest, request: _InFlight
    ) -> AsyncIterator[Response]:
        redirects, keeps_origin = 0, True
        while True:
            pool, hop = await self._find_pool(number, owner), outgoing.hop
            request.destination = hop.destination
            request.judge_again()  # rules may have changed while it waited for its turn, or for the end of a redirect
            judge = request.permit.judge_address(hop.destination)
            self.egress.judge_host(hop.destination.host, hop.destination.port, judge)  # also where none is connected to
            headers = outgoing.headers
            if keeps_origin:  # no other host has the caller's request sent with a secret
                headers = replace_headers(headers, request.permit.secret_headers(hop.destination))
            redactor = request.permit.redactor()  # a reload may have changed values since the request began
            if redactor.values:
                headers = limit_codings(headers)
            request.permit.charge(1, len(outgoing.body), False)
            async with pool.send(hop, headers, outgoing.body, judge) as exchange:
                response = Response(exchange, hop, owner.large, request.permit, redactor)
                following = find_redirect(response, outgoing, request.permit)
                if following is None or redirects == outgoing.max_redirects:
                    try:
                        yield response
                    finally:
                        with suppress(QuotaExceeded):  # what exceeds it has been received
                            response.charge()
                    return
                drained = 0
                while drained <= MAX_DRAINED_BYTES and (part := await exchange.next_part()):
                    drained += len(part)
                    await trio.lowlevel.checkpoint()  # a part may be a chunk of one byte
            keeps_origin = keeps_origin and following.hop.origin == hop.origin
            outgoing, redirects = following, redirects + 1

    async def _find_pool(self, number: int, owner: _Owner) -> "Pool | Cassette":
        if self.cassette is not None:
            return self.cassette
        connections, context = self._loaded or await self._load_once()
        if owner.pool is None or not owner.pool.is_usable:
            owner.drop_pool()
            owner.pool = connections.Pool(partial(self.egress.connect, number), context)
            self._has_pools.set()
        return owner.pool

    async def _load_once(self) -> tuple[ModuleType, ssl.SSLContext]:
        async with self._loading:
            if self._loaded is None:
                self._loaded = await run_in_thread(self._load)
            return self._loaded

    def _load(self) -> tuple[ModuleType, ssl.SSLContext]:
        """The module of connections and the certificates, in 0.1 s."""
        context, host = self.authorities, ssl.get_default_verify_paths()
        if context is None and host.cafile is None and host.capath is None:
            import certifi  # for a Python that was built without the paths of this host's certificates

            context = trust(certifi.where())
        return importlib.import_module("agentos.services.http.connections"), context or ssl.create_default_context()


def replace_headers(headers: Headers, others: Headers) -> Headers:
    """``headers`` with the others instead of those of the same name."""
    names = {name.lower() for name, _ in others}
    return [*(each for each in headers if each[0].lower() not in names), *others]


def limit_codings(headers: Headers) -> Headers:
    """``headers`` that accept only codings which are inflated here: in another one no secret could be found."""
    asked = [value for name, value in headers if name.lower() == "accept-encoding"]
    return replace_headers(headers, [("Accept-Encoding", limit_accepted(",".join(asked)))])


def find_redirect(response: Response, outgoing: OutgoingRequest, permit: Permit) -> OutgoingRequest | None:
    """The request that a redirect asks for; None if it is none or may not be followed."""
    locations = response.values("location")
    if response.status not in REDIRECTS or len(locations) != 1 or len(locations[0]) > MAX_URL_LENGTH:
        return None
    method = outgoing.hop.destination.method or "GET"
    becomes_get = (response.status == 303 and method != "HEAD") or (response.status < 303 and method == "POST")
    try:
        url = urljoin(outgoing.hop.url, locations[0])
    except ValueError:
        return None
    hop = permit.follow("GET" if becomes_get else method, url)
    if hop is None:
        return None
    headers: Headers = outgoing.headers
    if hop.origin != outgoing.hop.origin:
        headers = [(name, value) for name, value in headers if name.lower() in FOR_ANY_HOST]
    if becomes_get:
        headers = [(name, value) for name, value in headers if name.lower() not in ABOUT_BODY]
    return OutgoingRequest(hop, headers, b"" if becomes_get else outgoing.body, outgoing.max_redirects)
