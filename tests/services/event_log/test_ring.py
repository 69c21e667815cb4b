"""The ring of events: numbers, places of subscriptions, what is missed, and who sees what."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec.structs import replace
from trio.testing import MockClock

from agentos.services.event_log.record import Party
from agentos.services.event_log.ring import CHUNK, MAX_RECORDS, MAX_UNSEEN, EventLog
from agentos.services.event_log.subscription import Filter, Sight, Subscription, Viewer
from agentos.services.events import AgentExited, AgentReady, CustomEvent, MessageReceived, ModelAvailable, StateChanged
from agentos_sdk.values import Scope
from tests.support.call_counts import count_calls

EVERYTHING = Filter(("*",))


@define
class Rules:
    """A caller's rules."""

    sees: Sight
    names: set[str] = field(factory=set)
    keys: set[str] = field(factory=set)
    version: int = 0

    def sight(self) -> Sight:
        return replace(self.sees, granted=bool(self.names), reads=bool(self.keys))

    def shows_events(self, name: str) -> bool:
        return name in self.names

    def may_read(self, key: str) -> bool:
        return key in self.keys


def watch(log: EventLog, *filters: Filter, rules: Rules | None = None) -> Subscription:
    """A subscription of a caller with these rules, or of the operator."""
    rules = rules if rules is not None else Rules(Sight(frozenset(), sees_all=True))
    found = Subscription(Viewer(log.boot, 1, rules, rules), list(filters or [EVERYTHING]))
    log.subscribe(found)
    return found


def agent(*parties: Party, above: Sequence[Party] = ()) -> Sight:
    return Sight(frozenset(parties), frozenset(above))


async def read(log: EventLog, subscription: Subscription, limit: int = 100_000, size: int = 1 << 30) -> Any:
    page = await log.read(subscription, limit, size)
    return [json.loads(each) for each in page.events], page.missed


async def types(log: EventLog, subscription: Subscription) -> Sequence[str]:
    events, missed = await read(log, subscription)
    assert missed == 0
    return [event["type"] for event in events]


async def test_an_event_has_all_its_fields() -> None:
    log = EventLog(boot="b0", first=7)
    everything = watch(log)
    log.take_event(AgentReady(3, "w", 12))

    [event], missed = await read(log, everything)

    at, age = event.pop("at"), event.pop("age_ms")
    assert at > 1e9
    assert age >= 0
    assert missed == 0
    assert event == {
        "type": "AGENT_READY",
        "data": {"agent_id": 3, "name": "w", "pid": 12},
        "source_agent_id": 3,
        "seq": 7,
        "boot": "b0",
        "severity": "info",
    }


async def test_a_subscription_begins_now_and_gets_each_event_once() -> None:
    log = EventLog()
    log.take_event(AgentReady(1, "before", 1))
    subscription = watch(log)
    for number in range(3):
        log.take_event(AgentReady(number, "x", number))

    pages = [await read(log, subscription, 2) for _ in range(3)]

    assert [[event["seq"] for event in events] for events, _ in pages] == [[2, 3], [4], []]
    assert not subscription.has_news


async def test_filters_are_of_types_agents_and_keys() -> None:
    log = EventLog()
    by_type = watch(log, Filter(("AGENT_*", "custom.b")))
    by_name, by_id = watch(log, Filter(("*",), frozenset(["w"]))), watch(log, Filter(("*",), frozenset([2])))
    by_key = watch(log, Filter(("STATE_CHANGED", "AGENT_READY"), prefix="plan."))
    log.take_event(AgentReady(1, "w", 1))
    log.take_event(MessageReceived(2, "v", 1, "w", 5))
    log.take_event(CustomEvent(1, "w", "custom.b", msgspec.Raw(b"{}")))
    log.take_event(StateChanged("global", "plan.a", 1, None, False))
    log.take_event(StateChanged("global", "other", 1, None, False))

    assert await types(log, by_type) == ["AGENT_READY", "custom.b"]
    assert await types(log, by_name) == ["AGENT_READY", "custom.b"]
    assert await types(log, by_id) == ["MESSAGE_RECEIVED"]
    assert await types(log, by_key) == ["AGENT_READY", "STATE_CHANGED"]


