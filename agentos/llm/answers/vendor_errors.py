"""What an error of a vendor says: its message and its status, in whichever shape a server sends it. No I/O.

Servers that speak one protocol have errors of many shapes, also in the body of a response with status 200. An error
that names no status and no known kind counts as final: asking again would give the same.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

ANSWERS: Final = ("choices", "candidates", "delta", "content", "content_block", "usage", "usageMetadata", "data")
"""Fields of an answer: with one of them only ``error`` makes an object an error."""

MESSAGES: Final = (
    *("message", "detail", "msg", "error_message", "error_msg", "status_msg", "error_description", "description"),
    *("error", "errors", "title", "reason", "type", "code", "status"),
)
STATUSES: Final = ("status", "status_code", "statusCode", "http_status", "http_code", "code", "error_code")
KINDS: Final = ("code", "type", "status", "error", "name", "reason")
STATUS_OF_KIND: Final[Sequence[tuple[str, int]]] = (
    ("insufficient_?quota|billing|insufficient_?(balance|credit|funds)|payment", 402),
    ("api_?key|authenticat|unauthori[sz]ed", 401),
    ("permission|forbidden|access_?denied", 403),
    ("not_?found|does_?not_?exist", 404),
    ("too_?large", 413),
    ("rate_?limit|resource_?exhausted|throttl|too_?many_?requests", 429),
    ("timeout|timed_?out|deadline", 504),
    ("overloaded|capacity", 529),
    ("unavailable|bad_?gateway", 503),
    ("server_?error|internal|api_error", 500),
    ("invalid|bad_?request|context_?length|unsupported|policy|precondition|validation|failed$|exceeded", 400),
)
PASSING: Final = re.compile(
    r"overload|at capacity|temporar|try again|time(d\s?|-?)out|unavailable|internal (server )?error|rate limit"
    r"|too many requests|busy",
    re.IGNORECASE,
)
MARKUP: Final = re.compile(r"(?is)<(script|style|svg)\b.*?(</\1\s*>|\Z)|<!--.*?(-->|\Z)|<[^>]*(>|\Z)")


def find_error(body: Mapping[str, Any]) -> object:
    """The error that an object of a response is or holds; None if it holds none."""
    if found := body.get("error"):
        return found if isinstance(found, str | Mapping | list) else body
    if any(body.get(name) is not None for name in ANSWERS):
        return None
    if body.get("errors"):
        return body["errors"]
    base = body.get("base_resp")
    if isinstance(base, Mapping) and base.get("status_code"):
        return base
    if "error" in (body.get("object"), body.get("type")) or body.get("success") is False:
        return body
    message = body.get("detail") or body.get("message") or body.get("msg")
    is_told = isinstance(message, str) or body.get("detail")
    return body if (is_told and body.get("type") in (None, "error")) or (message and status_of(body)) else None


def message_of(error: object) -> str:
    """The text of an error for people: the first that it has under a usual name, without the markup of a page.

    An error for several fields has the text of each, with the field's place before it.
    """
    for text in _messages(error, 0):
        return text
    return ""


def _messages(error: object, depth: int) -> Iterator[str]:
    if isinstance(error, str):
        if text := plain_text(error):
            yield text
    elif isinstance(error, Mapping) and depth < 4:
        upstream = error.get("metadata")
        raw = upstream.get("raw") if isinstance(upstream, Mapping) else None  # OpenRouter: what the vendor behind said
        field = error.get("loc")  # FastAPI and Mistral: the keys that lead to the field that is wrong
        place = ".".join(map(str, field[:16])) if isinstance(field, list) else ""
        for name in MESSAGES:
            for text in _messages(error.get(name), depth + 1):
                yield ": ".join(filter(None, (place, text, raw if isinstance(raw, str) else "")))
                return
    elif isinstance(error, list) and depth < 4:
        if texts := [text for each in error[:4] for text in _messages(each, depth + 1)]:
            yield "; ".join(dict.fromkeys(texts))
    elif isinstance(error, int) and not isinstance(error, bool):
        yield str(error)


def status_of(error: object) -> int | None:
    """The HTTP status that an error names, by number or by its kind; None if it names none."""
    if isinstance(error, list) and error:
        return status_of(error[0])
    if not isinstance(error, Mapping):
        return None
    for name in STATUSES:
        number = str(error.get(name))
        if re.fullmatch("[45][0-9][0-9]", number):
            return int(number)
    for name in KINDS:
        if (status := _status_of_kind(error.get(name))) is not None:
            return status
    nested = error.get("error")
    return status_of(nested) if isinstance(nested, Mapping) else None


def _status_of_kind(kind: object) -> int | None:
    if not isinstance(kind, str) or len(kind) > 80 or " " in kind:  # a sentence is a message
        return None
    return next((status for pattern, status in STATUS_OF_KIND if re.search(pattern, kind, re.IGNORECASE)), None)


def may_pass(message: str) -> bool:
    """Whether an error that names no status says that it is over by itself."""
    return PASSING.search(message) is not None


def plain_text(text: str) -> str:
    """The text of an HTML page on one line; another text as it is."""
    if not re.match(r"(?is)\s*(<\?xml[^>]*>\s*)?<(!doctype|html|head|body|h1|title|error)\b", text):
        return text
    return " ".join(html.unescape(MARKUP.sub(" ", text)).split())
