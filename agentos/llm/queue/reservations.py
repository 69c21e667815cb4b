"""Budget reserved for requests that are sent to the provider, until what they used is settled."""

import time
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

from agentos.llm.budgets import Budgets, Grant
from agentos_sdk.errors import QuotaExceeded
from agentos_sdk.values import Usage

from .request import Request


@define(eq=False)
class Reservations:
    """Reservations of all requests in flight, in ``budgets``."""

    budgets: Budgets
    _open: int = 0  # reservations that aren't settled
    _settled: trio.Event = field(factory=trio.Event)  # set and replaced when a reservation is settled

    async def reserve(
        self, request: Request, wait: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
    ) -> Grant:
        """Reserve budget for one attempt; raises ``QuotaExceeded``.

        If only reservations of other requests are in the way, ``wait`` is called with a function that returns when one
        of them is settled; then it tries again.
        """
        question, calls = request.question, int(not request.is_counted)
        wanted = (request.queue_path, request.model, request.input, question.max_tokens)
        while True:
            self._open += 1
            try:
                return await self.budgets.reserve(*wanted, time.time(), calls, for_hour=question.for_hour)
            except QuotaExceeded:
                # `_settled` isn't set here: two waiting requests would wake each other forever.
                self._open -= 1
                self.budgets.check(*wanted, time.time(), calls, for_hour=question.for_hour)
                if not self._open:  # reserved by a kernel that was killed: never settled
                    raise
            except BaseException:
                self._open -= 1
                self._wake()
                raise
            await wait(self._settled.wait)

    async def settle(self, grant: Grant, used: Usage, calls: int) -> None:
        """Charge what was used, and return the rest of the reservation; usage that may exceed it is on disk then."""
        self.budgets.settle(grant, used, calls, time.time())
        self._open -= 1
        self._wake()
        if grant.may_overrun and used.total:
            await self.budgets.flush()

    async def reset(self, name: str) -> None:
        """Set to 0 what is used of the budgets of ``name``; requests that wait for budget may try again."""
        await self.budgets.reset(name, time.time())
        self._wake()

    def _wake(self) -> None:
        self._settled.set()
        self._settled = trio.Event()
