"""How many bytes of questions may wait or be in flight: of one family, and of all."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from attrs import define, field

from agentos_sdk.errors import Busy

HELD_BY_ALL = 256 << 20  # bytes of questions that wait or are in flight
HELD_BY_ONE = 64 << 20  # and of one family's; a single question is always taken …
LITTLE = 64 << 10  # … and if it has no more than that, also where others have filled the line


@define
class Memory:
    """What is held, by family."""

    _held: Counter[str] = field(factory=Counter)

    @contextlib.contextmanager
    def held(self, family: str, size: int) -> Iterator[None]:
        """Hold ``size`` bytes for a question of a family's; raises ``Busy`` where there is no room for it."""
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
