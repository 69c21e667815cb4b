"""The keys of one scope as a mapping: ``kernel.state["plan"] = {"step": 1}``, ``kernel.state.agent["seen"]``."""

from __future__ import annotations

from collections.abc import MutableMapping

from agentos_sdk.errors import checked

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal

    from .client_calls import Calls

    Scope = Literal["global", "agent", "session"]


class State(MutableMapping):  # type: ignore[type-arg]  # at run time it takes no types that aren't imported
    """The global keys, by the blocking client; ``agent`` and ``session`` are those of the other two scopes.

    Each access is a call, so what is done in several, such as ``setdefault``, is no single change: ``store`` with
    ``if_version`` is. A missing key raises ``KeyError``, a failed call its ``CallError``.
    """

    def __init__(self, client: Calls, scope: Scope = "global") -> None:
        self._client, self._scope = client, scope

    @property
    def agent(self) -> State:
        return State(self._client, "agent")

    @property
    def session(self) -> State:
        return State(self._client, "session")

    def __getitem__(self, key: str) -> Any:
        reply = checked(self._client.fetch(key, self._scope))
        if not reply["exists"]:
            raise KeyError(key)
        return reply["value"]

    def __setitem__(self, key: str, value: object) -> None:
        checked(self._client.store(key, value, self._scope))

    def __delitem__(self, key: str) -> None:
        if not checked(self._client.delete(key, self._scope))["deleted"]:
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        after: str | None = ""
        while after is not None:
            page = checked(self._client.keys(scope=self._scope, after=after))
            yield from page["keys"]
            after = page["next"]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<state of scope {self._scope}>"
