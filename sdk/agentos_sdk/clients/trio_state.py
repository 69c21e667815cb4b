"""The keys of one scope by the Trio client: ``await kernel.state.set("plan", {"step": 1})``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentos_sdk.values import Scope

    from .trio_calls import TrioCalls


class TrioState:
    """The global keys, by the Trio client; ``agent`` and ``session`` are those of the other two scopes.

    ``async for key in kernel.state`` iterates over the keys. A failed call raises its ``CallError``.
    """

    def __init__(self, kernel: TrioCalls, scope: Scope = "global") -> None:
        self._kernel, self._scope = kernel, scope

    @property
    def agent(self) -> TrioState:
        return TrioState(self._kernel, "agent")

    @property
    def session(self) -> TrioState:
        return TrioState(self._kernel, "session")

    async def get(self, key: str, default: object = None) -> Any:
        """The value of a key, or ``default``."""
        found = await self._kernel.fetch(key, self._scope)
        return found.value if found.exists else default

    async def set(self, key: str, value: object, ttl: float | None = None) -> int:
        """Store a value; returns its version."""
        return (await self._kernel.store(key, value, self._scope, ttl)).version

    async def delete(self, key: str) -> bool:
        """Delete a key; returns whether it existed."""
        return (await self._kernel.delete(key, self._scope)).deleted

    async def __aiter__(self) -> AsyncIterator[str]:
        after: str | None = ""
        while after is not None:
            page = await self._kernel.keys(scope=self._scope, after=after)
            for key in page.keys:
                yield key
            after = page.next