async def test_an_agent_sees_what_concerns_itself_its_subtree_and_what_is_granted() -> None:
    above: dict[int, tuple[Party, ...]] = {2: (1,), 3: (2, 1)}
    log = EventLog(lambda number: above.get(number, ()))
    top, middle, other = (watch(log, rules=Rules(agent(number))) for number in (1, 2, 9))
    granted = watch(log, rules=Rules(agent(8), names={"low"}))
    reader = watch(log, rules=Rules(agent(7), keys={"open"}))
    log.take_event(AgentExited(3, "low", "ended"))
    log.take_event(StateChanged("agent", "mine", 1, 3, False))
    log.take_event(StateChanged("global", "open", 1, None, False))
    log.take_event(StateChanged("global", "shut", 1, None, False))

    assert await types(log, top) == ["AGENT_EXITED"]
    assert await types(log, middle) == ["AGENT_EXITED"]
    assert await types(log, other) == []
    assert await types(log, granted) == ["AGENT_EXITED"]
    assert await types(log, reader) == ["STATE_CHANGED"]


async def test_a_private_key_concerns_its_owner_by_name_and_is_shown_to_no_one_else() -> None:
    log = EventLog(lambda number: (1,) if number == 3 else ())
    by_name = [watch(log, Filter(("*",), frozenset([name]))) for name in ("low", "ada", "top", "kernel")]
    owner, above = (
        watch(log, Filter(("*",), frozenset(["low"])), rules=Rules(agent(number), keys={"*"})) for number in (3, 1)
    )
    granted = watch(log, Filter(("*",), frozenset(["low"])), rules=Rules(agent(8), names={"low"}, keys={"mine", "x"}))
    log.take_event(StateChanged("agent", "mine", 1, 3, False, account="top/low"))
    log.take_event(StateChanged("session", "ours", 1, 5, False, account="guest ada"))
    log.take_event(StateChanged("global", "x", 1, None, False, charged_to=3))

    assert [await types(log, one) for one in by_name] == [["STATE_CHANGED"], ["STATE_CHANGED"], [], []]
    assert await types(log, owner) == ["STATE_CHANGED"]
    assert (await types(log, above), await types(log, granted)) == ([], [])


async def test_what_is_emitted_reaches_those_above_and_below() -> None:
    above: dict[int, tuple[Party, ...]] = {2: (1,), 3: (2, 1), 4: (1,)}
    log = EventLog(lambda number: above.get(number, ()))
    seen = {number: watch(log, rules=Rules(agent(number, above=above.get(number, ())))) for number in (1, 2, 3, 4, 9)}
    log.take_event(CustomEvent(2, "w", "CUSTOM", msgspec.Raw(b"1")))

    reached = {number for number, subscription in seen.items() if await types(log, subscription)}

    assert reached == {1, 2, 3}


async def test_a_slow_reader_loses_the_oldest_and_is_told_how_many_it_would_have_seen() -> None:
    log = EventLog()
    readies, everything = watch(log, Filter(("AGENT_READY",))), watch(log)
    total = MAX_RECORDS + 5 * CHUNK
    for number in range(total):
        log.take_event(AgentReady(1, "x", 1) if number % 2 else MessageReceived(1, "x", 1, "x", 1))

    events, missed = await read(log, readies)
    assert len(events) + missed == total // 2
    assert missed >= 2 * CHUNK
    events, missed = await read(log, everything)
    assert len(events) + missed == total
    assert events[-1]["seq"] == total
    assert len(events) >= MAX_RECORDS
    assert await read(log, everything) == ([], 0)


@pytest.mark.parametrize("text", [b"1", b'"%s"' % (b"x" * 16_000)], ids=["small", "large"])
async def test_what_one_caller_does_crowds_out_no_event_of_others(text: bytes) -> None:
    tree: dict[int, tuple[Party, ...]] = {1: (), 2: (), 3: (2,), 4: (2,), 5: (4, 2)}
    log = EventLog(lambda caller: tree.get(caller, ()))
    late, quiet = watch(log), watch(log, Filter(("AGENT_READY",)))
    for number in range(500):  # of agent 1, and of agent 3, which has the same parent as the noisy one
        log.take_event(AgentReady(1 + number % 2 * 2, "x", 1))
    for number in range(3 * MAX_RECORDS):
        if number < MAX_RECORDS:
            log.take_event(CustomEvent(4 + number % 2, "noisy", "CUSTOM", msgspec.Raw(text)))
        else:
            log.take_event(MessageReceived(2, "boss", 5, "noisy", 1))

    events, missed = await read(log, quiet)
    assert ([event["seq"] for event in events], missed) == (list(range(1, 501)), 0)
    events, missed = await read(log, late)
    assert len(events) + missed == 500 + 3 * MAX_RECORDS
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert events[-1]["seq"] == 500 + 3 * MAX_RECORDS
    assert MAX_RECORDS / 2 < len(events) < MAX_RECORDS + CHUNK


