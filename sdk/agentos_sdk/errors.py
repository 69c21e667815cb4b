"""What can go wrong with a call: one class for each code, the same on both sides of the socket."""


class AgentOSError(Exception):
    """Anything that this SDK raises."""


class ConnectionFailed(AgentOSError, ConnectionError):
    """There is no kernel to talk to: nobody listens, it isn't ours, or it went away in the middle."""


class CallError(AgentOSError):
    """The kernel answered that a call failed; ``code`` says how, the text says what to do about it."""

    code = "internal"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details  # what else the reply carries, e.g. the last lines of a program that didn't start


class BadFrame(CallError):
    """The bytes are no frame; the connection ends (cf. EPROTO)."""

    code = "bad_frame"


class TooLarge(CallError):
    """A body is longer than its call takes; the connection ends (cf. EMSGSIZE)."""

    code = "too_large"


class BadRequest(CallError):
    """The body is not what the call takes; the text names the field (cf. EINVAL)."""

    code = "bad_request"


class UnknownCall(CallError):
    """This kernel serves no such opcode (cf. ENOSYS)."""

    code = "unknown_call"


class PermissionDenied(CallError):
    """The caller holds no grant for a right this call needs (cf. EPERM)."""

    code = "permission_denied"


class ApprovalRequired(CallError):
    """A person must agree, and the deadline passed (cf. EACCES)."""

    code = "approval_required"


class ApprovalRefused(CallError):
    """A person said no (cf. EACCES)."""

    code = "approval_refused"


class NotFound(CallError):
    """No such agent, key or file (cf. ENOENT)."""

    code = "not_found"


class AlreadyExists(CallError):
    """The name is taken (cf. EEXIST)."""

    code = "already_exists"


class Busy(CallError):
    """A bounded queue or mailbox is full: try later (cf. EAGAIN)."""

    code = "busy"


class QuotaExceeded(CallError):
    """Something that was granted in a measure is used up; the text says what and when it renews (cf. EDQUOT)."""

    code = "quota_exceeded"


class Timeout(CallError):
    """The deadline that the request named has passed (cf. ETIMEDOUT)."""

    code = "timeout"


class Cancelled(CallError):
    """The request was withdrawn (cf. ECANCELED)."""

    code = "cancelled"


class Unavailable(CallError):
    """What stands behind the call is not configured, not built or down (cf. EHOSTDOWN)."""

    code = "unavailable"


class IsolationUnavailable(CallError):
    """Strict isolation was asked for and this host can't give it; the text says what is missing (cf. ENOTSUP)."""

    code = "isolation_unavailable"


class Internal(CallError):
    """A bug of the kernel's, logged there under the reference that the text names (cf. EIO)."""

    code = "internal"


BY_CODE: dict[str, type[CallError]] = {
    cls.code: cls
    for cls in (
        BadFrame,
        TooLarge,
        BadRequest,
        UnknownCall,
        PermissionDenied,
        ApprovalRequired,
        ApprovalRefused,
        NotFound,
        AlreadyExists,
        Busy,
        QuotaExceeded,
        Timeout,
        Cancelled,
        Unavailable,
        IsolationUnavailable,
        Internal,
    )
}


def from_reply(reply: dict[str, object]) -> CallError:
    """The exception that a failed reply stands for."""
    details = {key: value for key, value in reply.items() if key not in ("success", "error", "code")}
    cls = BY_CODE.get(str(reply.get("code")), CallError)
    return cls(str(reply.get("error") or "the kernel gave no reason"), **details)
