"""Values, versions, expiry and quotas in a database on disk; times are those of the machine."""

import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from outcome import Error, Outcome, Value, acapture

from agentos.database import open_database
from agentos.services.events import Event, StateChanged, discard
from agentos.services.state.batch import Change, StateLimits
from agentos.services.state.giving_way import GIVES_WAY, MAX_BYTES_GIVING_WAY, MAX_KEYS_GIVING_WAY
from agentos.services.state.rows import TABLES
from agentos.services.state.spaces import GLOBAL, end_of_prefix, list_accounts
from agentos.services.state.state import State
from agentos_sdk.errors import Conflict, QuotaExceeded
from tests.support.wire import PATIENCE

LIMITS = StateLimits(3, 100)


@asynccontextmanager
async def opened(
    place: Path, limits: StateLimits = LIMITS, published: list[Event] | None = None
) -> AsyncIterator[State]:
    async with open_database(place / "db", {"state": TABLES}) as database:
        yield await State.load(database, limits, discard if published is None else published.append)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A wall clock that stands still; calling it moves it."""
    now = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


async def store(
    kept: State,
    key: str,
    value: bytes = b"1",
    *,
    space: str = GLOBAL,
    account: str = "a",
    ttl: float | None = None,
    if_version: int | None = None,
    caller: int | None = None,
) -> int:
    ended, outcomes = trio.Event(), list[Outcome[int]]()

    def done(outcome: Outcome[int]) -> None:
        outcomes.append(outcome)
        ended.set()

    kept.begin_store(Change(space, key, value, account, ttl, if_version, caller), done)
    await ended.wait()
    return outcomes[0].unwrap()


async def used(kept: State, account: str) -> tuple[int, int]:
    def read(connection: sqlite3.Connection) -> tuple[int, int]:
        row = connection.execute("SELECT keys, bytes FROM state_accounts WHERE name = ?", (account,)).fetchone()
        return row or (0, 0)

    return await kept.database.write(read)


async def test_versions_of_a_space_never_go_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as kept:
        assert [await store(kept, key) for key in ("x", "y", "x")] == [1, 2, 3]
        assert await kept.delete(GLOBAL, "x", None)
        assert await store(kept, "x") == 4
        assert await store(kept, "x", space="a") == 1
    async with opened(tmp_path) as kept:
        assert await kept.delete(GLOBAL, "x", None)
        assert await store(kept, "x") == 5


async def test_a_change_of_another_version_is_a_conflict_and_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as kept:
        assert await store(kept, "x", if_version=0) == 1
        with pytest.raises(Conflict) as raised:
            await store(kept, "x", b"2", if_version=0)
        assert raised.value.details == {"version": 1}
        with pytest.raises(Conflict) as raised:
            await kept.delete(GLOBAL, "x", 7)
        assert raised.value.details == {"version": 1}
        with pytest.raises(Conflict) as raised:
            await store(kept, "nothing", if_version=3)
        assert raised.value.details == {"version": 0}

        found = await kept.fetch([GLOBAL], "x")

    assert found is not None
    assert (found.value, found.version) == (b"1", 1)


async def test_of_many_changes_to_the_same_version_one_succeeds(tmp_path: Path) -> None:
    won, lost = list[int](), list[int]()

    async def change(number: int) -> None:
        try:
            await store(kept, "x", b"%d" % number, if_version=1)
            won.append(number)
        except Conflict:
            lost.append(number)

    async with opened(tmp_path) as kept:
        await store(kept, "x")
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(change, number)
        found = await kept.fetch([GLOBAL], "x")

    assert (len(won), len(lost)) == (1, 49)
    assert found is not None
    assert found.value == b"%d" % won[0]


async def test_the_first_space_that_has_the_key_counts(tmp_path: Path) -> None:
    async with opened(tmp_path) as kept:
        await store(kept, "x", b'"global"')
        await store(kept, "x", b'"own"', space="a")

        first, second = await kept.fetch(["a~1", "a", GLOBAL], "x"), await kept.fetch(["b", GLOBAL], "x")

        assert first is not None
        assert second is not None
        assert (first.space, first.value, second.space, second.value) == ("a", b'"own"', GLOBAL, b'"global"')
        assert await kept.fetch(["b"], "x") is None


async def test_a_key_does_not_exist_from_the_instant_of_its_expiry(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    async with opened(tmp_path) as kept:
        await store(kept, "x", ttl=10.0)
        clock(9.999)
        assert await kept.fetch([GLOBAL], "x") is not None
    async with opened(tmp_path) as kept:
        assert await kept.keys(GLOBAL, [""], "", 10) == ["x"]
        clock(0.001)
        assert await kept.fetch([GLOBAL], "x") is None
        assert await kept.keys(GLOBAL, [""], "", 10) == []
        assert not await kept.delete(GLOBAL, "x", 0)
        await store(kept, "x", ttl=10.0)
        clock(10)
        assert await store(kept, "x", if_version=0) == 3


async def test_a_sweep_removes_expired_keys_and_the_sessions_that_have_ended(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    async with opened(tmp_path) as kept:
        ended, lasting = kept.session(1, "a"), kept.session(2, "a")
        await store(kept, "x", ttl=1.0)
        await store(kept, "y", space=ended)
        await store(kept, "z", space=lasting)
        clock(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.serve)
            kept.end_session(1)
            while await used(kept, "a") != (1, 2):
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

        assert kept.session(1, "a") not in (ended, lasting)
        assert await kept.fetch([lasting], "z") is not None
    async with opened(tmp_path) as kept:
        assert await used(kept, "a") == (0, 0)


async def test_a_sweep_that_waited_in_the_queue_keeps_the_sessions_that_began_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentos.database.MAX_QUEUED_UNITS", 2)
    go_on = threading.Event()
    async with opened(tmp_path) as kept, trio.open_nursery() as nursery:
        ended = kept.session(1, "a")
        await store(kept, "gone", space=ended)
        kept.database.begin(lambda connection: go_on.wait(PATIENCE), lambda outcome: None)
        for _ in range(4):
            kept.begin_store(Change(GLOBAL, "x", b"1", "", None, None), lambda outcome: None)
        kept.end_session(1)
        nursery.start_soon(kept.serve)
        await trio.testing.wait_all_tasks_blocked()  # the sweep waits for room in the queue

        begun = kept.session(2, "a")
        kept.begin_store(Change(begun, "mine", b"1", "a", None, None), lambda outcome: None)
        go_on.set()
        while await kept.fetch([ended], "gone") is not None:
            await trio.sleep(0.01)

        assert await kept.fetch([begun], "mine") is not None
        nursery.cancel_scope.cancel()


async def test_each_change_is_published_before_its_call_returns_and_what_fails_is_not(tmp_path: Path) -> None:
    published = list[Event]()
    async with opened(tmp_path, published=published) as kept:
        session = kept.session(7, "boss/a")
        await store(kept, "x")
        assert published == [StateChanged("global", "x", 1, None, False, account="a")]
        with pytest.raises(Conflict):
            await store(kept, "x", if_version=7)
        with pytest.raises(QuotaExceeded):
            await store(kept, "y", b"1" * 101)
        await store(kept, "own", space="boss/a", account="boss/a")
        await store(kept, "mine", space=session, account="boss/a")
        assert await kept.delete("boss/a", "own", None)
        assert not await kept.delete("boss/a", "own", None)
        kept.end_session(7)
        await store(kept, "own", space="boss/a", account="boss/a")

    assert published[1:] == [
        StateChanged("agent", "own", 1, 7, False, account="boss/a"),
        StateChanged("session", "mine", 1, 7, False, account="boss/a"),
        StateChanged("agent", "own", 1, 7, True, account="boss/a"),
        StateChanged("agent", "own", 2, None, False, account="boss/a"),
    ]


async def test_a_change_of_a_global_key_is_charged_to_its_caller(tmp_path: Path) -> None:
    published = list[Event]()
    async with opened(tmp_path, published=published) as kept:
        kept.session(7, "boss/a")
        await store(kept, "x", account="boss/a")
        await kept.delete(GLOBAL, "x", None, "boss/a")
        await store(kept, "y", account="")

    assert published == [
        StateChanged("global", "x", 1, None, False, charged_to=7, account="boss/a"),
        StateChanged("global", "x", 1, None, True, charged_to=7, account="boss/a"),
        StateChanged("global", "y", 2, None, False),
    ]


async def test_each_of_several_connections_of_a_guest_owns_its_changes_and_the_latest_left_those_without_caller(
    tmp_path: Path,
) -> None:
    published = list[Event]()
    async with opened(tmp_path, published=published) as kept:
        sessions = {number: kept.session(number, "guest g") for number in (7, 8, 9)}
        for space in (sessions[7], "guest g", GLOBAL):
            await store(kept, "x", space=space, account="guest g", caller=7)
        kept.end_session(9)
        for space in (sessions[7], "guest g", GLOBAL):
            await store(kept, "x", space=space, account="guest g")

    changes = [event for event in published if isinstance(event, StateChanged)]
    assert [event.owner_id for event in changes] == [7, 7, None, 7, 8, None]
    assert [event.charged_to for event in changes] == [None, None, 7, None, None, 8]


async def test_the_expiry_of_a_key_names_the_account_that_stored_it(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    published = list[Event]()
    async with opened(tmp_path, published=published) as kept:
        kept.session(7, "b")
        for account in ("a", "b"):
            await store(kept, account, account=account, ttl=1.0)
        clock(1)
        await store(kept, "x", b"1" * 99, account="c")  # with its key as many bytes as there may be
        with pytest.raises(QuotaExceeded):
            await store(kept, "y", account="c")

    assert [event for event in published if isinstance(event, StateChanged) and event.deleted] == [
        StateChanged("global", "a", 1, None, True, None, "a"),
        StateChanged("global", "b", 2, None, True, 7, "b"),
    ]


async def test_changes_of_many_callers_are_published_in_the_order_of_their_versions(tmp_path: Path) -> None:
    published = list[Event]()
    async with opened(tmp_path, published=published) as kept, trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(store, kept, "x")

    assert [event.version for event in published if isinstance(event, StateChanged)] == list(range(1, 101))


async def test_an_expired_key_is_published_as_deleted_once_soon_after(tmp_path: Path) -> None:
    published = list[Event]()
    async with opened(tmp_path, published=published) as kept, trio.open_nursery() as nursery:
        nursery.start_soon(kept.serve)
        await store(kept, "lasting")
        await store(kept, "later", ttl=100.0)
        expires = time.time() + 0.2
        await store(kept, "x", ttl=0.2)
        while not published[3:]:
            await trio.sleep(0.01)
        assert time.time() >= expires
        await store(kept, "y", ttl=0.001)
        while not published[5:]:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()

    assert published[3:] == [
        StateChanged("global", "x", 3, None, True, account="a"),
        StateChanged("global", "y", 4, None, False, account="a"),
        StateChanged("global", "y", 4, None, True, account="a"),
    ]


async def test_what_expires_to_make_room_is_published_before_what_gets_the_room(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    published = list[Event]()
    async with opened(tmp_path, published=published) as kept:
        for key in "xyz":
            await store(kept, key, ttl=5.0)
        clock(5)
        assert not await kept.delete(GLOBAL, "x", None)
        await store(kept, "w")

    assert {event.key for event in published[3:6] if isinstance(event, StateChanged) and event.deleted} == set("xyz")
    assert published[6:] == [StateChanged("global", "w", 4, None, False, account="a")]


async def test_a_quota_is_of_keys_and_bytes_and_what_is_deleted_or_replaced_is_free_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as kept:
        for key in "xyz":
            await store(kept, key)
        with pytest.raises(QuotaExceeded, match=r"'a'.* 3 keys"):
            await store(kept, "one too many")
        await kept.delete(GLOBAL, "x", None)
        with pytest.raises(QuotaExceeded, match=r"100 bytes"):
            await store(kept, "x", b"1" * 96)
        await store(kept, "x", b"1" * 95)
        await store(kept, "x", b"1")
        assert await used(kept, "a") == (3, 6)


async def test_expired_keys_count_in_no_quota(tmp_path: Path, clock: Callable[[float], None]) -> None:
    async with opened(tmp_path) as kept:
        for key in "xyz":
            await store(kept, key, ttl=5.0)
        with pytest.raises(QuotaExceeded):
            await store(kept, "w")
        clock(5)
        for key in "wvu":
            await store(kept, key)
        with pytest.raises(QuotaExceeded):
            await store(kept, "x")


async def test_an_agent_counts_what_it_spawned_as_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as kept:
        for child in ("a/b", "a/c", "a/c/d"):
            await store(kept, "x", space=child, account=child)
        with pytest.raises(QuotaExceeded, match="'a'"):
            await store(kept, "x", space="a/e", account="a/e")
        await store(kept, "x", space="ab", account="ab")
        assert [await used(kept, name) for name in ("a", "a/b", "a/c", "a/c/d", "ab")] == [
            *((3, 6), (1, 2), (2, 4), (1, 2), (1, 2))
        ]


async def test_a_key_is_charged_to_the_account_that_stored_it_last(tmp_path: Path) -> None:
    async with opened(tmp_path) as kept:
        await store(kept, "x", account="a/b")
        await store(kept, "x", account="c")
        assert [await used(kept, name) for name in ("a", "a/b", "c")] == [(0, 0), (0, 0), (1, 2)]
        await store(kept, "x", account="")
        assert await used(kept, "c") == (0, 0)


async def test_keys_come_in_order_by_prefix_and_page(tmp_path: Path) -> None:
    keys = ["a", "a.", "a.b", "a.ü", "a.\U0010ffff", "b", "y1", "y2", "z\U0010ffff\U0010ffff"]
    async with opened(tmp_path, StateLimits(100, 1000)) as kept:
        for key in reversed(keys):
            await store(kept, key)

        assert await kept.keys(GLOBAL, [""], "", 100) == keys
        assert await kept.keys(GLOBAL, ["a."], "", 100) == keys[1:5]
        assert await kept.keys(GLOBAL, ["a.\U0010ffff"], "", 100) == [keys[4]]
        assert await kept.keys(GLOBAL, ["z\U0010ffff"], "", 100) == [keys[-1]]
        assert await kept.keys(GLOBAL, ["a"], "a.", 2) == keys[2:4]
        assert await kept.keys(GLOBAL, ["a.b", "b", "c"], "", 100) == ["a.b", "b"]
        assert await kept.keys(GLOBAL, ["a.", "b", "z"], "a.ü", 2) == [keys[4], "b"]
        assert await kept.keys(GLOBAL, ["b", "y"], "", 2) == ["b", "y1"]
        assert await kept.keys(GLOBAL, [], "", 100) == []


async def test_what_a_former_guest_without_a_name_stored_counts_for_no_later_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as kept:
        await store(kept, "shared", account="guest guest#7/w")
        await store(kept, "own", space="guest guest#7", account="guest guest#7")
        await store(kept, "named", account="guest ada")

    async with opened(tmp_path) as kept:
        assert await used(kept, "guest guest#7") == await used(kept, "guest guest#7/w") == (0, 0)
        assert await used(kept, "guest ada") == (1, 6)
        assert await kept.keys(GLOBAL, [""], "", 10) == ["named", "shared"]
        assert await kept.keys("guest guest#7", [""], "", 10) == []
        await store(kept, "shared", account="guest guest#7")
        assert await used(kept, "guest guest#7") == (1, 7)


async def test_keys_that_are_deleted_and_fetched_together_each_have_their_own_outcome(tmp_path: Path) -> None:
    results = dict[str, Outcome[bool]]()

    async def delete(key: str, if_version: int | None) -> None:
        results[key] = await acapture(kept.delete, GLOBAL, key, if_version)

    async with opened(tmp_path, StateLimits(100, 1000)) as kept:
        for key in ("a", "b", "c"):
            await store(kept, key)
        async with trio.open_nursery() as nursery:
            for key, if_version in (("a", None), ("b", 7), ("c", 3), ("none", None)):
                nursery.start_soon(delete, key, if_version)
        assert await kept.keys(GLOBAL, [""], "", 10) == ["b"]
        assert await used(kept, "a") == (1, 2)

    assert [results[key] for key in ("a", "c", "none")] == [Value(True), Value(True), Value(False)]
    assert isinstance(refused := results["b"], Error)
    assert isinstance(refused.error, Conflict)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXTS, TEXTS)
def test_the_end_of_a_prefix_is_behind_all_that_begin_with_it(prefix: str, other: str) -> None:
    end = end_of_prefix(prefix)

    assert other.startswith(prefix) == (other >= prefix and (end is None or other < end))


def test_the_accounts_of_a_guests_agent() -> None:
    assert list_accounts("guest ada/w/x") == ["guest ada", "guest ada/w", "guest ada/w/x"]
    assert list_accounts("") == []


def giving_way(number: int) -> str:
    return f"{GIVES_WAY}{number:011x}"


async def kept_of(kept: State, space: str) -> list[str]:
    return await kept.keys(space, [""], "", 1000)


@pytest.mark.parametrize(
    "limits", [StateLimits(3, 10_000), StateLimits(100, 3 * len(giving_way(0)) + 3)], ids=["keys", "bytes"]
)
@pytest.mark.parametrize("account", ["a", "a/b", "a/b/c"])
async def test_values_that_give_way_are_removed_for_any_other_the_oldest_first(
    limits: StateLimits, account: str, tmp_path: Path
) -> None:
    async with opened(tmp_path, limits) as kept:
        for number in (3, 1, 2):
            await store(kept, giving_way(number), space="a/b~1", account="a/b")
        await store(kept, "another", account="z")
        await store(kept, "asked", account=account)

        assert await kept_of(kept, "a/b~1") == [giving_way(2), giving_way(3)]
        assert await kept_of(kept, GLOBAL) == ["another", "asked"]
        assert (await used(kept, "a/b"))[0] == (2 if account == "a" else 3)
        assert (await used(kept, "a"))[0] == 3


async def test_a_value_for_which_nothing_gives_way_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, StateLimits(2, 10_000)) as kept:
        session = kept.session(7, "b")
        await store(kept, giving_way(1), space=session, account="b")
        await store(kept, giving_way(1), space="a", account="a")  # no session's
        await store(kept, "x")
        with pytest.raises(QuotaExceeded):
            await store(kept, "y")

        assert [await kept_of(kept, space) for space in (session, "a")] == [[giving_way(1)]] * 2


@pytest.mark.parametrize("key", ["asked", giving_way(2), giving_way(9)], ids=["another", "in place", "giving way"])
@pytest.mark.parametrize("account", ["a", "a/b", "a/c"])
async def test_nothing_gives_way_to_a_value_that_is_refused_all_the_same(
    account: str, key: str, tmp_path: Path
) -> None:
    async with opened(tmp_path, StateLimits(100, 1000)) as kept:
        filled = kept.session(7, "a/b")
        session = filled if account == "a/b" else kept.session(8, account)
        for number in (1, 2, 3):
            await store(kept, giving_way(number), space=filled, account="a/b")
        before = await used(kept, "a")
        with pytest.raises(QuotaExceeded):
            await store(kept, key, b"1" * 1001, space=session, account=account)

        assert await kept_of(kept, filled) == [giving_way(1), giving_way(2), giving_way(3)]
        assert await used(kept, "a") == before


ROOM = 1000 - 3 * (len(giving_way(0)) + 100) - len("asked")  # bytes, if one of four values gives way


@pytest.mark.parametrize(("size", "left"), [(500, 3), (ROOM, 3), (ROOM + 1, 2)])
async def test_no_more_gives_way_than_a_value_needs(size: int, left: int, tmp_path: Path) -> None:
    async with opened(tmp_path, StateLimits(100, 1000)) as kept:
        for number in range(4):
            await store(kept, giving_way(number), b"1" * 100, space="a~1")
        await store(kept, "asked", b"1" * size)

        assert await kept_of(kept, "a~1") == [giving_way(number) for number in range(4 - left, 4)]


@pytest.mark.parametrize(("size", "left"), [(1, MAX_KEYS_GIVING_WAY), (MAX_BYTES_GIVING_WAY // 3, 2)])
async def test_a_session_has_so_many_values_that_give_way_and_no_more(size: int, left: int, tmp_path: Path) -> None:
    last = left + 2
    async with opened(tmp_path, StateLimits(1000, 1 << 30)) as kept:
        await store(kept, "asked", space="a~1")
        for number in range(last + 1):
            await store(kept, giving_way(number), b"1" * size, space="a~1")

        found = await kept_of(kept, "a~1")

        assert found == ["asked", *map(giving_way, range(last + 1 - left, last + 1))]
        assert (await used(kept, "a"))[0] == left + 1
