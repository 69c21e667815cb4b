"""Responses that an agent has asked to keep: in the session scope of its state, by its STORE, FETCH and DELETE calls.

So each is the agent's alone, counts for its quota of state, and is removed when the agent has ended.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from attrs import define

from agentos.gateways.think_calls import ThinkCalls
from agentos.kernel.table import LARGE_BODY_BYTES
from agentos_sdk import codec
from agentos_sdk.calls.state import Delete, Deleted, Fetch, KeyList, Keys, Store
from agentos_sdk.errors import BadRequest, NotFound, QuotaExceeded, TooLarge
from agentos_sdk.opcodes import Op

PREFIX = "openai/responses/"  # of the keys
MAX_STORED = 256  # responses of one session
MAX_BYTES = LARGE_BODY_BYTES  # of one response with its input, as of any value of state
ID = re.compile("resp_[0-9a-f]{32}")


@define(eq=False)
class StoredResponses:
    """Each value is an object: the ``response``, and the ``input`` items of its request."""

    _calls: ThinkCalls

    async def check_room(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Refuse to answer what can't be stored afterwards: ``QuotaExceeded``, or ``TooLarge`` for the input alone."""
        keys = await self._calls.perform(Op.KEYS, Keys(prefix=PREFIX, scope="session", limit=MAX_STORED))
        assert isinstance(keys, KeyList), "KEYS' reply before it is encoded"
        if keys.count >= MAX_STORED:
            raise QuotaExceeded(f"store: {MAX_STORED} responses are stored, which is all there may be: delete some")
        _check_size(len(codec.encode(items)))

    async def add(self, response: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> None:
        """Store a response. Raises ``TooLarge``, and ``QuotaExceeded`` if it exceeds the agent's quota of state."""
        value = codec.encode({"response": response, "input": items})
        _check_size(len(value))
        await self._calls.perform(
            Op.STORE, Store(key=PREFIX + response["id"], value=msgspec.Raw(value), scope="session")
        )

    async def find(self, id: str, param: str | None = None) -> Mapping[str, Any]:
        """What is stored by this id; ``NotFound`` if nothing is."""
        reply = await self._calls.perform(Op.FETCH, Fetch(key=_key(id, param), scope="session"))
        assert isinstance(reply, bytes), "FETCH's reply is encoded"
        fetched: Any = await self._calls.read(len(reply), codec.parse, reply)
        if not fetched["exists"]:
            raise _missing(id, param)
        return _check_value(fetched["value"], id)

    async def remove(self, id: str) -> None:
        """``NotFound`` if nothing is stored by this id."""
        reply = await self._calls.perform(Op.DELETE, Delete(key=_key(id), scope="session"))
        assert isinstance(reply, Deleted), "DELETE's reply before it is encoded"
        if not reply.deleted:
            raise _missing(id)

    async def conversation(self, last: str | None) -> list[Mapping[str, Any]]:
        """All items of the conversation that ends with this response, the oldest first; none without an id."""
        turns: list[Sequence[Mapping[str, Any]]] = []
        while last is not None:
            if len(turns) == MAX_STORED:
                raise BadRequest(f"previous_response_id: expected at most {MAX_STORED} responses before this one")
            found = await self.find(last, "previous_response_id")
            turns.append([*found["input"], *found["response"]["output"]])
            last = found["response"]["previous_response_id"]
        return [item for turn in reversed(turns) for item in turn]


def _key(id: str, param: str | None = None) -> str:
    if not ID.fullmatch(id):
        raise _missing(id, param)
    return PREFIX + id


def _missing(id: str, param: str | None = None) -> NotFound:
    return NotFound(f"there is no stored response {id[:80]!r}", **({} if param is None else {"param": param}))


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise TooLarge(f"store: expected a response of at most {MAX_BYTES} bytes with its input, got {size}")


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