async def test_changes_of_global_keys_crowd_out_no_event_of_the_kernel() -> None:
    log = EventLog()
    kernel = watch(log, Filter(("MODEL_AVAILABLE",)))
    log.take_event(ModelAvailable("p", "m"))
    for number in range(2 * MAX_RECORDS):
        log.take_event(StateChanged("global", "x", number, None, deleted=False, charged_to=4))

    events, missed = await read(log, kernel)

    assert ([event["seq"] for event in events], missed) == ([1], 0)
    [change] = log.list_from(log.next - 1, 1)
    assert (change.source_agent_id, b"charged_to" in change.text) == (0, False)


async def test_changes_of_keys_without_a_connected_caller_crowd_out_only_those_of_their_account() -> None:
    log = EventLog()
    log.find_family = lambda charged: charged.partition("/")[0] if isinstance(charged, str) else charged
    log.take_event(ModelAvailable("p", "m"))
    log.take_event(StateChanged("global", "x", 1, None, deleted=True, account="other"))
    for number in range(2 * MAX_RECORDS):
        scope: Scope = "agent" if number % 2 else "global"
        log.take_event(StateChanged(scope, "x", 2, None, deleted=True, account=f"boss/{number % 3}"))
        if not number % 100:
            log.take_event(StateChanged("global", "x", 2, None, deleted=False))

    kept = log.list_from(1, 2)

    assert [record.seq for record in kept] == [1, 2]
    assert len(log.list_from(1, 2 * MAX_RECORDS)) < MAX_RECORDS + CHUNK


async def test_all_callers_of_an_account_see_changes_of_its_private_keys() -> None:
    log = EventLog(lambda number: ("guest ada",) if number == 3 else ())
    one, other = (watch(log, rules=Rules(agent(number, "guest ada", "account guest ada"))) for number in (1, 2))
    spawned = watch(log, rules=Rules(agent(3, "account guest ada/worker")))
    log.take_event(StateChanged("agent", "shared", 1, 1, False, account="guest ada"))
    log.take_event(StateChanged("session", "own", 1, 1, False, account="guest ada"))
    log.take_event(StateChanged("agent", "secret", 1, 3, False, account="guest ada/worker"))

    seen = [[event["data"]["key"] for event in (await read(log, each))[0]] for each in (one, other, spawned)]

    assert seen == [["shared", "own"], ["shared"], ["secret"]]


async def test_filters_about_agents_that_a_caller_does_not_see_do_not_make_their_events_slow() -> None:
    log = EventLog()
    kinds = (*(f"custom.x{number}*" for number in range(98)), "AGENT_*", "STATE_CHANGED")
    filters = [Filter(kinds, frozenset(range(100)), f"no{number}") for number in range(32)]
    for _ in range(20):
        watch(log, *filters, rules=Rules(agent(7)))
    for _ in range(25):
        log.take_event(AgentReady(99, "victim", 1))
        log.take_event(StateChanged("agent", "key", 1, 7, False))

    calls = count_calls(log.look)

    assert calls["Filter.matches"] == 20 * 25 * 32  # not for the victim's events
    assert calls["Filter.wants_type"] == 0  # which compares with each of 98 beginnings


async def test_a_number_above_all_others_hides_nothing_that_comes() -> None:
    log = EventLog()
    subscription = watch(log)

    subscription.move(log.locate(1 << 62, log.boot).place)
    log.take_event(AgentReady(1, "x", 1))

    assert await types(log, subscription) == ["AGENT_READY"]


async def test_the_sizes_of_a_page_are_bounds() -> None:
    log = EventLog()
    subscription = watch(log)
    for _ in range(3):
        log.take_event(CustomEvent(1, "w", "CUSTOM", msgspec.Raw(b'"%s"' % (b"x" * 1000))))

    pages = [len((await read(log, subscription, size=size))[0]) for size in (10, 2600, 1200)]

    assert pages == [1, 2, 0]


@asynccontextmanager
async def serving(log: EventLog) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.serve)
        yield nursery
        nursery.cancel_scope.cancel()


async def test_a_reader_that_is_busy_is_woken_when_it_waits_next(autojump_clock: MockClock) -> None:
    log = EventLog()
    subscription = watch(log)
    async with serving(log):
        log.judge_again()
        await trio.sleep(1)

        with trio.fail_after(1):
            await log.wait(subscription)
        with trio.move_on_after(1) as waited:
            await log.wait(subscription)
        assert waited.cancelled_caught


