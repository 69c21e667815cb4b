"""The ring of the last events: one for all subscriptions, each of which has a place in it from which on it reads.

To publish an event costs the same however many subscriptions there are: it is encoded once and appended. A task looks
up, by an index, which subscriptions see the new events, and wakes those; the others keep their place without being
touched. A record is never changed, and is dropped when :data:`MAX_RECORDS` newer ones have come.
"""

import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import zip_longest
from operator import attrgetter
from time import time
from typing import Final

import trio
from attrs import define, field, frozen
from msgspec import Struct

from agentos.services.events import AgentExited, AgentOver, Event

from .record import Party, Record, number
from .records import describe
from .subscription import Index, Subscription

MAX_RECORDS: Final = 10_000
MAX_BYTES: Final = 16 << 20  # of their texts
CHUNK: Final = 64  # records that are dropped at a time, in 0.2 ms where ten subscriptions miss each
WAKE_SECONDS: Final = 0.01  # between two looks for subscriptions to wake
CHANGES: Final = 50  # subscriptions that are found by other rules between two checkpoints
FIRST_SCAN: Final = 100  # records that a reader looks at, before it takes turns with other readers
SCAN: Final = 500  # … between two checkpoints: under 1 ms

Above = Callable[[int], tuple[Party, ...]]
"""For a caller's id: the parties above it, its ancestors at whatever remove."""


@define
class Page:
    """Events as JSON, oldest first, and how many were dropped before they could be read.

    ``place`` is that of the first, ``size`` is bytes.
    """

    events: list[bytes] = field(factory=list)
    missed: int = 0
    place: int | None = None
    size: int = 0

    def add(self, text: bytes, place: int) -> None:
        if self.place is None:
            self.place = place
        self.events.append(text)
        self.size += len(text) + 1


class Boot(Struct):
    """One run of a kernel: its id, and the numbers of its first and last event; None: it was killed, or runs."""

    id: str
    first: int
    last: int | None = None


@frozen
class Start:
    """Where to read from after an event that a caller has got.

    ``boot_changed``: that was in an earlier run. ``cut_off``: what that, or a later one, published last may be lost
    uncounted. ``missed`` events in between aren't kept.
    """

    place: int
    boot_changed: bool = False
    cut_off: bool = False
    missed: int = 0


