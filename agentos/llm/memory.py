"""Memory limits for LLM requests that wait or are in flight: per family of agents and in total."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from attrs import define, field

from agentos_sdk.errors import Busy

MAX_TOTAL_BYTES = 256 << 20  # bytes of requests that wait or are in flight
MAX_FAMILY_BYTES = 64 << 20  # of these, bytes of one family; one request per family is exempt …
SMALL_REQUEST_BYTES = 64 << 10  # … from this limit, and up to this size also from the total limit


@define
class RequestMemory:
    """Bytes held, by family."""

    _held: Counter[str] = field(factory=Counter)

    @contextlib.contextmanager
    def hold(self, family: str, size: int) -> Iterator[None]:
        """Hold ``size`` bytes for a request of a family; raises ``Busy`` if there is no room for it."""
        own, total = self._held[family], self._held.total()
        if own and own + size > MAX_FAMILY_BYTES:
            raise Busy(f"{MAX_FAMILY_BYTES >> 20} MiB of your model requests are already queued: let some be answered")
        if total + size > MAX_TOTAL_BYTES and (own or size > SMALL_REQUEST_BYTES):
            raise Busy(f"{MAX_TOTAL_BYTES >> 20} MiB of model requests are already queued: try again later")
        self._held[family] += size
        try:
            yield
        finally:
            self._held[family] -= size
            if not self._held[family]:
                del self._held[family]