async def test_what_came_before_a_reader_waits_wakes_it_and_what_comes_meanwhile(autojump_clock: MockClock) -> None:
    log = EventLog()
    subscription = watch(log)
    async with serving(log) as nursery:
        log.take_event(AgentReady(1, "w", 1))
        await trio.sleep(1)
        with trio.fail_after(1):
            await log.wait(subscription)
        assert (await read(log, subscription))[0]

        nursery.start_soon(log.wait, subscription)
        await trio.sleep(1)
        log.take_event(AgentReady(2, "w", 1))
        await trio.sleep(1)
        assert len(nursery.child_tasks) == 1, "the reader was woken"


async def test_while_no_reader_waits_many_events_are_looked_at_together(autojump_clock: MockClock) -> None:
    log = EventLog()
    subscription = watch(log)
    async with serving(log):
        for number in range(MAX_UNSEEN - 1):
            log.take_event(AgentReady(number, "w", 1))
        await trio.sleep(1)
        assert not subscription.has_news
        log.take_event(AgentReady(0, "w", 1))
        await trio.sleep(1)
        assert subscription.has_news


async def test_rules_that_change_hold_for_what_is_unread_and_for_what_comes() -> None:
    log, rules = EventLog(), Rules(agent(9), names={"w"})
    subscription = watch(log, rules=rules)
    log.take_event(AgentReady(1, "w", 1))
    log.take_event(AgentReady(2, "v", 1))
    log.look()
    rules.names, rules.version = {"v"}, 1

    assert await types(log, subscription) == ["AGENT_READY"]
    async with serving(log):
        rules.names, rules.keys, rules.version = set(), {"k"}, 2
        log.judge_again()
        await trio.testing.wait_all_tasks_blocked()
        log.take_event(StateChanged("global", "k", 1, None, False))
        log.take_event(AgentReady(2, "v", 1))
        assert await types(log, subscription) == ["STATE_CHANGED"]


async def test_a_reply_that_has_not_arrived_is_read_again() -> None:
    log = EventLog()
    subscription = watch(log)
    for number in range(5):
        log.take_event(AgentReady(number, "w", 1))
    await log.read(subscription, 2, 1 << 20)
    page = await log.read(subscription, 2, 1 << 20)
    subscription.put_back(page.place, page.missed)

    events, _ = await read(log, subscription)

    assert [event["seq"] for event in events] == [3, 4, 5]


class LogMachine(RuleBasedStateMachine):
    """A log with a small ring, and a list of everything: a subscription gets what it sees, in order, or misses it."""

    def __init__(self) -> None:
        super().__init__()
        self.log, self.published = EventLog(), list[tuple[int, str]]()
        self.readers: list[tuple[Subscription, frozenset[str], list[int]]] = []

    @initialize(size=st.integers(1, 30))
    def bound(self, size: int) -> None:
        self.log.max_records, self.log.chunk = size, max(1, size // 4)

    @rule(names=st.frozensets(st.sampled_from("abc"), min_size=1), types=st.sampled_from([("*",), ("AGENT_*",)]))
    def subscribe(self, names: frozenset[str], types: tuple[str, ...]) -> None:
        subscription = watch(self.log, Filter(types, names))
        self.readers.append((subscription, names, []))
        self.readers[-1][2].append(self.log.next)

    @rule(name=st.sampled_from("abc"), count=st.integers(1, 12))
    def publish(self, name: str, count: int) -> None:
        for _ in range(count):
            self.published.append((self.log.next, name))
            self.log.take_event(AgentReady(1, name, 1))

    @rule(at=st.integers(0, 5), limit=st.integers(1, 20))
    def read(self, at: int, limit: int) -> None:
        if at < len(self.readers):
            subscription, names, state = self.readers[at]
            page = trio.run(self.log.read, subscription, limit, 1 << 20)
            got = [json.loads(event)["seq"] for event in page.events]
            wanted = [seq for seq, name in self.published if name in names and seq >= state[-1]]
            assert got == wanted[page.missed : page.missed + len(got)]
            assert page.missed + len(got) == len(wanted) or len(got) == limit
            if wanted and page.missed + len(got):
                state.append(wanted[page.missed + len(got) - 1] + 1)


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_an_event_costs_the_same_however_many_subscriptions_there_are_of_others() -> None:
    def cost(others: int) -> Mapping[str, int]:
        log = EventLog()
        for number in range(others):
            watch(log, Filter((f"custom.other{number % 7}",)))
        watch(log, Filter(("custom.this",)))

        def publish() -> None:
            log.take_event(CustomEvent(1, "w", "custom.this", msgspec.Raw(b"1")))
            log.look()

        publish()  # the ids and names of the caller are kept from the first of its events on
        return count_calls(publish)

    assert cost(1000) == cost(1)
