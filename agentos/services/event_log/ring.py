"""The ring of the last events: one for all subscriptions, each of which has a place in it from which on it reads.

To publish an event costs the same however many subscriptions there are: it is encoded once and appended. A task looks
up, by an index, which subscriptions see the new events, and wakes those; the others keep their place without being
touched. A record is never changed, and is dropped when :data:`MAX_RECORDS` newer ones have come.
"""

import secrets
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from time import time
from typing import Final

import trio
from attrs import frozen

from agentos.services.events import Event

from .record import Party, Record, number
from .records import describe
from .subscription import Index, Subscription

MAX_RECORDS: Final = 10_000
MAX_BYTES: Final = 16 << 20  # of their texts
CHUNK: Final = 256  # records that are dropped at a time
WAKE_SECONDS: Final = 0.01  # between two looks for subscriptions to wake
SCAN: Final = 500  # records that are looked at between two checkpoints: under 1 ms

Above = Callable[[int], tuple[Party, ...]]
"""For a caller's id: the parties above it, its ancestors at whatever remove."""


@frozen
class Page:
    """Events as JSON, oldest first, and how many were dropped before they could be read."""

    events: Sequence[bytes]
    missed: int


class EventLog:
    """The events of one kernel. ``boot`` is the id of this run of it."""

    def __init__(self, above: Above = lambda caller: (), boot: str | None = None, first: int = 1) -> None:
        self.above = above
        self.boot = boot if boot is not None else secrets.token_hex(4)
        self.next = first  # the number of the next event
        self.index = Index()
        self._records: list[Record] = []
        self._base = 0  # the place of the first of them
        self._size = 0  # bytes of their texts
        self._seen = 0  # the place up to which subscriptions were looked up
        self._news = trio.Event()

    @property
    def end(self) -> int:
        """The place of the next event."""
        return self._base + len(self._records)

    @property
    def last(self) -> Record | None:
        return self._records[-1] if self._records else None

    # -- Publishing ------------------------------------------------------------------------------------------------

    def take_event(self, event: Event) -> None:
        """Keep the event, if it is of a kind that is kept; a subscriber of the bus."""
        draft = describe(event)
        if draft is None:
            return
        above = draft.parties
        for caller in draft.agent_ids:
            above += self.above(caller)
        below = draft.parties[0] if draft.parties else draft.source_agent_id
        self._append(number(draft, self.next, self.boot, above, below if draft.emitted else None))
        self.next += 1

    def _append(self, record: Record) -> None:
        self._records.append(record)
        self._size += len(record.text)
        if len(self._records) >= MAX_RECORDS + CHUNK or self._size > MAX_BYTES:
            self._drop(min(CHUNK, len(self._records) - 1))
        self._news.set()

    def _drop(self, count: int) -> None:
        """Drop the oldest records; subscriptions that have not read them count what they would have seen."""
        end = self._base + count
        if end > self._seen:
            self.look()
        if any(one.cursor is not None and one.cursor < end for one in self.index):
            for at in range(count):
                for subscription in self.index.find(self._records[at]):
                    subscription.lose(self._base + at)
        self._size -= sum(len(record.text) for record in self._records[:count])
        del self._records[:count]
        self._base = end

    # -- Reading ---------------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription. It sees what happens from now on, unless it has a place already."""
        self.look()
        self.index.add(subscription)

    def unsubscribe(self, subscription: Subscription) -> None:
        self.index.remove(subscription)

    def find_place(self, since: int) -> int:
        """The place of the first event that is kept and has a higher number."""
        return self._base + bisect_right(self._records, since, key=attrgetter("seq"))

    def look(self) -> None:
        """Find out which subscriptions see the events that have come since the last look, and wake them."""
        begin, self._seen = self._seen, self.end
        if not len(self.index):
            return
        for place in range(begin, self._seen):
            for subscription in self.index.find(self._records[place - self._base]):
                if subscription.cursor is None:
                    subscription.begin_at(place)

    async def serve(self) -> None:
        """Wake subscriptions soon after events that they see."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            self.look()
            await trio.sleep(WAKE_SECONDS)

    async def read(self, subscription: Subscription, limit: int, size: int) -> Page:
        """Take what is unread: at most ``limit`` events and ``size`` bytes, but one if there is any."""
        async with subscription.turn:
            self.look()
            found: list[bytes] = []
            while (place := subscription.cursor) is not None and limit and size > 0:
                place = max(place, self._base)
                stop, now = min(place + SCAN, self._seen), time()
                while place < stop:
                    record = self._records[place - self._base]
                    if subscription.sees(record):
                        text = record.encode(now)
                        size -= len(text) + 1
                        if found and size < 0:
                            break
                        found.append(text)
                        limit -= 1
                    place += 1
                    if not limit:
                        break
                subscription.cursor = place if place < self._seen else None
                await trio.lowlevel.checkpoint()
            missed, subscription.missed = subscription.missed, 0
            return Page(found, missed)
