"""Subscriptions: the events that one caller wants and may see, and its cursor in the ring."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

import trio
from attrs import define, evolve, field, frozen
from msgspec import Struct

from .record import KERNEL, Party, Record

Anchor: TypeAlias = int | str
ANY: Final = "any event"
GLOBAL_KEYS: Final = "global keys"
MAX_KNOWN = 1000  # names and keys about which a viewer remembers the decision


@frozen
class Filter:
    """Event types, exact or with ``*`` at the end; None: of any agent, and any key."""

    types: tuple[str, ...]
    agents: frozenset[int | str] | None = None
    prefix: str | None = None
    _exact: frozenset[str] = field(init=False, eq=False)
    _beginnings: tuple[str, ...] = field(init=False, eq=False)

    @_exact.default
    def _list_exact(self) -> frozenset[str]:
        return frozenset(one for one in self.types if not one.endswith("*"))

    @_beginnings.default
    def _list_beginnings(self) -> tuple[str, ...]:
        return tuple(one[:-1] for one in self.types if one.endswith("*"))

    def wants_type(self, kind: str) -> bool:
        return kind in self._exact or kind.startswith(self._beginnings)

    def matches(self, record: Record) -> bool:
        if self.prefix is not None and record.key is not None and not record.key.startswith(self.prefix):
            return False
        if self.agents is not None and self.agents.isdisjoint((*record.agent_ids, *record.names)):
            return False
        return self.wants_type(record.type)


class Sight(Struct, frozen=True):
    """What one caller may see.

    It sees events that concern one of its ``parties``, or an agent below one of them, and what parties ``above`` it
    emit. ``granted``: rules may grant it events of others; ``reads``: rules may grant it global keys. The operator
    ``sees_all``.
    """

    parties: frozenset[Party]
    above: frozenset[Party] = frozenset()
    granted: bool = False
    reads: bool = False
    sees_all: bool = False


class Versioned(Protocol):
    """The rules of all callers; ``version`` differs after each change."""

    @property
    def version(self) -> int: ...


class Judge(Protocol):
    """What rules say about one caller."""

    def sight(self) -> Sight: ...

    def shows_events(self, name: str) -> bool:
        """Whether events that concern an agent of that name may be seen."""

    def may_read(self, key: str) -> bool:
        """Whether this global key may be read."""


@define(eq=False)
class Viewer:
    """Decides what one caller sees of the log, by its present rules; remembers decisions until these change."""

    boot: str
    caller: int
    judge: Judge
    rules: Versioned
    _sight: Sight = field(init=False)
    _version: int = field(init=False)
    sees_all_in: int | None = field(init=False, default=None)  # the version of the rules by which it sees all
    _names: dict[str, bool] = field(factory=dict)
    _keys: dict[str, bool] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._look_up()

    def _look_up(self) -> None:
        self._version, self._sight = self.rules.version, self.judge.sight()
        self.sees_all_in = self._version if self._sight.sees_all else None

    @property
    def sight(self) -> Sight:
        if self._version != self.rules.version:
            self._look_up()
            self._names.clear()
            self._keys.clear()
        return self._sight

    def sees(self, record: Record) -> bool:
        """Whether the caller may see this event. Ids of an earlier boot are those of other callers."""
        sight = self.sight
        if sight.sees_all:
            return True
        if record.boot != self.boot:
            return False
        if record.key is not None:
            if record.key_scope == "global":
                return sight.reads and _remember(self._keys, record.key, self.judge.may_read)
            return not sight.parties.isdisjoint((*record.agent_ids, *record.above))
        if not sight.parties.isdisjoint((*record.agent_ids, *record.above)) or record.below in sight.above:
            return True
        return sight.granted and any(
            _remember(self._names, name, self.judge.shows_events) for name in record.names or (KERNEL,)
        )


def _remember(known: dict[str, bool], name: str, decide: Callable[[str], bool]) -> bool:
    found = known.get(name)
    if found is None:
        if len(known) >= MAX_KNOWN:
            known.clear()
        found = known[name] = decide(name)
    return found


@define(eq=False)
class Subscription:
    """The filters of one caller, and its cursor in the ring.

    ``cursor`` is the place of the first unread event, None if there is none. ``missed`` counts unread events that the
    ring has dropped. ``turn`` is held during a reading.
    """

    viewer: Viewer
    filters: list[Filter]
    cursor: int | None = None
    missed: int = 0
    turn: trio.Lock = field(factory=trio.Lock)
    _types: dict[str, bool] = field(factory=dict)  # whether a filter wants them
    _by_type: bool = field(init=False)  # the filters are of types alone
    _news: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._note_filters()

    def _note_filters(self) -> None:
        self._types.clear()
        self._by_type = all(one.agents is None and one.prefix is None for one in self.filters)

    @property
    def has_news(self) -> bool:
        return self.cursor is not None or self.missed > 0

    def sees(self, record: Record) -> bool:
        """Whether a filter matches this record and the caller may see it."""
        wanted = self._types.get(record.type)
        if wanted is None:
            wanted = self.wants_type(record.type)
        return wanted and self.sees_type(record)

    def sees_type(self, record: Record) -> bool:
        """Like :meth:`sees`, for a record of a wanted type.

        Filters come last: a caller may have many, also about agents of which it sees nothing.
        """
        viewer = self.viewer
        if self._by_type and viewer.sees_all_in == viewer.rules.version:
            return True
        return viewer.sees(record) and (self._by_type or any(one.matches(record) for one in self.filters))

    def wants_type(self, kind: str) -> bool:
        return _remember(self._types, kind, lambda kind: any(one.wants_type(kind) for one in self.filters))

    def add_filter(self, wanted: Filter) -> None:
        self.filters.append(wanted)
        self._note_filters()

    def begin_at(self, place: int) -> None:
        """Note an unread event at this place."""
        self.cursor = place if self.cursor is None else min(self.cursor, place)
        self.wake()

    def move(self, place: int) -> None:
        """Set the cursor to this place."""
        self.cursor, self.missed = place, 0
        self.wake()

    def put_back(self, place: int | None, missed: int) -> None:
        """Undo a reading: its reply has not arrived."""
        self.missed += missed
        if place is not None:
            self.begin_at(place)

    def wake(self) -> None:
        self._news.set()

    async def wait(self) -> None:
        """Wait until there may be unread events, or filters or rights have changed since the last wait."""
        if not self.has_news:
            news = self._news
            await news.wait()
            if self._news is news:
                self._news = trio.Event()

    def forget_types(self, types: Collection[str]) -> list[str]:
        """Remove these types from the filters; returns those that were in them."""
        wanted = [kind for one in self.filters for kind in one.types if kind in types]
        rest = (evolve(one, types=tuple(kind for kind in one.types if kind not in types)) for one in self.filters)
        self.filters = [one for one in rest if one.types]
        self._note_filters()
        return list(dict.fromkeys(wanted))

    def anchors(self) -> set[Anchor]:
        """The index keys under which its records are found; see :func:`anchors_of`."""
        found: set[Anchor] = set()
        for one in self.filters:
            if one.agents is not None:
                found.update(name_anchor(agent) if isinstance(agent, str) else agent for agent in one.agents)
                continue
            sight = self.viewer.sight
            if sight.sees_all or sight.granted:
                found.add(ANY)
            if sight.reads:
                found.add(GLOBAL_KEYS)
            found.update(sight.parties, map(below_anchor, sight.above))
        return found


def name_anchor(name: str) -> str:
    return f"name {name}"


def below_anchor(party: Party) -> str:
    return f"below {party}"


def anchors_of(record: Record) -> Iterator[Anchor]:
    """The anchors of all subscriptions that may see this record, and of some that don't."""
    yield ANY
    yield from record.agent_ids
    yield from record.above
    yield from map(name_anchor, record.names)
    if record.below is not None:
        yield below_anchor(record.below)
    if record.key is not None:
        yield GLOBAL_KEYS


