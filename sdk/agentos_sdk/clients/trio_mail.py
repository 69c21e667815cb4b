"""Messages that are leased by the Trio client, one by one, and acknowledged when the loop goes on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from agentos_sdk.errors import NotFound

from .mail import WAIT

if TYPE_CHECKING:
    from typing import Self

    from agentos_sdk.calls.messages import Message

    from .trio_calls import TrioCalls


class LeasedMessages:
    """An async iterator that needs no closing: a loop that is left acknowledges nothing more."""

    def __init__(self, kernel: TrioCalls, lease: float) -> None:
        self._kernel, self._lease = kernel, lease
        self._last: Message | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._last is not None:
            last, self._last = self._last, None
            with suppress(NotFound):  # the lease is over: it comes again
                await self._kernel.ack_messages([last.id])
        while self._last is None:
            for message in await self._kernel.recv_messages(1, WAIT, lease=self._lease):
                self._last = message
        return self._last
