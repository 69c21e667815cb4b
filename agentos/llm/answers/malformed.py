"""A response that can't be read, and JSON within the limits of what is parsed without a pause."""

from agentos_sdk.encoding import codec
from agentos_sdk.encoding.nesting import count_containers

MAX_EVENT = 1 << 20  # bytes of one event, and characters of all tools' arguments: parsed without a pause
MAX_CONTAINERS = 10_000  # arrays and objects in an event: a million of them would take a third of a second to parse


class MalformedResponse(Exception):
    """The response is malformed or exceeds a limit. The message is appended to the vendor's name."""


def parse_json(data: bytes) -> object:
    """Parse JSON of a vendor; raises ``codec.Invalid`` and :class:`MalformedResponse`."""
    if count_containers(data, MAX_CONTAINERS) > MAX_CONTAINERS:
        raise MalformedResponse(f"sent more than {MAX_CONTAINERS} arrays and objects at once")
    return codec.parse(data)
