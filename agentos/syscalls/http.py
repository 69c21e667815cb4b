"""Handler of HTTP: parses a request, checks permission, sends it and builds the reply."""

import codecs
import re
from binascii import b2a_base64
from collections.abc import Collection, Mapping
from functools import partial
from time import perf_counter

import msgspec
import trio
from attrs import frozen

from agentos import __version__
from agentos.access.callers import Callers
from agentos.access.http_permit import make_permit
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.kernel.wire.request_body import MAX_ESCAPES, MAX_INLINE_BYTES
from agentos.permissions.approvals.text import describe_http
from agentos.services.http.client import Client, Response
from agentos.services.http.decompression import ACCEPTED
from agentos.services.http.destination import METHOD, Destination, parse_url
from agentos.services.http.request import CONNECTION_HEADERS, Headers, Hop, OutgoingRequest
from agentos_sdk.calls.http import HTTP, HTTPPart
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import quote
from agentos_sdk.errors import BadRequest, CallError, Timeout
from agentos_sdk.opcodes import Op

from .json_text import base64_pieces, decode_base64, json_pieces

MAX_HEADERS = 100  # in a request
MAX_HEADER_BYTES = 32 << 10  # all names and values of a request
READ_ONLY = frozenset({"GET", "HEAD", "OPTIONS"})  # no intent is recorded of these
NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
VALUE = re.compile(r"([!-~]([ \t!-~]*[!-~])?)?")
DEFAULTS = {"user-agent": f"agentos/{__version__}", "accept": "*/*", "accept-encoding": ACCEPTED}


@frozen(eq=False)
class Requests:
    """Answers HTTP. No reply has more than ``most`` bytes, so a body has at most half as many."""

    client: Client
    callers: Callers
    most: int

    async def prepare(self, caller: Caller, request: HTTP) -> Prepared:
        """Send a request and receive the response. Nothing is resolved before the host was judged."""
        hop, headers = parse_hop(request.url, request.method), check_headers(request.headers)
        self._check_not_secret(caller, hop.destination, headers)
        body, kind = await self._read_body(caller, request)
        defaults = {**DEFAULTS, **kind}
        given = {name.lower() for name, _ in headers}
        headers = [*headers, *((name, value) for name, value in defaults.items() if name not in given)]
        outgoing = OutgoingRequest(hop, headers, body, request.max_redirects)

        async def act(call: Call) -> bytes:
            if request.stream:
                call.require_stream("stream")
            began, permit = perf_counter(), make_permit(self.callers, caller, hop.destination)
            with trio.move_on_after(request.timeout):
                await caller.allowance.wait_for_reply_room()  # a caller that doesn't read its replies gets no more
                async with self.client.request(caller.id, outgoing, permit) as response:
                    call.remark = describe(response, hop)
                    try:
                        if request.stream:
                            await send_parts(call, response)
                        return await self._encode_reply(response, request.stream, began)
                    finally:
                        call.remark = describe(response, hop)
            raise Timeout(f"{hop.destination.host} hasn't answered within the {request.timeout:g} s that timeout names")

        rights, to = (Right("http", hop.destination),), hop.destination
        error: CallError | None = None
        try:
            self.client.egress.judge_host(to.host, to.port, make_permit(self.callers, caller).judge_address(to))
        except CallError as refusal:
            error = refusal
        query = hop.target.partition("?")[2]
        secrets = self.callers.secrets.names_for(self._secrets_of(caller), to)
        shown = partial(describe_http, to, list(request.headers.items()), body, query, secrets)
        return Prepared(rights, act, announce=to.method not in READ_ONLY, error=error, shown=shown)

    def _check_not_secret(self, caller: Caller, destination: Destination, headers: Headers) -> None:
        """Raise ``BadRequest`` for a header that the kernel sets there by a secret of the caller's."""
        held = self._secrets_of(caller)
        for name, _ in headers if held else ():
            if (secret := self.callers.secrets.find_setter(held, destination, name)) is not None:
                raise BadRequest(f"headers.{name}: the kernel sets it here, by the secret {secret}: leave it out")

    def _secrets_of(self, caller: Caller) -> Collection[str]:
        return self.callers.authorizer.permissions_of(caller.id).secrets()

    async def _read_body(self, caller: Caller, request: HTTP) -> tuple[bytes, Mapping[str, str]]:
        """The body as it is sent, and the header with its type if it is JSON."""
        raw = request.body if isinstance(request.body, msgspec.Raw) else codec.encode(request.body)
        if len(raw) <= MAX_INLINE_BYTES:
            return decode_body(bytes(raw), request.encoding)
        return await caller.table.reader.run(caller, decode_body, bytes(raw), request.encoding)

    async def _encode_reply(self, response: Response, streamed: bool, began: float) -> bytes:
        body, truncated = (b"", False) if streamed else await response.read_all(self.most // 2)
        encoding, pieces = await self._encode_body(body, truncated)
        return b'{"success":true,"status_code":%d,"headers":%s,"body":"%s","encoding":"%s","truncated":%s%s}' % (
            response.status,
            codec.encode(join_headers(response.headers)),
            b"".join(pieces),
            encoding,
            codec.encode(truncated),
            b',"url":%s,"elapsed_ms":%.3f' % (codec.encode(response.hop.url), (perf_counter() - began) * 1000),
        )

    async def _encode_body(self, body: bytes | bytearray, truncated: bool) -> tuple[bytes, list[bytes]]:
        """A body as text if it is UTF-8, and not too long as JSON; otherwise as base64."""
        most = self.most * 3 // 4  # headers take the rest
        try:
            pieces = await json_pieces(body, "strict", whole=not truncated, most=most)
            if sum(map(len, pieces)) <= most:
                return b"utf-8", pieces
        except UnicodeDecodeError:
            pass
        return b"base64", await base64_pieces(body)

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(
                Op.HTTP,
                HTTP,
                prepare=self.prepare,
                limit=self.most,
                verbatim=("body",),
                audit="intent",
                background=self.callers.background,
            ),
        )


