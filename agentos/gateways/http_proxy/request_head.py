"""Head of a request to the proxy: parsed by h11, after what h11 tolerates but servers read differently is refused.

Refused: lines that end in a bare LF or contain a bare CR, folded lines, Content-Length more than once or together with
Transfer-Encoding, and a body after CONNECT. So both this proxy and any server see the same end of each request.
"""

import re
from collections.abc import Sequence

import h11
from msgspec import Struct

from agentos.services.http.request import CONNECTION_HEADERS

MAX_HEAD_BYTES = 32 << 10
MAX_HEADERS = 100
BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n)")
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:", re.IGNORECASE)
DECIMAL = re.compile(rb"[0-9]{1,18}")
HOP_BY_HOP = frozenset(name.encode() for name in CONNECTION_HEADERS)  # the proxy writes them itself

Headers = Sequence[tuple[bytes, bytes]]


class BadHead(ValueError):
    """The head isn't one that every server would read in the same way."""


class RequestHead(Struct, frozen=True):
    """``target`` as it was sent. ``headers``, with names as sent, are those to be passed on.

    ``length`` is the number of bytes of the body; None: it comes in chunks. ``host`` is the value of the header.
    """

    method: str
    target: str
    headers: Headers
    length: int | None
    host: str
    keep_alive: bool
    expects_continue: bool


def parse_head(head: bytes) -> RequestHead:
    """Parse a head, from the first byte to the empty line. Raises :class:`BadHead`."""
    check_lines(head)
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    connection.receive_data(head)
    try:
        request = connection.next_event()
    except h11.RemoteProtocolError as error:
        raise BadHead(str(error).partition(":")[0]) from None  # after it stands what was sent
    if not isinstance(request, h11.Request):
        raise BadHead("the head has no end")
    if len(request.headers) > MAX_HEADERS:
        raise BadHead(f"more than {MAX_HEADERS} headers")
    values = dict(request.headers)  # of those that may occur only once
    length = find_length(values)
    if length is None and request.http_version != b"1.1":
        raise BadHead("Transfer-Encoding, which HTTP/1.0 doesn't have")
    if request.method == b"CONNECT" and length != 0:
        raise BadHead("CONNECT has no body")
    if b"websocket" in values.get(b"upgrade", b"").lower():
        raise BadHead("WebSockets pass only through a tunnel: use wss://, or another port than 80")
    options = [
        option.strip().lower()
        for name, value in request.headers
        if name in (b"connection", b"proxy-connection")
        for option in value.split(b",")
    ]
    passed_on = [
        (raw, value)
        for (raw, value), (name, _) in zip(request.headers.raw_items(), request.headers, strict=True)
        if name not in HOP_BY_HOP and name not in options
    ]
    return RequestHead(
        request.method.decode("ascii"),
        request.target.decode("ascii"),
        passed_on,
        length,
        values.get(b"host", b"").decode("latin-1"),
        keep_alive=request.http_version == b"1.1" and b"close" not in options,
        expects_continue=values.get(b"expect", b"").lower() == b"100-continue",
    )


def check_lines(head: bytes) -> None:
    """Raise :class:`BadHead` for lines that h11 accepts but other servers read differently."""
    if not head.endswith(b"\r\n\r\n") or BARE_LINE_END.search(head):
        raise BadHead("a line doesn't end in CR LF")
    if b"\r\n " in head or b"\r\n\t" in head:
        raise BadHead("a header continues on the next line")
    if len(CONTENT_LENGTH.findall(head)) > 1:
        raise BadHead("two Content-Length headers")


def find_length(values: dict[bytes, bytes]) -> int | None:
    """The bytes of the body; None if it comes in chunks."""
    length, coding = values.get(b"content-length"), values.get(b"transfer-encoding")
    if length is not None and coding is not None:
        raise BadHead("both Content-Length and Transfer-Encoding")
    if coding is not None:
        return None  # h11 knows no other coding than chunked
    if length is not None and not DECIMAL.fullmatch(length):
        raise BadHead("Content-Length is no decimal number")
    return int(length or 0)
