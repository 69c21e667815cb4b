"""The API key that an endpoint on the host's loopback requires."""

import hmac

from agentos.http.exchange import Exchange
from agentos_sdk.errors import PermissionDenied


class InvalidKey(PermissionDenied):
    """The request lacks the API key of this port, or has a wrong one."""

    code = "invalid_api_key"


def require_key(exchange: Exchange, key: str | None) -> None:
    """Raise :class:`InvalidKey` unless the request has ``key``, if there is one, as a bearer token or ``x-api-key``."""
    said = (exchange.header("authorization").removeprefix("Bearer "), exchange.header("x-api-key"))
    if key is not None and not any(hmac.compare_digest(each.encode(), key.encode()) for each in said):
        raise InvalidKey(
            "expected the key that this agent has as OPENAI_API_KEY and ANTHROPIC_API_KEY in its environment"
        )
