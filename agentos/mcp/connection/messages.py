"""Messages of MCP servers: parses one line of JSON-RPC, bounds what is in it, and drops what no request waits for.

Servers also print what is no message: banners, lines of a log, in JSON or not. That is text for the agent's log. A
reply that can't be read fails the request that it answers.

A server chooses each byte of it. What reaches the SDK is small: it checks messages in the event loop.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from agentos.http.sse import BYTE_ORDER_MARK
from agentos.kernel.wire.request_body import parse_text, parse_values
from agentos.mcp.errors import MAX_QUOTED_CHARS, BadServer, quote_server
from agentos_sdk.encoding.characters import replace_half_escapes
from agentos_sdk.encoding.codec import Invalid
from agentos_sdk.encoding.nesting import is_nested_deeper

MAX_DEPTH: Final = 64
MAX_TOOLS: Final = 256  # of one page of tools/list
MAX_PAGE_BYTES: Final = 512 << 10  # of one page, as JSON
MAX_CROWDED_BYTES: Final = 1 << 20  # of a line that isn't mostly text: to parse it holds up the event loop for 20 ms
MAX_REQUEST_BYTES: Final = 64 << 10  # of a request of a server, and of any result that is neither of a tool nor a page
MAX_CONTENT_BYTES: Final = 256 << 10  # of a result, as JSON
MAX_CONTENTS: Final = 256  # parts of a result
UNREADABLE: Final = -32700  # JSON-RPC: parse error
OWN_KEYS: Final = "_agentos_"  # the begin of what this package adds to a result's _meta
TRUNCATED: Final = f"{OWN_KEYS}truncated"  # that it was cut
WANTED: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/cancelled",
        "notifications/subscriptions/acknowledged",
    }
)
"""Notifications that something here reacts to. All others are dropped before they cost more."""


class Parsed(Struct, frozen=True):
    """A message: a request of the server's with the id ``request``, or the end of its request ``withdrawn``.

    ``refusal`` is why the request isn't passed on.
    """

    message: Mapping[str, Any]
    request: str | int | None = None
    withdrawn: str | int | None = None
    refusal: str | None = None


class Envelope(Struct):
    """What is known of a message that isn't read."""

    id: str | int | None = None
    method: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_ENVELOPE: Final = msgspec.json.Decoder(Envelope)
_ID: Final = re.compile(rb'"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]{1,200}")\s*[,}]')


def parse_line(line: bytes, secrets: Iterable[bytes] = ()) -> Parsed | str | None:
    """One line as a message, cut to its limits; None for what is dropped, and text for what is no message.

    ``secrets`` are redacted, also where JSON escapes characters of theirs. Raises :class:`BadServer`. Blocks for a
    long line.
    """
    line = mend(redact(line, secrets)).removeprefix(BYTE_ORDER_MARK)
    if not line.strip():
        return None
    if not line.lstrip().startswith(b"{") or b'"jsonrpc"' not in line:
        return quote_line(line)
    check_depth(line)
    try:
        message: Any = parse_text(line) if len(line) > MAX_CROWDED_BYTES else parse_values(line)
    except Invalid as error:
        try:
            envelope = _ENVELOPE.decode(line)
        except msgspec.ValidationError:
            envelope = Envelope()
        except (msgspec.DecodeError, UnicodeDecodeError):
            number = find_id(line)
            return Parsed(_fail_reply(number, str(error))) if number is not None else quote_line(line)
        if envelope.id is None or envelope.method is not msgspec.UNSET:
            raise BadServer(f"it sent a message that can't be read: {error}") from None
        return Parsed(_fail_reply(envelope.id, str(error)))
    if secrets and b"\\" in line:
        escaped = [msgspec.json.encode(secret.decode())[1:-1] for secret in secrets]  # as the encoder writes them
        message = parse_values(redact(msgspec.json.encode(message), escaped))
    if not isinstance(message, dict) or not is_message(message):
        return quote_line(line)
    number = message.get("id")
    if "method" in message:
        return _sort_out(message, number, len(line))
    result = message.get("result")
    if isinstance(result, dict) and isinstance(meta := result.get("_meta"), dict):
        result["_meta"] = {key: value for key, value in meta.items() if not key.startswith(OWN_KEYS)}
    if isinstance(result, dict) and (isinstance(result.get("tools"), list) or isinstance(result.get("content"), list)):
        rest = {key: value for key, value in result.items() if key not in ("tools", "content", "structuredContent")}
        if len(line) > MAX_REQUEST_BYTES and len(msgspec.json.encode(rest)) > MAX_REQUEST_BYTES:
            size = f"more than {MAX_REQUEST_BYTES >> 10} KiB besides its content"
            return Parsed(_fail_reply(number, f"it has {size}")) if number is not None else None
        message["result"] = cut_result(result)
    elif len(line) > MAX_REQUEST_BYTES:
        raise BadServer(f"it answered with more than {MAX_REQUEST_BYTES >> 10} KiB where no tool was called")
    return Parsed(message)


