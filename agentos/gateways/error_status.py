"""HTTP status, text and headers with which the endpoints answer a failed call. No I/O, no clock."""

import math
from collections.abc import Sequence

from agentos_sdk.errors import CallError

STATUS = {  # by a call error's code; 500 for the others
    "bad_request": 400,
    "invalid_api_key": 401,
    "permission_denied": 403,
    "approval_required": 403,
    "approval_refused": 403,
    "not_found": 404,
    "too_large": 413,
    "busy": 429,
    "quota_exceeded": 429,
    "unavailable": 503,
    "cancelled": 503,
    "timeout": 504,
}
UPSTREAM_STATUS = {  # by the status of the provider's error response: the status here, and OpenAI's code
    401: (401, "invalid_api_key"),
    402: (429, "insufficient_quota"),
    403: (403, "permission_denied"),
    404: (404, "model_not_found"),
    422: (422, "invalid_request"),
    429: (429, "rate_limit_exceeded"),
}
CREDENTIAL_STATUS = (401, 402, 403)  # statuses about the kernel's own credentials, which are not shown to the agent
BUSY_RETRY_SECONDS = 1  # seconds after which to retry when the queue is full

Headers = Sequence[tuple[str, str]]


def status(error: CallError) -> int:
    at_provider = upstream(error)
    return at_provider[0] if at_provider is not None else STATUS.get(error.code, 500)


def upstream(error: CallError) -> tuple[int, str] | None:
    """The status and code for an error of the kernel's provider; ``None`` for other errors."""
    said = error.details.get("upstream_status")
    return UPSTREAM_STATUS.get(said) if isinstance(said, int) else None


def error_text(error: CallError) -> str:
    said = error.details.get("upstream_status")
    if said in CREDENTIAL_STATUS:
        return f"the provider of the kernel's model refuses the kernel itself ({said}): its operator has to mend that"
    return str(error)


def retry_seconds(error: CallError, now: float) -> int | None:
    """In how many seconds a retry is worth it, if that is known."""
    if error.code == "busy":
        return BUSY_RETRY_SECONDS
    worth_it = error.details.get("renews_at", error.details.get("until"))  # seconds since the epoch
    return max(1, math.ceil(worth_it - now)) if isinstance(worth_it, int | float) else None


def advice(error: CallError, now: float) -> Headers:
    """Headers that say when to retry. The kernel has retried already, so only a full queue allows a retry."""
    # Otherwise the vendors' SDKs would retry, at 429 and from 500 on.
    again = [] if error.code == "busy" else [("x-should-retry", "false")]
    if (after := retry_seconds(error, now)) is not None:
        again.append(("retry-after", str(after)))
    if error.code == "invalid_api_key":
        again.append(("www-authenticate", "Bearer"))
    return again
