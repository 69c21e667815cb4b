"""The JSON parts of an agent's archive: manifest, private keys and unread messages, checked as they are read."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from agentos.services.mail.mailbox import MAX_BYTES, MAX_MESSAGES, Message
from agentos.services.state.copies import KeptKey
from agentos.structs import learn
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.characters import replace_half_escapes

from .archive import MAILBOX, MANIFEST, STATE
from .tar import BadArchive

T = TypeVar("T")
MAX_NAME = 200  # characters of a sender's name


class NeededImage(Struct, frozen=True, forbid_unknown_fields=True):
    """The image that an agent runs in, which no archive has."""

    name: str
    digest: str


class Manifest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an archive is: ``agent`` has fields of its declaration, None if it wasn't exported."""

    format: Literal[1]
    kernel: str
    name: str
    agent: dict[str, Any] | None
    left_out: list[str]
    image: NeededImage | None = None


class UnreadMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """An unread message. What it says of its sender is for people: an import believes none of it."""

    from_name: str
    from_kind: Literal["operator", "agent", "guest", "kernel"]
    sent_at: float
    message: msgspec.Raw


learn(Manifest, list[KeptKey], list[UnreadMessage])


def read_manifest(data: bytes) -> Manifest:
    """Raises :class:`BadArchive`."""
    return _read(MANIFEST, lambda: codec_checked(data, Manifest))


def read_keys(data: bytes, is_key: Callable[[str], bool]) -> Sequence[KeptKey]:
    """``is_key``: whether a text can be one. Raises :class:`BadArchive`."""
    keys = _read(STATE, lambda: msgspec.json.decode(data, type=list[KeptKey]))
    for one in keys:
        if not is_key(one.key) or (one.expires is not None and not math.isfinite(one.expires)):
            raise BadArchive(f"{STATE}: {one.key[:100]!a}: no key, or no time of its end")
        _read(f"{STATE}: {one.key!a}", lambda value=one.value: codec.parse(value))  # type: ignore[misc]
    if len({one.key for one in keys}) != len(keys):
        raise BadArchive(f"{STATE}: a key is there twice")
    return keys


def read_messages(data: bytes) -> Sequence[UnreadMessage]:
    """Half a surrogate pair, which a sender may send, becomes U+FFFD. Raises :class:`BadArchive`."""
    messages = _read(MAILBOX, lambda: msgspec.json.decode(replace_half_escapes(data), type=list[UnreadMessage]))
    _check_amount(messages)
    for number, one in enumerate(messages):
        if len(one.from_name) > MAX_NAME or not 0 <= one.sent_at < 1e12:
            raise BadArchive(f"{MAILBOX}: [{number}]: its sender or its time can't be")
        _read(f"{MAILBOX}: [{number}]", lambda body=bytes(one.message): codec.parse(body))  # type: ignore[misc]
    return messages


def encode_messages(unread: Sequence[Message]) -> bytes:
    """Raises :class:`BadArchive` for what :func:`read_messages` would refuse."""
    messages = [UnreadMessage(one.from_name, one.from_kind, one.sent_at, msgspec.Raw(one.body)) for one in unread]
    _check_amount(messages)
    return msgspec.json.encode(messages)


def _check_amount(messages: Sequence[UnreadMessage]) -> None:
    if len(messages) > MAX_MESSAGES or sum(len(bytes(one.message)) for one in messages) > MAX_BYTES:
        raise BadArchive(f"{MAILBOX}: more than {MAX_MESSAGES} messages or {MAX_BYTES} bytes of them")


def codec_checked(data: bytes, kind: type[T]) -> T:
    """JSON of this type; also what msgspec lets pass is refused, such as deep nesting."""
    codec.parse(data)
    return msgspec.json.decode(data, type=kind)


def _read(what: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (msgspec.MsgspecError, codec.Invalid, ValueError, RecursionError) as error:
        raise BadArchive(f"{what}: {error}") from None
