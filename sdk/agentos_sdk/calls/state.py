"""STORE, FETCH, DELETE and KEYS: state that outlives its caller."""

import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias

from agentos_sdk.encoding.codec import Rule, Seconds
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op
from agentos_sdk.values import Scope

from .request import Number, Page, Request, SuccessfulReply

MAX_KEY_BYTES = 512
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def is_key(text: str) -> bool:
    """Whether it is 1 to 512 bytes of UTF-8 without control characters."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return 1 <= size <= MAX_KEY_BYTES and CONTROL_CHARACTER.search(text) is None


KEY_RULE = "1 to 512 bytes of UTF-8 without control characters"
Key: TypeAlias = Annotated[str, Rule(is_key, KEY_RULE)]
Prefix: TypeAlias = Annotated[str, Rule(lambda text: not text or is_key(text), f"nothing, or {KEY_RULE}")]
Ttl: TypeAlias = Annotated[Seconds, Rule(lambda ttl: ttl > 0, "a duration above 0s")]
Holder: TypeAlias = Annotated[str, Rule(lambda name: 1 <= len(name) <= 1000, "the name of an agent")]


@record
class Stored(SuccessfulReply):
    """The value is on disk. ``version`` is higher than any that a key of this scope has had."""

    key: str
    version: int


@record
class Store(Request[Stored]):
    """Store ``value``, any JSON, under ``key``; after ``ttl`` seconds it doesn't exist any more.

    ``scope`` is global, agent (the caller's own, kept over restarts) or session (its own until it has ended). With
    ``if_version`` only if the key has that version, 0 being none; otherwise ``conflict`` with the present ``version``.
    """

    op = Op.STORE
    key: Key
    value: object
    scope: Scope = "global"
    ttl: Ttl | None = None
    if_version: Number | None = None


@record
class Fetched(SuccessfulReply):
    """``scope`` is where the key was found, ``expires_in`` seconds, None if it doesn't expire.

    If it doesn't exist, ``value`` and ``scope`` are None and ``version`` is 0.
    """

    exists: bool
    value: object
    scope: Scope | None
    version: int
    expires_in: float | None = None


@record
class Fetch(Request[Fetched]):
    """Fetch the value of ``key``; without ``scope`` the first one of session, agent and global that has it.

    With ``agent``, which only the operator may give, that agent's own: the name of an agent, or of its account, such as
    ``boss/worker``.
    """

    op = Op.FETCH
    key: Key
    scope: Scope | None = None
    agent: Holder | None = None


@record
class Deleted(SuccessfulReply):
    """``deleted`` is false, and ``scope`` None, if there was no such key."""

    deleted: bool
    scope: Scope | None


@record
class Delete(Request[Deleted]):
    """Delete ``key``; without ``scope`` in the first one of session, agent and global that has it.

    With ``if_version`` only if the key has that version; otherwise ``conflict`` with the present ``version``.
    """

    op = Op.DELETE
    key: Key
    scope: Scope | None = None
    if_version: Number | None = None


@record
class KeyList(SuccessfulReply):
    """Keys in the order of their code points; ``scopes`` says for each where FETCH would find it.

    ``next``, if not None, is the ``after`` of a request for more.
    """

    keys: Sequence[str]
    scopes: Sequence[Scope]
    count: int
    next: str | None = None


@record
class Keys(Request[KeyList]):
    """List the keys that begin with ``prefix`` and that the caller may fetch, at most ``limit``.

    Without ``scope`` they are those of all scopes; ``after`` is the key before the first one. ``agent`` as for FETCH.
    """

    op = Op.KEYS
    prefix: Prefix = ""
    scope: Scope | None = None
    limit: Page = 1000
    after: Prefix = ""
    agent: Holder | None = None
