"""Memory limits for LLM requests that wait or are in flight: per family of agents and in total."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from attrs import define, field

from agentos_sdk.errors import Busy

HELD_BY_ALL = 256 << 20  # bytes of requests that wait or are in flight
HELD_BY_ONE = 64 << 20  # of these, bytes of one family; one request per family is exempt …
LITTLE = 64 << 10  # … from this limit, and up to this size also from the total limit


@define
class Memory:
    """Bytes held, by family."""

    _held: Counter[str] = field(factory=Counter)

    @contextlib.contextmanager
    def held(self, family: str, size: int) -> Iterator[None]:
        """Hold ``size`` bytes for a request of a family; raises ``Busy`` if there is no room for it."""
        own, everybody = self._held[family], self._held.total()
        crowded = everybody + size > HELD_BY_ALL and (own or size > LITTLE)
        if crowded or (own and own + size > HELD_BY_ONE):
            raise Busy("the questions that wait for the model are too large in all: try again later")
        self._held[family] += size
        try:
            yield
        finally:
            self._held[family] -= size
            if not self._held[family]:
                del self._held[family]
