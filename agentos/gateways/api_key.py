"""The API key that an endpoint on the host's loopback requires."""

import hmac

from agentos.http.exchange import Exchange
from agentos_sdk.errors import PermissionDenied


class InvalidKey(PermissionDenied):
    """The request lacks the API key of this port, or has a wrong one."""

    code = "invalid_api_key"


def require_key(exchange: Exchange, key: str | None) -> None:
    """Raise :class:`InvalidKey` unless the request has ``key``, if there is one, as the clients of a vendor send it."""
    headers = (exchange.header(name) for name in ("x-api-key", "x-goog-api-key"))
    said = (exchange.header("authorization").removeprefix("Bearer "), *headers, exchange.query("key"))
    if key is not None and not any(hmac.compare_digest(each.encode(), key.encode()) for each in said):
        raise InvalidKey(
            "expected the key that this agent has as OPENAI_API_KEY, ANTHROPIC_API_KEY and GEMINI_API_KEY in its "
            "environment"
        )
