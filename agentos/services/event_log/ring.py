"""Ring of the last events, shared by all subscriptions; each subscription has a cursor in it.

An event is encoded once and appended, at the same cost for any number of subscriptions. A task finds the subscriptions
that see new events by an index and wakes them; others aren't touched. A cursor is the number of an event, or of the
next one.

A full ring drops the oldest records of the callers that fill most of it, so that none crowds out the events of others:
see :mod:`.shares`. A record is never changed.
"""

import secrets
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import zip_longest
from operator import attrgetter
from time import time
from typing import Final

import trio
from attrs import define, field, frozen
from msgspec import Struct

from agentos.services.events import AgentExited, AgentOver, Event, StateChanged

from .record import OPERATOR, Party, Record, Share, number
from .records import describe
from .shares import choose_cuts
from .subscription import Index, Subscription

MAX_RECORDS: Final = 10_000
RECORD_BYTES: Final = 1600  # of a text: a longer one counts as several records, so all together are within 16 MiB
CHUNK: Final = 64  # records that are dropped at a time, in 0.2 ms where ten subscriptions miss each
WAKE_SECONDS: Final = 0.01  # between two searches for subscriptions to wake
MAX_UNSEEN: Final = 500  # events that nobody was told of: then they are looked at, though no task waits
CHANGES: Final = 50  # subscriptions that are indexed anew between two checkpoints
FIRST_SCAN: Final = 100  # records that a reader examines before it takes turns with other readers
SCAN: Final = 500  # … between two checkpoints: under 1 ms

Above = Callable[[int], tuple[Party, ...]]
"""Returns the parties above a caller, by its id: all its ancestors."""

FindFamily = Callable[[Party], Party]
"""Returns the family of a caller, by its id, or of an account, by its name: all that share one part of a full ring."""

Free = Callable[[int], Awaitable[int]]
"""Removes files with events of former runs until so many bytes are free on disk; returns how many are."""


async def _free_nothing(wanted: int) -> int:
    """For a log without files."""
    return 0


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
    """One run of a kernel: its id and the numbers of its first and last event. ``last`` None: it was killed or runs."""

    id: str
    first: int
    last: int | None = None


