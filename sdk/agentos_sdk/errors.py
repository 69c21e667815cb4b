"""The errors of calls: one class for each code, the same on both sides of the socket."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from typing import Any


class AgentOSError(Exception):
    """Base of all exceptions of this SDK."""


class ConnectionFailed(AgentOSError, ConnectionError):
    """No connection to a kernel: none is listening, the socket isn't ours, or the connection broke."""


class CallError(AgentOSError):
    """A call failed. ``code`` says how; the text says what to do about it."""

    code = "internal"

    def __init__(self, message: str, /, **details: object) -> None:
        super().__init__(message)
        self.details = details  # further fields of the reply, e.g. the last lines of a program that didn't start


class BadFrame(CallError):
    """The bytes are not a frame; the connection ends (cf. EPROTO)."""

    code = "bad_frame"


class TooLarge(CallError):
    """The body is larger than the call allows; the connection ends (cf. EMSGSIZE)."""

    code = "too_large"


class BadRequest(CallError):
    """The body doesn't match the call; the text names the field (cf. EINVAL)."""

    code = "bad_request"


class UnknownCall(CallError):
    """This kernel doesn't serve that opcode (cf. ENOSYS)."""

    code = "unknown_call"


class PermissionDenied(CallError):
    """The caller lacks a permission that this call needs (cf. EPERM)."""

    code = "permission_denied"


class ApprovalRequired(CallError):
    """The call needs a person's approval, and the deadline passed (cf. EACCES)."""

    code = "approval_required"


class ApprovalRefused(CallError):
    """A person refused approval (cf. EACCES)."""

    code = "approval_refused"


class NotFound(CallError):
    """No such agent, key or file (cf. ENOENT)."""

    code = "not_found"


class AlreadyExists(CallError):
    """The name is taken (cf. EEXIST)."""

    code = "already_exists"


class Busy(CallError):
    """A bounded queue or mailbox is full: retry later (cf. EAGAIN)."""

    code = "busy"


class Conflict(CallError):
    """The version is another one by now; ``details`` have the present ``version`` (cf. EAGAIN)."""

    code = "conflict"


class QuotaExceeded(CallError):
    """A quota is used up; the text says which and when it renews (cf. EDQUOT)."""

    code = "quota_exceeded"


class Timeout(CallError):
    """The deadline in the request has passed (cf. ETIMEDOUT)."""

    code = "timeout"


class Cancelled(CallError):
    """The request was cancelled (cf. ECANCELED)."""

    code = "cancelled"


class Unavailable(CallError):
    """The backend of the call is not configured, not built or down (cf. EHOSTDOWN)."""

    code = "unavailable"


class IsolationUnavailable(CallError):
    """Strict isolation was requested and this host can't provide it; the text says what is missing (cf. ENOTSUP)."""

    code = "isolation_unavailable"


class Internal(CallError):
    """A bug in the kernel, logged there under the reference in the text (cf. EIO)."""

    code = "internal"


BY_CODE = {cls.code: cls for cls in CallError.__subclasses__()}


def from_reply(reply: dict[str, object]) -> CallError:
    """The exception for a failed reply."""
    details = {key: value for key, value in reply.items() if key not in ("success", "error", "code")}
    cls = BY_CODE.get(str(reply.get("code")), CallError)
    return cls(str(reply.get("error") or "the kernel gave no reason"), **details)


def checked_list(reply: object) -> list[dict[str, Any]]:
    """The items of a reply that is a list; a failed call's reply is a dict and raised as its exception."""
    if isinstance(reply, dict):
        raise from_reply(reply)
    assert isinstance(reply, list)
    return reply


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply; that of a failed call is raised as its exception."""
    if not reply["success"]:
        raise from_reply(reply)
    return reply
