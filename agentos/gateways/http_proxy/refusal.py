"""Replies of the proxy itself: refusals and failures, for people to read in the output of their programs."""

from collections.abc import Mapping

from agentos.permissions.patterns.domains import DEFAULT_PORTS
from agentos.services.http.destination import SCHEME_PORTS, Destination
from agentos_sdk.errors import CallError

STATUS: Mapping[str, tuple[int, str]] = {
    "bad_request": (400, "Bad Request"),
    "permission_denied": (403, "Forbidden"),
    "approval_required": (403, "Forbidden"),
    "approval_refused": (403, "Forbidden"),
    "too_large": (413, "Content Too Large"),
    "quota_exceeded": (429, "Too Many Requests"),
    "timeout": (504, "Gateway Timeout"),
    "busy": (503, "Service Unavailable"),
    "internal": (500, "Internal Server Error"),
}
BAD_GATEWAY = (502, "Bad Gateway")
MAX_REASON = 200  # characters of a status line's reason
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def describe(error: CallError, destination: Destination | None) -> str:
    """The text of an error; of a refusal by default also the rule that would allow the destination."""
    text = str(error)
    if destination is None or error.code != "permission_denied":
        return text
    if not str(error.details.get("rule", "")).startswith("no rule"):
        return text
    return f'{text}. This rule would: domains = ["{smallest_rule(destination)}"]'


def smallest_rule(destination: Destination) -> str:
    """The pattern that grants this destination and as little beside it as a pattern can."""
    if destination.method is None:
        host, _, port = destination.authority.rpartition(":")
        return host if int(port) in DEFAULT_PORTS else destination.authority
    host, _, port = destination.authority.rpartition(":")
    where = host if int(port) == SCHEME_PORTS[destination.scheme] else destination.authority
    return f"{destination.method} {where}{destination.path}"


def refuse(error: CallError, destination: Destination | None = None, *, with_body: bool = True) -> bytes:
    """The whole response that says why, also in its status line, which is what many programs show; it is the last."""
    text = describe(error, destination)
    code, phrase = STATUS.get(error.code, BAD_GATEWAY)
    shown = "".join(each if 32 <= ord(each) < 127 else "?" for each in f"{phrase} by AgentOS: {text}")[:MAX_REASON]
    body = f"AgentOS: {text}\n".encode()
    head = (
        f"HTTP/1.1 {code} {shown}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + (body if with_body else b"")