@frozen
class Start:
    """The place of the first event after a given one.

    ``boot_changed``: the given event is of an earlier run. ``cut_off``: the last events of that run, or of a later one,
    may be lost without a count. ``missed`` is how many events in between are no longer kept.
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
        self.find_family: FindFamily = self._find_outermost
        self.boot = boot if boot is not None else secrets.token_hex(4)
        self.boots = [*earlier, Boot(self.boot, first)]
        self.free: Free = _free_nothing
        self.grown = trio.Event()  # set with each event
        self.next = first  # the number of the next event
        self.index = Index()
        self.polled: dict[int, Subscription] = {}  # by the id of the caller that polls it
        self._records = list(records)
        self._shares = Counter[Share]()  # records by what they are charged to
        for record in records:
            self._shares[record.share] += size_of(record)
        self._size = self._shares.total()
        self._seen = first  # the place up to which subscriptions were looked up
        self._news = trio.Event()
        self._waiting = 0  # tasks that wait for unread events
        self.max_records, self.chunk = MAX_RECORDS, CHUNK
        self._turn = trio.Lock()  # of readers that examine many records
        self._rules_changed = False
        if self._size > self.max_records:
            self._drop(self._size - self.max_records)

    def list_from(self, place: int, limit: int) -> Sequence[Record]:
        """The records from a place on that are kept."""
        begin = self._find(place)
        return self._records[begin : begin + limit]

    def _find(self, place: int) -> int:
        """The index of the first record from a place on."""
        return bisect_left(self._records, place, key=attrgetter("seq"))

    # -- Publishing ------------------------------------------------------------------------------------------------

    def take_event(self, event: Event) -> None:
        """Append an event if the log keeps its type. Subscribes to :class:`~agentos.services.events.Events`."""
        draft = describe(event)
        if draft is None:
            if isinstance(event, AgentOver):
                self.forget(event.agent_id)
            return
        above, source = draft.parties, draft.source_agent_id
        for caller in draft.agent_ids:
            above += self.above(caller)
        below = None if not draft.emitted else draft.parties[0] if draft.parties else source
        charged: Party = source if draft.charged_to is None else draft.charged_to
        if isinstance(event, StateChanged):
            # All callers of an account share its private keys. No change of a key crowds out the kernel's own events.
            above = (f"account {event.account}",) if event.scope == "agent" else ()
            charged = charged or event.account or OPERATOR
        share = below if isinstance(below, str) else self.find_family(charged), charged
        record = number(draft, self.next, self.boot, above, below, share)
        self.next += 1
        self._append(record)
        if isinstance(event, AgentExited):
            self.forget(event.agent_id)

    def _find_outermost(self, charged: Party) -> Party:
        return charged if isinstance(charged, str) else (charged, *self.above(charged))[-1]

    def _append(self, record: Record) -> None:
        size = size_of(record)
        self._records.append(record)
        self._shares[record.share] += size
        self._size += size
        if self._size >= self.max_records + self.chunk:
            self._drop(self._size - self.max_records)
        if len(self.index) and (self._waiting or self.next - self._seen >= MAX_UNSEEN):
            self._news.set()
        self.grown.set()

    def _drop(self, excess: int) -> None:
        """Drop records; subscriptions that have not read them count what they would have seen."""
        self.look()
        cuts, wanted = choose_cuts(self._shares, excess), self._size - excess
        kept, dropped = list[Record](), 0
        for record in self._records:
            share = record.share
            if cuts.get(share, 0) <= 0:
                kept.append(record)
                continue
            size, dropped = size_of(record), dropped + 1
            cuts[share] -= size
            self._shares[share] -= size
            if not self._shares[share]:
                del self._shares[share]
            self._size -= size
            for one in set(self.index.candidates(record)):
                if one.cursor is not None and one.cursor <= record.seq and one.sees_type(record):
                    one.missed += 1
            if self._size <= wanted:
                break
        self._records[: len(kept) + dropped] = kept

    # -- Reading ---------------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription. It sees what happens from now on, unless it has a place already."""
        self.look()
        self.index.add(subscription)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription, and wake the task that waits for it."""
        self.index.remove(subscription)
        subscription.filters.clear()
        subscription.wake()

    def change(self, subscription: Subscription) -> None:
        """Index a subscription anew after its filters or rights have changed."""
        self.index.remove(subscription)
        self.index.add(subscription)

    def forget(self, caller: int) -> None:
        """Remove what a caller polls: its life, or its connection, has ended."""
        if caller in self.polled:
            self.unsubscribe(self.polled.pop(caller))

    def judge_again(self) -> None:
        """Index and wake all subscriptions soon, because some caller's rules have changed."""
        self._rules_changed = True
        self._news.set()

    def locate(self, since: int, boot: str | None) -> Start:
        """Return where to read on after the event ``since`` of a boot, of the boot that gave this number if None."""
        place = min(since + 1, self.next)
        if since == 0 and boot is None:
            return Start(place)
        if boot is None:
            found = [each for each in self.boots if each.first <= since + 1 and since < self.next][-1:]
        else:
            found = [each for each in self.boots if each.id == boot]
        if not found:
            return Start(place if since < self.next else 0, boot_changed=True, cut_off=True)
        later = self.boots[self.boots.index(found[0]) :]
        cut_off = any(each.last is None for each in later[:-1])
        return Start(place, len(later) > 1, cut_off, self._count_lost(since, later))

    def _count_lost(self, since: int, boots: Sequence[Boot]) -> int:
        """How many events after ``since``, which is of the first of these boots, aren't kept, as far as is known."""
        lost, begin = 0, since + 1
        for each, following in zip_longest(boots, boots[1:]):
            first = self._find(begin)
            end = len(self._records) if following is None else self._find(following.first)
            last = self.next - 1 if following is None else each.last
            if last is None:
                last = self._records[end - 1].seq if end > first else begin - 1
            lost += max(0, last - begin + 1 - (end - first))
            begin = following.first if following is not None else 0
        return lost

    def look(self) -> None:
        """Find out which subscriptions see the events that have come since the last look, and wake them."""
        begin, self._seen = self._seen, self.next
        if begin == self._seen or not len(self.index):
            return
        for record in self._records[self._find(begin) :]:
            for one in self.index.candidates(record):
                if one.cursor is None and one.sees_type(record):  # the others have unread events already
                    one.begin_at(record.seq)

    def count_readers(self) -> int:
        """How many callers have a subscription that sees the last event."""
        last = self._records[-1]
        return len({one.viewer.caller for one in self.index.candidates(last) if one.sees_type(last)})

    async def wait(self, subscription: Subscription) -> None:
        """Wait until there may be unread events, or filters or rights have changed since the last wait."""
        self.look()
        self._waiting += 1
        try:
            await subscription.wait()
        finally:
            self._waiting -= 1

    async def serve(self) -> None:
        """Wake subscriptions soon after events that they see, if a task waits for one of them."""
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
        """Take unread events: at most ``limit`` and ``size`` bytes, but at least one if there is any."""
        async with subscription.turn:
            self.look()
            page = Page()
            done = self._scan(subscription, page, limit, size, FIRST_SCAN)
            while not done:
                async with self._turn:  # other tasks wait for one reader at a time only
                    done = self._scan(subscription, page, limit, size, SCAN)
                    await trio.lowlevel.checkpoint()
            page.missed, subscription.missed = subscription.missed, 0
            return page

    def _scan(self, subscription: Subscription, page: Page, limit: int, size: int, most: int) -> bool:
        """Add unread events among the next records to a page; returns whether the page is complete."""
        if subscription.cursor is None:
            return True
        begin, end, now = self._find(subscription.cursor), self._find(self._seen), time()
        at = min(begin + most, end)
        for index in range(begin, at):
            record = self._records[index]
            if not subscription.sees(record):
                continue
            text = record.encode(now)
            full = bool(page.events) and page.size + len(text) > size
            if not full:
                page.add(text, record.seq)
            if full or len(page.events) >= limit:
                at = index if full else index + 1
                self._stop_at(subscription, at, end)
                return True
        self._stop_at(subscription, at, end)
        return subscription.cursor is None

    def _stop_at(self, subscription: Subscription, index: int, end: int) -> None:
        """A subscription has read up to the record with this index; nothing is unread if that is the ``end``."""
        subscription.cursor = self._records[index].seq if index < end else None


def size_of(record: Record) -> int:
    """The room that it takes: 1, or more for a long text."""
    return 1 + len(record.text) // RECORD_BYTES
