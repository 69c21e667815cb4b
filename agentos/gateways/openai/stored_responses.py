"""Stored responses: in the session scope of their agent's state, by its STORE, FETCH and DELETE calls.

So each is the agent's alone, counts for its quota of state, and is removed when the agent has ended. One that no
request asked to store has a key that gives way (:mod:`agentos.services.state.giving_way`).
"""

import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio
from attrs import define, field

from agentos.gateways.think_calls import ThinkCalls
from agentos.kernel.ports import Right
from agentos.kernel.syscall import LARGE_BODY_BYTES
from agentos.kernel.wire.request_body import parse_text
from agentos.llm.queue.request import MAX_PARTS
from agentos.services.state.giving_way import GIVES_WAY, MAX_BYTES_GIVING_WAY, MAX_KEYS_GIVING_WAY
from agentos_sdk.calls.state import Delete, Deleted, Fetch, KeyList, Keys, Store
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest, NotFound, QuotaExceeded, TooLarge
from agentos_sdk.opcodes import Op

PREFIX = "openai/responses/"  # of the keys
ASKED = PREFIX + "resp_1"  # with which the keys begin of those that a request asked to store
MAX_STORED = 256  # responses of one session that a request asked to store
MAX_CHAIN = 512  # responses that one request continues
MAX_CONVERSATION = 16 << 20  # bytes of the stored items that one request continues, as of a request itself
MAX_BYTES = LARGE_BODY_BYTES  # of one response with its input, as of any value of state
ID = re.compile("resp_[0-9a-f]{32}")


@define(eq=False)
class StoredResponses:
    """Each value is an object: the ``response``, and the ``input`` items of its request."""

    _calls: ThinkCalls
    _storing: int = field(default=0, init=False)  # requests that asked to store a response not yet stored
    _counting: trio.Lock = field(factory=trio.Lock, init=False)

    @asynccontextmanager
    async def room(self, asked: bool | None, request_size: int) -> AsyncIterator[bool]:
        """Whether to store the response to a request of this size; ``asked`` is what it says, None if nothing.

        Raises ``QuotaExceeded``, or ``TooLarge`` for the request alone, if it asks for what can't be stored. What is
        asked has its place until the block ends.
        """
        if asked is None:
            caller = self._calls.caller
            yield request_size <= MAX_BYTES and caller.authorizer.decide(caller, Right("store")).effect == "allow"
            return
        if asked:
            _check_size(request_size)
            async with self._counting:
                await self._check_count()
                self._storing += 1
        try:
            yield asked
        finally:
            self._storing -= asked

    async def _check_count(self) -> None:
        storing = self._storing  # before those that are stored are counted, so that each is counted at least once
        keys = await self._calls.perform(Op.KEYS, Keys(prefix=ASKED, scope="session", limit=MAX_STORED))
        assert isinstance(keys, KeyList), "KEYS' reply before it is encoded"
        if keys.count + storing >= MAX_STORED:
            raise QuotaExceeded(f"store: {MAX_STORED} responses are stored, which is all there may be: delete some")

    async def add(self, response: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> None:
        """Store a response. Raises ``TooLarge``, and ``QuotaExceeded`` if it exceeds the agent's quota of state."""
        value = codec.encode({"response": response, "input": items})
        _check_size(len(value))
        await self._calls.perform(
            Op.STORE, Store(key=PREFIX + response["id"], value=msgspec.Raw(value), scope="session")
        )

    async def find(self, id: str, param: str | None = None) -> tuple[Mapping[str, Any], int]:
        """What is stored by this id, and its size in bytes; ``NotFound`` if nothing is."""
        reply = await self._calls.perform(Op.FETCH, Fetch(key=_key(id, param), scope="session"))
        assert isinstance(reply, bytes), "FETCH's reply is encoded"
        try:
            fetched: Any = await self._calls.read(len(reply), parse_text, reply)
        except codec.Invalid as error:
            raise BadRequest(f"the stored response {id}: {error}") from None
        if not fetched["exists"]:
            raise _missing(id, param)
        return _check_value(fetched["value"], id), len(reply)

    async def remove(self, id: str) -> None:
        """``NotFound`` if nothing is stored by this id."""
        reply = await self._calls.perform(Op.DELETE, Delete(key=_key(id), scope="session"))
        assert isinstance(reply, Deleted), "DELETE's reply before it is encoded"
        if not reply.deleted:
            raise _missing(id)

    async def conversation(self, last: str) -> tuple[list[Mapping[str, Any]], int]:
        """All items of the conversation that ends with this response, the oldest first, and its size in bytes.

        The agent may have stored what it likes, also a response that follows itself.
        """
        turns: list[Sequence[Mapping[str, Any]]] = []
        parts = size = 0
        before: str | None = last
        while before is not None:
            if len(turns) == MAX_CHAIN:
                raise BadRequest(f"previous_response_id: expected at most {MAX_CHAIN} responses before this one")
            found, found_size = await self.find(before, "previous_response_id")
            turns.append([*found["input"], *found["response"]["output"]])
            parts, size = parts + len(turns[-1]), size + found_size
            if parts > MAX_PARTS or size > MAX_CONVERSATION:
                raise TooLarge(
                    f"previous_response_id: expected a conversation of at most {MAX_PARTS} items and "
                    f"{MAX_CONVERSATION >> 20} MiB"
                )
            before = found["response"]["previous_response_id"]
        return [item for turn in reversed(turns) for item in turn], size


def new_id(asked: bool | None, now: float) -> str:
    """An id; those of responses that no request asked to store are in the order of time, until the year 2527."""
    if asked:
        return f"{ASKED.removeprefix(PREFIX)}{secrets.token_hex(16)[1:]}"
    return f"resp_{int(now * 1000):012x}{secrets.token_hex(10)}"


def _key(id: str, param: str | None = None) -> str:
    if not ID.fullmatch(id):
        raise _missing(id, param)
    return PREFIX + id


def _missing(id: str, param: str | None = None) -> NotFound:
    text = f"there is no stored response {id[:80]!r}"
    if ID.fullmatch(id) and (PREFIX + id).startswith(GIVES_WAY):
        text += (
            f": without store: true the latest {MAX_KEYS_GIVING_WAY} are kept, of {MAX_BYTES_GIVING_WAY >> 20} MiB "
            "together, as long as nothing else needs the room"
        )
    return NotFound(text, **({} if param is None else {"param": param}))


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise TooLarge(f"store: expected at most {MAX_BYTES} bytes of request and response, got {size}")


def _check_value(found: Any, id: str) -> Mapping[str, Any]:
    """Refuse what the agent has stored here by itself in another shape."""
    try:
        response, items = found["response"], found["input"]
        previous = response["previous_response_id"]
        whole = all(type(item) is dict for item in [*items, *response["output"]])
    except (KeyError, TypeError, IndexError):
        whole, previous = False, None
    if not whole or not isinstance(previous, str | None):
        raise BadRequest(f"the key {PREFIX}{id} of this agent's session state holds no response")
    checked: Mapping[str, Any] = found
    return checked
