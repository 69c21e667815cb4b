"""Outgoing HTTP requests as values: where one goes, what is sent, and what the rules of its caller say about it."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from agentos_sdk.errors import CallError

from .destination import SCHEME_PORTS, Destination
from .egress import JudgeAddress
from .secrets import Redactor

MAX_HEAD_BYTES = 64 << 10  # bytes of a response's headers, with those of all interim responses
MAX_HEADERS = 200  # in a response
CONNECTION_HEADERS = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"proxy-authenticate", "proxy-authorization", "proxy-connection"}
)
"""Headers of one connection or of a body's length (RFC 9110, 7.6.1): neither agents nor secrets set them."""

Headers = Sequence[tuple[str, str]]


class Unreadable(Exception):
    """The response breaks HTTP or a limit; the text says what is wrong with it."""


class Hop(Struct, frozen=True):
    """One request on the way through redirects. ``target`` is the path and the query as they are sent."""

    destination: Destination
    target: str

    @property
    def host(self) -> str:
        """The value of ``Host``: without the scheme's port."""
        to = self.destination
        return to.authority.removesuffix(f":{to.port}") if to.port == SCHEME_PORTS[to.scheme] else to.authority

    @property
    def url(self) -> str:
        return f"{self.destination.scheme}://{self.host}{self.target}"

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.destination.scheme, self.destination.host, self.destination.port


class OutgoingRequest(Struct, frozen=True):
    """A request: its first hop, the caller's headers, its body, and how many redirects are followed at most."""

    hop: Hop
    headers: Headers = ()
    body: bytes = b""
    max_redirects: int = 0


class Permit(Struct, frozen=True):
    """What the rules of a caller say about its request, asked anew for each hop.

    ``judge_address`` makes the judge of the addresses of a destination that is allowed. ``follow`` makes the next
    hop from a method and the URL of a redirect: None if that isn't allowed without asking. ``find_refusal`` is why
    a request that was allowed isn't allowed any more. ``secret_headers`` are what the kernel adds at a destination,
    and ``redactor`` makes what removes the values of secrets, as they are now, from one response. ``charge`` counts
    requests and bytes of bodies; it raises ``QuotaExceeded`` if the caller may have no more, and counts them even
    then if they were used already.
    """

    judge_address: Callable[[Destination], JudgeAddress]
    follow: Callable[[str, str], Hop | None]
    find_refusal: Callable[[Destination], CallError | None]
    secret_headers: Callable[[Destination], Headers] = lambda destination: ()
    redactor: Callable[[], Redactor] = lambda: Redactor(())
    charge: Callable[[int, int, bool], None] = lambda requests, size, used: None