def check_depth(line: bytes) -> None:
    """Raise :class:`BadServer` for JSON that is nested too deeply to be parsed."""
    if is_nested_deeper(line, MAX_DEPTH):
        raise BadServer(f"it sent JSON that is nested deeper than {MAX_DEPTH}")


def is_message(found: Mapping[str, Any]) -> bool:
    """Whether an object is a message of JSON-RPC 2.0; a line of a log may have some of its fields."""
    number = found.get("id")
    if found.get("jsonrpc") != "2.0" or isinstance(number, bool) or not isinstance(number, str | int | None):
        return False
    return isinstance(found.get("method"), str) or (number is not None and ("result" in found or "error" in found))


def fail_message(message: Mapping[str, Any], why: str) -> Mapping[str, Any] | None:
    """An error in place of a reply that isn't one of the protocol's; None for another message."""
    number = message.get("id")
    return None if number is None or "method" in message else _fail_reply(number, why)


def find_id(line: bytes) -> str | int | None:
    """The id of a reply that isn't JSON, as far as it can be told: before the result, or at the end."""
    if b'"method"' in line or (b'"result"' not in line and b'"error"' not in line):
        return None
    found = [*_ID.finditer(line)]
    outer = [each for each in found if each.start() < min(filter(lambda at: at >= 0, _starts(line)))] or found[-1:]
    number: str | int | None = msgspec.json.decode(outer[0][1]) if outer else None
    return number


def _starts(line: bytes) -> tuple[int, int]:
    return line.find(b'"result"'), line.find(b'"error"')


def mend(line: bytes) -> bytes:
    """The line with U+FFFD for each byte and each half of a surrogate pair that is no text."""
    try:
        line.decode()
    except UnicodeDecodeError:
        line = line.decode(errors="replace").encode()
    return replace_half_escapes(line)


def quote_line(line: bytes) -> str:
    return quote_server(line[: 4 * MAX_QUOTED_CHARS].decode(errors="replace"))


def redact(data: bytes, secrets: Iterable[bytes]) -> bytes:
    for secret in secrets:
        data = data.replace(secret, b"[redacted]")
    return data


def _fail_reply(number: str | int, why: str) -> dict[str, Any]:
    """An error in place of a reply that isn't passed on."""
    return {"jsonrpc": "2.0", "id": number, "error": {"code": UNREADABLE, "message": f"the answer isn't read: {why}"}}


def _sort_out(message: dict[str, Any], number: str | int | None, size: int) -> Parsed | None:
    if number is not None:
        refusal = f"it has more than {MAX_REQUEST_BYTES >> 10} KiB" if size > MAX_REQUEST_BYTES else None
        return Parsed(message, request=number, refusal=refusal)
    if message["method"] not in WANTED or size > MAX_REQUEST_BYTES:
        return None
    given = message.get("params")
    cancelled = given.get("requestId") if isinstance(given, dict) else None
    return Parsed(message, withdrawn=cancelled if isinstance(cancelled, str | int) else None)


def cut_result(result: dict[str, Any]) -> dict[str, Any]:
    """A result within the limits. Schemas of outputs are dropped: to check one may take for ever."""
    if isinstance(tools := result.get("tools"), list):
        kept = [
            {key: value for key, value in tool.items() if key != "outputSchema"} if isinstance(tool, dict) else tool
            for tool in tools[:MAX_TOOLS]
        ]
        if len(msgspec.json.encode(kept)) > MAX_PAGE_BYTES:
            return {"tools": [], "_meta": {TRUNCATED: True}}
        return {**result, "tools": kept}
    if not isinstance(result.get("content"), list):
        return result
    room = MAX_CONTENT_BYTES
    cut = {**result, "content": []}
    if "structuredContent" in result:
        size = len(msgspec.json.encode(result["structuredContent"]))
        if size > room:
            del cut["structuredContent"]
            cut["_meta"] = {TRUNCATED: True}
        else:
            room -= size
    for part in result["content"][:MAX_CONTENTS]:
        part, size = _cut_part(part, room)
        if part is None:
            break
        cut["content"].append(part)
        room -= size
    if cut["content"] != result["content"]:
        cut["_meta"] = {TRUNCATED: True}
    return cut


def _cut_part(part: Any, room: int) -> tuple[Any, int]:
    """A part of a result in at most ``room`` bytes, and its size; None if it can't be cut to that."""
    size = len(msgspec.json.encode(part))
    if size <= room:
        return part, size
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(text := part.get("text"), str):
        return None, 0
    length = max(0, room - 64)
    while length and len(msgspec.json.encode(text[:length])) > room - 32:
        length = length * 3 // 4
    short = {"type": "text", "text": text[:length]}
    return (short, len(msgspec.json.encode(short))) if length else (None, 0)