@define(eq=False)
class Bucket:
    """The subscriptions of one anchor by what they want: types, and patterns with ``*`` at the end."""

    _by_type: dict[str, dict[Subscription, None]] = field(factory=dict)
    _by_pattern: dict[str, dict[Subscription, None]] = field(factory=dict)
    _patterns: dict[str, Sequence[str]] = field(factory=dict)  # that match, by the types of events that have come

    @property
    def is_empty(self) -> bool:
        return not self._by_type and not self._by_pattern

    def add(self, subscription: Subscription, types: Collection[str]) -> None:
        for one in types:
            wanted = self._find(one)
            if one not in wanted:
                wanted[one] = {}
                self._forget_patterns(one)
            wanted[one][subscription] = None

    def remove(self, subscription: Subscription, types: Collection[str]) -> None:
        for one in types:
            wanted = self._find(one)
            del wanted[one][subscription]
            if not wanted[one]:
                del wanted[one]
                self._forget_patterns(one)

    def _find(self, one: str) -> dict[str, dict[Subscription, None]]:
        return self._by_pattern if one.endswith("*") else self._by_type

    def _forget_patterns(self, one: str) -> None:
        if one.endswith("*"):
            self._patterns.clear()

    def of_type(self, kind: str) -> Iterator[Subscription]:
        """The subscriptions that want this type. Some come more than once."""
        yield from self._by_type.get(kind, ())
        if self._by_pattern:
            patterns = self._patterns.get(kind)
            if patterns is None:
                if len(self._patterns) >= MAX_KNOWN:
                    self._patterns.clear()
                patterns = self._patterns[kind] = [one for one in self._by_pattern if kind.startswith(one[:-1])]
            for one in patterns:
                yield from self._by_pattern[one]


class Index:
    """Finds the subscriptions that may see a record without looking at all of them."""

    def __init__(self) -> None:
        self._buckets: dict[Anchor, Bucket] = {}
        self._places: dict[Subscription, tuple[set[Anchor], frozenset[str]]] = {}  # anchors, and types

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._places)

    def __contains__(self, subscription: Subscription) -> bool:
        return subscription in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, subscription: Subscription) -> None:
        types = frozenset(kind for one in subscription.filters for kind in one.types)
        anchors = subscription.anchors()
        self._places[subscription] = anchors, types
        for anchor in anchors:
            self._buckets.setdefault(anchor, Bucket()).add(subscription, types)

    def remove(self, subscription: Subscription) -> None:
        anchors, types = self._places.pop(subscription)
        for anchor in anchors:
            bucket = self._buckets[anchor]
            bucket.remove(subscription, types)
            if bucket.is_empty:
                del self._buckets[anchor]

    def candidates(self, record: Record) -> Iterator[Subscription]:
        """The subscriptions that may see this record: they want its type. Some come more than once."""
        for anchor in anchors_of(record):
            bucket = self._buckets.get(anchor)
            if bucket is not None:
                yield from bucket.of_type(record.type)
