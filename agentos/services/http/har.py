"""Reads HTTP Archives (HAR 1.2), as browsers' developer tools and mitmproxy write them: requests with their responses.

::

   log.entries[] .request   method, url, postData {mimeType, text, encoding, params [{name, value}]}
                 .response  status, headers [{name, value}], content {size, text, encoding}

Contents are decoded there: ``text`` is what the body was without its content coding, or that in base64.
"""

# A file may come from anywhere, so it is bounded before it is parsed, and a mistake names its entry. It often holds a
# person's session: a request's headers aren't kept, of a response no cookie is, and the entries are named that have
# credentials. What no agent can ask for (WebSockets, data: URLs, users in a URL) is left out.

import base64
import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlencode

import msgspec
from attrs import define, frozen
from msgspec import Struct

from agentos.services.files.foreign_files import read_regular
from agentos.structs import learn
from agentos_sdk.encoding.nesting import count_containers, is_nested_deeper

from .destination import parse_url
from .request import CONNECTION_HEADERS, MAX_HEAD_BYTES, MAX_HEADERS, Headers, Hop

MAX_FILE_BYTES = 64 << 20
MAX_DEPTH = 32  # levels of nested arrays and objects
MAX_CONTAINERS = 1_000_000  # arrays and objects; some 60 an entry
MAX_ENTRIES = 10_000
CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization", "set-cookie"})
NOT_KEPT = (CONNECTION_HEADERS | {"content-encoding", "set-cookie"}) - {"content-length"}
NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
BODILESS = frozenset({204, 304})


class BadHar(ValueError):
    """The file can't be used; the text names it, the entry and the field."""


class _Pair(Struct):
    name: str
    value: str | None = None


class _PostData(Struct, rename="camel"):
    mime_type: str | None = None
    text: str | None = None
    encoding: str | None = None
    params: list[_Pair] | None = None


class _Request(Struct, rename="camel"):
    method: str
    url: str
    headers: list[_Pair] = []
    post_data: _PostData | None = None


class _Content(Struct):
    size: int | float | None = None
    text: str | None = None
    encoding: str | None = None


class _Response(Struct):
    status: int
    headers: list[_Pair] = []
    content: _Content | None = None


class _Record(Struct):
    request: _Request
    response: _Response


class _Log(Struct):
    entries: list[msgspec.Raw]


class _Har(Struct):
    log: _Log


learn(_Har, _Record)


@frozen(eq=False)
class RecordedResponse:
    """A response as it is given to an agent. ``missing`` says why it can't be."""

    status: int
    headers: Headers
    body: bytes
    missing: str | None


@define(eq=False)
class Entry:
    """A request with its response; ``number`` is its place in the file, from 1. ``body`` is None if it isn't there."""

    number: int
    hop: Hop
    body: bytes | None
    response: RecordedResponse
    used: bool = False


@frozen
class Archive:
    """What an agent can ask for; and the numbers of the entries that none can, and of those that have credentials."""

    entries: list[Entry]
    left_out: Sequence[int]
    credentials: Sequence[int]


def read_har(path: Path) -> Archive:
    """The entries of a file. Raises :class:`BadHar`. Blocks."""
    entries, left_out, credentials = list[Entry](), list[int](), list[int]()
    for number, record in enumerate(_read_records(path), 1):
        request, response = record.request, record.response
        if not CREDENTIALS.isdisjoint(pair.name.lower() for pair in (*request.headers, *response.headers)):
            credentials.append(number)
        try:
            hop = Hop(*parse_url(request.url, request.method))
        except ValueError:
            left_out.append(number)
            continue
        try:
            entries.append(Entry(number, hop, _read_body(request.post_data), _read_response(response, request.method)))
        except ValueError as error:
            raise BadHar(f"{path}: entry {number}: {error}") from None
    return Archive(entries, left_out, credentials)


def _read_records(path: Path) -> Iterator[_Record]:
    try:
        data = read_regular(path, MAX_FILE_BYTES + 1).removeprefix(b"\xef\xbb\xbf")  # a mark that HAR allows
    except OSError as error:
        raise BadHar(f"{path} can't be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise BadHar(f"{path}: longer than {MAX_FILE_BYTES >> 20} MiB")
    if is_nested_deeper(data, MAX_DEPTH):
        raise BadHar(f"{path}: nested deeper than {MAX_DEPTH} levels")
    if count_containers(data, MAX_CONTAINERS) > MAX_CONTAINERS:
        raise BadHar(f"{path}: more than {MAX_CONTAINERS:,} arrays and objects")
    try:
        found = msgspec.json.decode(data, type=_Har).log.entries
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadHar(f"{path}: no HAR: {error}") from None
    if len(found) > MAX_ENTRIES:
        raise BadHar(f"{path}: log.entries: expected at most {MAX_ENTRIES:,}, got {len(found):,}")
    for number, entry in enumerate(found, 1):
        try:
            yield msgspec.json.decode(entry, type=_Record)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadHar(f"{path}: entry {number}: {error}") from None


def _read_body(data: _PostData | None) -> bytes | None:
    if data is None or (data.text is None and not data.params):
        return b""
    if data.text is not None:
        return _decode(data.text, data.encoding, "request.postData")
    if (data.mime_type or "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return None
    return urlencode([(pair.name, pair.value or "") for pair in data.params or ()]).encode()


def _read_response(response: _Response, method: str) -> RecordedResponse:
    if response.status > 599:
        raise ValueError(f"response.status: expected at most 599, got {response.status}")
    content = response.content or _Content()
    has_body = method != "HEAD" and response.status not in BODILESS
    missing = None
    if response.status < 200:  # 0: it was cancelled, or blocked
        missing = "it got no response"
    elif has_body and content.text is None and (content.size or 0) > 0:
        missing = "its body isn't in the file: save it with contents"
    text, size = content.text or "", content.size
    body = _decode(text, content.encoding, "response.content") if has_body else b""
    if has_body and not content.encoding and len(body) != size and len(text) == size:
        with contextlib.suppress(UnicodeEncodeError):
            body = text.encode("latin-1")  # each byte was read as a character: it wasn't UTF-8, or didn't say so
    return RecordedResponse(response.status, [*_read_headers(response.headers, has_body)], body, missing)


def _read_headers(pairs: Sequence[_Pair], has_body: bool) -> Iterator[tuple[str, str]]:
    """The headers that hold for the body as it is now. Browsers join values of one name by line breaks."""
    found = [(pair.name, value) for pair in pairs for value in (pair.value or "").split("\n")]
    if len(found) > MAX_HEADERS or sum(len(name) + len(value) for name, value in found) > MAX_HEAD_BYTES:
        raise ValueError(f"response.headers: expected at most {MAX_HEADERS}, of {MAX_HEAD_BYTES >> 10} KiB in all")
    for name, value in found:
        if name.startswith(":"):  # of HTTP/2, in some files
            continue
        if not NAME.fullmatch(name) or CONTROL.search(value):
            raise ValueError(f"response.headers: {name!r:.80}: no header's name, or control characters in its value")
        if name.lower() not in NOT_KEPT and not (has_body and name.lower() == "content-length"):
            yield name, value


def _decode(text: str, encoding: str | None, where: str) -> bytes:
    if not encoding:
        return text.encode()
    if encoding != "base64":
        raise ValueError(f"{where}.encoding: expected base64, got {encoding!r:.80}")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"{where}.text: no base64: {error}") from None
