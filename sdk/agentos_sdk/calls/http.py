"""HTTP: send a request to a server that the caller's rules allow."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from attrs import field

from agentos_sdk.encoding.codec import Rule, Seconds, Text
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

from .host import Encoding
from .request import Request, RequestId, SuccessfulReply

MAX_TIMEOUT_SECONDS = 3600
MAX_REDIRECTS = 20

Patience: TypeAlias = Annotated[
    Seconds, Rule(lambda seconds: 0 < seconds <= MAX_TIMEOUT_SECONDS, f"above 0, at most {MAX_TIMEOUT_SECONDS} seconds")
]
Redirects: TypeAlias = Annotated[
    int, Rule(lambda number: 0 <= number <= MAX_REDIRECTS, f"a whole number from 0 to {MAX_REDIRECTS}")
]


@record
class HTTPResponse(SuccessfulReply):
    """A server's response, of any status. ``url`` is where it comes from, after redirects.

    ``headers`` are by name in lower case; of several with one name the values are joined by ``, ``, and those of
    ``set-cookie`` by line breaks. ``body`` is text, or base64 if ``encoding`` says so; ``truncated``: it is the
    beginning of a longer one.
    """

    status_code: int
    headers: Mapping[str, str]
    body: Text
    encoding: Encoding
    truncated: bool
    url: str
    elapsed_ms: float


@record
class HTTPPart:
    """A CHUNK of a streamed response: the first one has all but a body, the others a part of the body."""

    status_code: int | None = None
    headers: Mapping[str, str] | None = None
    url: str | None = None
    body: Text = Text("")
    encoding: Encoding = "utf-8"


@record
class HTTP(Request[HTTPResponse]):
    """Send an HTTP request, and wait for the response at most ``timeout`` seconds in all.

    ``body`` is text, bytes as base64 with that ``encoding``, or any other JSON value, which is sent as JSON. At most
    ``max_redirects`` redirects are followed, and only where the next request is allowed without asking: otherwise the
    redirect itself is the response. With ``stream`` the response comes in CHUNKs, and the reply has no body.
    """

    op = Op.HTTP
    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(factory=dict)
    body: object = None
    encoding: Encoding = "utf-8"
    timeout: Patience = Seconds(30.0)
    max_redirects: Redirects = 5
    stream: bool = False
    async_: bool = False
    request_id: RequestId = None