class EventLog:
    """The events of one kernel, and the last ones of those before, ``earlier``. ``boot`` is the id of this run."""

    def __init__(
        self,
        above: Above = lambda caller: (),
        boot: str | None = None,
        first: int = 1,
        earlier: Sequence[Boot] = (),
        records: Sequence[Record] = (),
    ) -> None:
        self.above = above
        self.boot = boot if boot is not None else secrets.token_hex(4)
        self.boots = [*earlier, Boot(self.boot, first)]
        self.grown = trio.Event()  # set with each event
        self.next = first  # the number of the next event
        self.index = Index()
        self.polled: dict[int, Subscription] = {}  # by the id of the caller that polls it
        self._records = list(records)
        self._base = 0  # the place of the first of them
        self._size = sum(len(record.text) for record in records)
        self._seen = len(records)  # the place up to which subscriptions were looked up
        self._news = trio.Event()
        self.max_records, self.chunk = MAX_RECORDS, CHUNK
        self._turn = trio.Lock()  # of those that read much
        self._rules_changed = False

    @property
    def end(self) -> int:
        """The place of the next event."""
        return self._base + len(self._records)

    def list_from(self, place: int, limit: int) -> tuple[int, Sequence[Record]]:
        """The records from a place on, or from the first that is kept, and the place of the first."""
        place = max(place, self._base)
        return place, self._records[place - self._base : place - self._base + limit]

    # -- Publishing ------------------------------------------------------------------------------------------------

    def take_event(self, event: Event) -> None:
        """Keep the event, if it is of a kind that is kept; a subscriber of the bus."""
        draft = describe(event)
        if draft is None:
            if isinstance(event, AgentOver):
                self.forget(event.agent_id)
            return
        above = draft.parties
        for caller in draft.agent_ids:
            above += self.above(caller)
        below = draft.parties[0] if draft.parties else draft.source_agent_id
        self._append(number(draft, self.next, self.boot, above, below if draft.emitted else None))
        self.next += 1
        if isinstance(event, AgentExited):
            self.forget(event.agent_id)

    def _append(self, record: Record) -> None:
        self._records.append(record)
        self._size += len(record.text)
        if len(self._records) >= self.max_records + self.chunk or self._size > MAX_BYTES:
            self._drop(min(self.chunk, len(self._records) - 1))
        self._news.set()
        self.grown.set()

    def _drop(self, count: int) -> None:
        """Drop the oldest records; subscriptions that have not read them count what they would have seen."""
        end = self._base + count
        if end > self._seen:
            self.look()
        if any(one.cursor is not None and one.cursor < end for one in self.index):
            for at in range(count):
                record, place = self._records[at], self._base + at
                for one in self.index.candidates(record):
                    if one.cursor is not None and one.cursor <= place and one.sees_type(record):
                        one.lose(place)
        self._size -= sum(len(record.text) for record in self._records[:count])
        del self._records[:count]
        self._base = end

    # -- Reading ---------------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription. It sees what happens from now on, unless it has a place already."""
        self.look()
        self.index.add(subscription)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription; what waits for it is woken."""
        self.index.remove(subscription)
        subscription.filters.clear()
        subscription.wake()

    def change(self, subscription: Subscription) -> None:
        """Find the subscription by its present filters and rights."""
        self.index.remove(subscription)
        self.index.add(subscription)

    def forget(self, caller: int) -> None:
        """Remove what a caller polls: its life, or its connection, has ended."""
        if caller in self.polled:
            self.unsubscribe(self.polled.pop(caller))

    def judge_again(self) -> None:
        """The rules of some caller have changed: find subscriptions by the new ones soon, and wake what waits."""
        self._rules_changed = True
        self._news.set()

    def locate(self, since: int, boot: str | None) -> Start:
        """Where to read on after the event ``since`` of a boot; without ``boot`` of that which had this number."""
        place = self._base + bisect_right(self._records, since, key=attrgetter("seq"))
        if since == 0 and boot is None:
            return Start(place)
        if boot is None:
            found = [each for each in self.boots if each.first <= since + 1 and since < self.next][-1:]
        else:
            found = [each for each in self.boots if each.id == boot]
        if not found:
            return Start(place if since < self.next else self._base, boot_changed=True, cut_off=True)
        later = self.boots[self.boots.index(found[0]) :]
        cut_off = any(each.last is None for each in later[:-1])
        return Start(place, len(later) > 1, cut_off, self._count_lost(since, later))

    def _count_lost(self, since: int, boots: Sequence[Boot]) -> int:
        """How many events after ``since``, which is of the first of these boots, aren't kept, as far as is known."""
        lost, begin = 0, since + 1
        for each, following in zip_longest(boots, boots[1:]):
            first = bisect_left(self._records, begin, key=attrgetter("seq"))
            end = len(self._records)
            if following is not None:
                end = bisect_left(self._records, following.first, key=attrgetter("seq"))
            last = self.next - 1 if following is None else each.last
            if last is None:
                last = self._records[end - 1].seq if end > first else begin - 1
            lost += max(0, last - begin + 1 - (end - first))
            begin = following.first if following is not None else 0
        return lost

    def look(self) -> None:
        """Find out which subscriptions see the events that have come since the last look, and wake them."""
        begin, self._seen = self._seen, self.end
        if not len(self.index):
            return
        for place in range(begin, self._seen):
            record = self._records[place - self._base]
            for one in self.index.candidates(record):
                if one.cursor is None and one.sees_type(record):  # the others know already that they have to read
                    one.begin_at(place)

    def count_readers(self) -> int:
        """How many callers have a subscription that sees the last event."""
        last = self._records[-1]
        return len({one.viewer.caller for one in self.index.candidates(last) if one.sees_type(last)})

    async def serve(self) -> None:
        """Wake subscriptions soon after events that they see."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            if self._rules_changed:
                self._rules_changed = False
                await self._change_all()
            self.look()
            await trio.sleep(WAKE_SECONDS)

    async def _change_all(self) -> None:
        for count, subscription in enumerate(list(self.index), 1):
            if subscription in self.index:
                self.change(subscription)
                subscription.wake()
            if not count % CHANGES:
                await trio.lowlevel.checkpoint()

    async def read(self, subscription: Subscription, limit: int, size: int) -> Page:
        """Take what is unread: at most ``limit`` events and ``size`` bytes, but one if there is any."""
        async with subscription.turn:
            self.look()
            page = Page()
            done = self._scan(subscription, page, limit, size, FIRST_SCAN)
            while not done:
                async with self._turn:  # however many read at once, others wait for one of them
                    done = self._scan(subscription, page, limit, size, SCAN)
                    await trio.lowlevel.checkpoint()
            page.missed, subscription.missed = subscription.missed, 0
            return page

    def _scan(self, subscription: Subscription, page: Page, limit: int, size: int, most: int) -> bool:
        """Add to a page what is unread among the next records; whether the page is complete."""
        if subscription.cursor is None:
            return True
        place, now = max(subscription.cursor, self._base), time()
        for record in self._records[place - self._base : min(place + most, self._seen) - self._base]:
            if subscription.sees(record):
                text = record.encode(now)
                if page.events and page.size + len(text) > size:
                    break
                page.add(text, place)
            place += 1
            if len(page.events) >= limit:
                break
        else:
            subscription.cursor = place if place < self._seen else None
            return subscription.cursor is None
        subscription.cursor = place if place < self._seen else None
        return True
