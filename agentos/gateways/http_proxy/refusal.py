"""Replies of the proxy itself: refusals and failures, for people to read in the output of their programs."""

from collections.abc import Mapping

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


def refuse(error: CallError) -> bytes:
    """The whole response that says why, also in its status line, which is what many programs show; it is the last."""
    text = str(error)
    code, phrase = STATUS.get(error.code, BAD_GATEWAY)
    shown = "".join(each if 32 <= ord(each) < 127 else "?" for each in f"{phrase} by AgentOS: {text}")[:MAX_REASON]
    body = f"AgentOS: {text}\n".encode()
    head = (
        f"HTTP/1.1 {code} {shown}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