def parse_hop(url: str, method: str) -> Hop:
    """Parse a URL; raises ``BadRequest``, without the URL, which may hold a password."""
    if not METHOD.fullmatch(method) or method in ("CONNECT", "TRACE"):
        raise BadRequest(f"method: expected a word in upper case such as GET or POST, and not {quote(method)}")
    try:
        return Hop(*parse_url(url, method))
    except ValueError as error:
        raise BadRequest(f"url: {error}") from None


def check_headers(given: Mapping[str, str]) -> Headers:
    """The headers of a request; raises ``BadRequest``."""
    if len(given) > MAX_HEADERS or sum(len(name) + len(value) for name, value in given.items()) > MAX_HEADER_BYTES:
        raise BadRequest(f"headers: expected at most {MAX_HEADERS}, of {MAX_HEADER_BYTES >> 10} KiB in all")
    seen = set[str]()
    for name, value in given.items():
        if not NAME.fullmatch(name):
            raise BadRequest(f"headers: expected a header's name, got {quote(name)}")
        if name.lower() in CONNECTION_HEADERS:
            raise BadRequest(f"headers.{name}: the kernel sets this header itself: leave it out")
        if not VALUE.fullmatch(value):
            raise BadRequest(f"headers.{name}: expected printable ASCII, without spaces at either end")
        if name.lower() in seen:
            raise BadRequest(f"headers.{name}: given twice: join the values with a comma")
        seen.add(name.lower())
    return list(given.items())


def decode_body(raw: bytes, encoding: str) -> tuple[bytes, Mapping[str, str]]:
    """The bytes of a body in JSON, and the header with its type if it isn't text."""
    if raw == b"null":
        return b"", {}
    if not raw.startswith(b'"'):
        if encoding != "utf-8":
            raise BadRequest("body: expected base64 as text, because of encoding")
        return raw, {"content-type": "application/json"}
    if raw.count(b"\\") > MAX_ESCAPES:
        raise BadRequest(f"body: more than {MAX_ESCAPES} escapes in it: send it in base64")
    try:
        text = msgspec.json.decode(raw, type=str)
        return (text.encode() if encoding == "utf-8" else decode_base64(text, "body")), {}
    except msgspec.DecodeError:
        raise BadRequest("body: half a surrogate pair is no text") from None


def join_headers(headers: Headers) -> Mapping[str, str]:
    """Headers by name. Values of one name are joined by a comma, but cookies, which may have commas, by line breaks."""
    joined: dict[str, str] = {}
    for name, value in headers:
        between = "\n" if name == "set-cookie" else ", "
        joined[name] = f"{joined[name]}{between}{value}" if name in joined else value
    return joined


async def send_parts(call: Call, response: Response) -> None:
    """Send the head and then the body in CHUNKs. What isn't UTF-8 is sent in base64, and all that follows it."""
    head = HTTPPart(status_code=response.status, headers=join_headers(response.headers), url=response.hop.url)
    await call.send(codec.encode(head))
    decoder: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder("utf-8")()
    at_end = False
    while not at_end:
        data = await response.read()
        at_end = not data
        if decoder is not None:
            held = decoder.getstate()[0]
            try:
                text = decoder.decode(data, final=at_end)
                if text:
                    await call.send(codec.encode(HTTPPart(body=codec.Text(text))))
                continue
            except UnicodeDecodeError:
                data, decoder = held + data, None
        if data:
            text = b2a_base64(data, newline=False).decode()
            await call.send(codec.encode(HTTPPart(body=codec.Text(text), encoding="base64")))


def describe(response: Response, first: Hop) -> str:
    """A response for the audit log: ``200, 5120 bytes``; where it came from, without a query, if not from ``first``."""
    moved = f", from {response.hop.destination}" if response.hop.url != first.url else ""
    return f"{response.status}, {response.received} bytes{moved}"
