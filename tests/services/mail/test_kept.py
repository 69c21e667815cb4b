"""Kept mailboxes against a real database: what is acknowledged is there when it is opened again."""

import gc
import sqlite3
import weakref
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, closing
from pathlib import Path

import pytest
import trio
from outcome import Outcome
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.database import Database, DatabaseError, open_database
from agentos.services import ids
from agentos.services.events import AgentEscalated, AgentExited, Event, MailDead
from agentos.services.ids import BLOCK, open_ids
from agentos.services.mail import copies, rows
from agentos.services.mail.mailbox import KEPT_BYTES, MAX_ATTEMPTS, MAX_MESSAGES, Mailbox, Message
from agentos.services.mail.mailboxes import MAX_EMPTY, Mailboxes
from agentos.services.mail.store import MailStore
from agentos_sdk.errors import Busy, NotFound, QuotaExceeded, Unavailable

FROM = {"ann": 3, "bob": 4, "taken": 5, "acknowledged": 6, "leased": 7, "waits": 8}  # ids of senders
SCHEMAS = {"ids": ids.TABLES, "mail": rows.TABLES, "snapshot_mail": copies.TABLES}


@asynccontextmanager
async def opened(place: Path, most: float = 1 << 20) -> AsyncIterator[tuple[Mailboxes, Database, list[Event]]]:
    """Mailboxes as they are after a start of the kernel, with one called ``box`` that is kept."""
    events = list[Event]()
    async with (
        open_database(place / "db", SCHEMAS) as database,
        open_ids(database, "messages", rows.GREATEST_ID) as numbers,
        trio.open_nursery() as nursery,
    ):
        mail = Mailboxes(events.append, MailStore(database, most), numbers)
        await mail.load()
        mail.open(7, "box", kept="box")
        nursery.start_soon(mail.leases.serve)
        yield mail, database, events
        nursery.cancel_scope.cancel()


async def locked(place: Path, database: Database) -> AbstractContextManager[sqlite3.Connection]:
    """Another program's lock, without which nothing can be written: the writer doesn't wait for it."""
    await database.write(lambda connection: connection.execute("PRAGMA busy_timeout = 0").fetchall())
    other = sqlite3.connect(place / "db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return closing(other)


async def send(mail: Mailboxes, text: str, sender: str = "ann", family: str = "ann") -> Message:
    """Send to ``box``, and return when that is acknowledged; raises what the sender is told."""
    told, results = trio.Event(), list[Outcome[None]]()

    def tell(result: Outcome[None]) -> None:
        results.append(result)
        told.set()

    body = f'"{text}"'.encode()
    message = Message(FROM[sender], sender, "agent", body, id=next(mail.numbers), family=family)
    mail.begin_post(mail.by_name("box"), message, tell)
    await told.wait()
    results[0].unwrap()
    return message


def texts(messages: list[Message]) -> list[str]:
    return [one.body.decode().strip('"') for one in messages]


async def take(mail: Mailboxes, lease: float | None = None, limit: int = 100) -> list[Message]:
    return await mail.leases.take(mail.by_name("box"), limit, lease)


async def test_messages_are_there_again_in_order_with_their_ids(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, _, _):
        sent = [await send(mail, text) for text in ("one", "two")]
        await mail.post_all(Message(3, "bob", "guest", b'"three"', family="bob"), [mail.by_id(7)])
    async with opened(tmp_path) as (mail, _, _):
        found = await take(mail)

    assert texts(found) == ["one", "two", "three"]
    assert [(one.id, one.from_name, one.sent_at, one.attempt) for one in found[:2]] == [
        (one.id, "ann", one.sent_at, 1) for one in sent
    ]
    assert (found[2].from_id, found[2].from_kind, found[2].family) == (3, "guest", "bob")


async def test_what_was_taken_or_acknowledged_does_not_come_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, _, _):
        for text in ("taken", "acknowledged", "leased", "waits"):
            await send(mail, text, sender=text)
        assert texts(await take(mail, limit=1)) == ["taken"]
        one, two = await take(mail, lease=60, limit=2)
        assert await mail.leases.acknowledge(mail.by_id(7), [one.id]) == 1
        assert two.attempt == 1
    async with opened(tmp_path) as (mail, _, _):
        found = await take(mail)

    assert [(text, one.attempt) for text, one in zip(texts(found), found, strict=True)] == [("leased", 2), ("waits", 1)]


async def test_a_message_that_could_not_be_delivered_waits_on_disk_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, _, _):
        await send(mail, "undelivered")
        await send(mail, "leased", sender="bob")
        mail.leases.put_back(mail.by_id(7), await take(mail, limit=1), leased=False)
        mail.leases.put_back(mail.by_id(7), await take(mail, lease=60), leased=True)
        assert texts(list(mail.by_id(7).messages)) == ["undelivered", "leased"]
    async with opened(tmp_path) as (mail, _, _):
        assert texts(await take(mail)) == ["undelivered", "leased"]


async def test_what_can_not_be_written_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, database, _):
        await send(mail, "there")
        box, size = mail.by_id(7), mail.by_id(7).size
        with await locked(tmp_path, database):
            [leased] = box.lease(box.take(1), trio.current_time() + 60)
            with pytest.raises(Unavailable):
                await mail.leases.acknowledge(box, [leased.message.id])
            assert list(box.leases) == [leased.message.id]
            box.end_leases([leased.message.id])
            for refused in (send(mail, "refused"), take(mail), take(mail, lease=60)):
                with pytest.raises(Unavailable):
                    await refused
            with pytest.raises(Unavailable):
                await mail.post_all(Message(3, "bob", "guest", b"1", family="bob"), [box])
        assert (texts(list(box.messages)), box.size, box.fits(size)) == (["there"], size, True)
        await send(mail, "again")
        assert texts(await take(mail)) == ["there", "again"]


async def test_kept_mail_counts_against_the_mailbox_and_the_senders_family(tmp_path: Path) -> None:
    most = 30 + KEPT_BYTES
    async with opened(tmp_path, most=most) as (mail, _, _):
        await send(mail, "x" * 18)
        with pytest.raises(QuotaExceeded, match="max_state_bytes"):
            await send(mail, "x" * 18)
        await send(mail, "x" * 18, family="bob")
        await send(mail, "x" * 18, family="")
    async with opened(tmp_path, most=most) as (mail, _, _):
        with pytest.raises(QuotaExceeded):
            await send(mail, "x" * 18)
        assert len(await take(mail)) == 3
        await send(mail, "x" * 18)
        for _ in range(MAX_MESSAGES - 1):
            await send(mail, "", family="")
        with pytest.raises(Busy):
            await send(mail, "", family="bob")


async def test_a_lease_that_ends_gives_the_message_back_first(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path) as (mail, _, _):
        for text in ("first", "second"):
            await send(mail, text)
        await send(mail, "of another", sender="bob")
        [leased] = await take(mail, lease=5, limit=1)
        assert texts(await take(mail, lease=60)) == ["of another"], "its sender's later message is held back"
        assert not mail.by_id(7).is_readable
        mock_clock.jump(5)
        await mail.by_id(7).wait()
        again = await take(mail, lease=60)
        assert (again[0].id, again[0].attempt) == (leased.id, 2)
        with pytest.raises(NotFound) as caught:
            await mail.leases.acknowledge(mail.by_id(7), [leased.id, 999])
        assert caught.value.details == {"acked": 1, "ids": [999]}
        assert texts([one.message for one in mail.by_id(7).leases.values()]) == ["of another", "second"]


async def test_acknowledging_wakes_a_reader_of_what_was_held_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, _, _):
        await send(mail, "first")
        await send(mail, "second")
        [leased] = await take(mail, lease=3600, limit=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mail.by_id(7).wait)
            await mail.leases.acknowledge(mail.by_id(7), [leased.id])
        assert texts(await take(mail)) == ["second"]


async def test_leases_that_are_acknowledged_leave_nothing_behind(tmp_path: Path) -> None:
    mail = Mailboxes()
    box = mail.open(7, "box")
    for number in range(3 * MAX_MESSAGES):
        box.put(Message(3, "ann", "agent", b"1", id=number + 1))
        await take(mail, lease=3600)
        await mail.leases.acknowledge(box, [number + 1])
    assert len(mail.leases._ends) <= MAX_MESSAGES


async def test_a_lease_whose_acknowledgement_failed_ends_in_time(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path) as (mail, database, _):
        box, sent = mail.by_id(7), await send(mail, "leased")
        await take(mail, lease=5)
        with await locked(tmp_path, database), pytest.raises(Unavailable):
            await mail.leases.acknowledge(box, [sent.id])
        mock_clock.jump(5)
        await box.wait()
        assert [(one.id, one.attempt) for one in await take(mail, lease=5)] == [(sent.id, 2)]


async def test_a_reader_that_has_gone_gives_back_no_lease_but_its_own(mock_clock: MockClock) -> None:
    mail = Mailboxes()
    box = mail.open(7, "box")
    box.put(Message(3, "ann", "agent", b"1", id=1))
    gone = await mail.leases.take(box, 1, 5)  # its reply waits in a full socket
    box.end_leases([1])
    [again] = await mail.leases.take(box, 1, 3600)
    mail.leases.put_back(box, gone, leased=True)
    assert (list(box.messages), again.attempt) == ([], 2)
    assert await mail.leases.acknowledge(box, [1]) == 1


async def test_a_closed_mailbox_with_leases_is_not_held_in_memory() -> None:
    mail = Mailboxes()
    box = mail.open(7)
    for number in (1, 2):
        box.put(Message(3, "ann", "agent", b"1", id=number))
    await mail.leases.take(box, 1, 3600)
    mail.close(7)

    gone = weakref.ref(box)
    del box
    gc.collect()
    assert gone() is None


async def test_each_reader_of_what_was_held_back_is_woken_in_turn() -> None:
    box, woken = Mailbox(1, []), list[int]()
    for number in range(1, 4):
        box.put(Message(3, "ann", "agent", b"1", id=number))
    box.lease(box.take(1), 60)

    async def read(number: int) -> None:
        await box.wait()
        woken.append(number)
        assert len(box.take(1)) == 1

    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(read, number)
            await wait_all_tasks_blocked()
        assert box.remove_leased([1])[0].id == 1
    assert woken == [0, 1]


async def test_a_message_in_flight_to_a_mailbox_that_is_kept_no_more_is_in_memory_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, database, _):
        box, told = mail.by_id(7), list[Outcome[None]]()
        message = Message(3, "ann", "agent", b'"late"', id=next(mail.numbers), family="ann")
        mail.begin_post(box, message, told.append)
        mail.keep(7, "box", False)
        await database.write(lambda connection: None)
        assert (texts(list(box.messages)), len(told), mail.store.sent if mail.store else None) == (["late"], 1, {})
    async with opened(tmp_path) as (mail, _, _):
        assert await take(mail) == []


async def test_the_end_of_a_life_ends_its_leases(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, _, _):
        sent = await send(mail, "leased")
        await take(mail, lease=3600)
        mail.end_life(AgentExited(8, "another", "exit status 1"))
        assert not mail.by_id(7).is_readable
        mail.end_life(AgentExited(7, "box", "killed by SIGKILL"))
        assert [(one.id, one.attempt) for one in await take(mail, lease=60)] == [(sent.id, 2)]


async def test_too_many_leases_make_a_dead_letter(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path) as (mail, _, events):
        sent = await send(mail, "poison")
        for _ in range(MAX_ATTEMPTS):
            assert len(await take(mail, lease=1)) == 1
            mock_clock.jump(2)
            await wait_all_tasks_blocked()
        assert await take(mail) == []
        assert [event for event in events if isinstance(event, MailDead)] == [
            MailDead(7, "box", sent.id, 3, "ann", MAX_ATTEMPTS)
        ]
    async with opened(tmp_path) as (mail, _, _):
        box = mail.by_id(7)
        assert (texts(list(box.dead)), await take(mail)) == (["poison"], [])
        assert await mail.requeue(box, [sent.id, 999]) == 1
    async with opened(tmp_path) as (mail, _, _):
        box = mail.by_id(7)
        assert [one.attempt for one in await take(mail, lease=1)] == [1]
        mail.end_life(AgentExited(7, "box", "exit status 1"))
        assert await mail.drop(box, [sent.id], dead=True) == 0
        assert await mail.drop(box, [sent.id], dead=False) == 1
    async with opened(tmp_path) as (mail, _, _):
        assert await take(mail) == []


async def test_a_message_that_killed_the_kernel_each_time_is_a_dead_letter(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, _, _):
        await send(mail, "poison")
    for _ in range(MAX_ATTEMPTS):
        async with opened(tmp_path) as (mail, _, _):  # a lease is in memory alone: it ends with the kernel
            assert len(await take(mail, lease=60)) == 1
    async with opened(tmp_path) as (mail, _, _):
        assert (await take(mail), texts(list(mail.by_id(7).dead))) == ([], ["poison"])


def test_the_oldest_dead_letters_make_room() -> None:
    box = Mailbox(1, [])
    box.dead.extend(Message(1, "ann", "agent", b"1", id=number) for number in range(MAX_MESSAGES + 2))

    assert [one.id for one in box.trim_dead()] == [0, 1]
    assert len(box.dead) == MAX_MESSAGES


async def test_mail_waits_for_a_name_that_is_not_declared_now(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, _, _):
        await send(mail, "waits")
        mail.close(7)
        with pytest.raises(NotFound):
            mail.by_name("box")
        assert texts(list(mail.find("box").messages)) == ["waits"]
        mail.open(8, "box")  # one in memory is another one
        assert await take(mail) == []
        mail.close(8)
        mail.open(9, "box", kept="box")
        assert (texts(await take(mail)), mail.by_id(9).name) == (["waits"], "box")


async def test_a_broadcast_that_is_being_written_is_one_message_also_if_its_receiver_is_declared_anew(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (mail, _, _):
        async with trio.open_nursery() as nursery:
            message = Message(3, "bob", "agent", b'"to all"', id=next(mail.numbers), family="bob")
            nursery.start_soon(mail.post_all, message, [mail.by_id(7)])
            await wait_all_tasks_blocked()
            mail.close(7)
            mail.open(8, "box", kept="box")
        assert texts(await take(mail)) == ["to all"]
    async with opened(tmp_path) as (mail, _, _):
        assert await take(mail) == [], "it was taken, and comes again"


@pytest.mark.parametrize("kept_again", [True, False])
async def test_what_is_acknowledged_while_its_mailbox_changes_is_gone_and_discharged(
    tmp_path: Path, kept_again: bool
) -> None:
    async with opened(tmp_path) as (mail, _, _):
        sent, store = await send(mail, "leased"), mail.store
        await take(mail, lease=60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mail.leases.acknowledge, mail.by_id(7), [sent.id])
            await wait_all_tasks_blocked()
            mail.keep(7, "box", False)
            if kept_again:
                mail.keep(7, "box", True)
        assert store is not None
        assert dict(store.sent) == {}
    async with opened(tmp_path) as (mail, _, _):
        assert await take(mail) == []


async def test_what_the_kernel_tells_children_is_charged_to_their_family(tmp_path: Path) -> None:
    async with opened(tmp_path, most=KEPT_BYTES + 200) as (mail, _, _):
        child = mail.open(8, "child", kept="boss/child")
        for spawner in (8, 8, 7, 7):
            mail.tell_spawner(AgentEscalated("root/spawned/a", "too many restarts", 9, "a", spawner=spawner))
        await send(mail, "written after those", family="")
        assert len(child.messages) == 1
        assert len(mail.by_id(7).messages) == 3, "of declared agents there are only so many"


async def test_mailboxes_of_ended_agents_are_forgotten_unless_they_have_messages(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, _, _):
        for number in range(2 * MAX_EMPTY + 2):
            box = mail.open(100 + number, "worker", kept=f"boss/{number}")
            if number == 1:
                await mail.post_all(Message(3, "bob", "agent", b'"waits"', family="bob"), [box])
            mail.close(100 + number)
        assert mail.find(f"boss/{2 * MAX_EMPTY}").id == 100 + 2 * MAX_EMPTY, "one of the latest"
        assert texts(list(mail.find("boss/1").messages)) == ["waits"]
        for forgotten in ("boss/0", "boss/2"):
            with pytest.raises(NotFound):
                mail.find(forgotten)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_mailbox_that_is_kept_from_now_on_or_no_more(tmp_path: Path, kept: bool) -> None:
    async with opened(tmp_path) as (mail, _, _):
        box = mail.open(8, "other", kept=None if kept else "other")
        if kept:
            box.put(Message(3, "bob", "agent", b'"before"', id=next(mail.numbers), family="bob"))
        else:
            await mail.post_all(Message(3, "bob", "agent", b'"before"', family="bob"), [box])
        mail.keep(8, "other", kept)
        assert texts(list(box.messages)) == ["before"]
        assert mail.count_unkept() == (0 if kept else 1)
    async with opened(tmp_path) as (mail, _, _):
        assert texts(list(mail.open(8, "other", kept="other").messages)) == (["before"] if kept else [])


async def test_a_message_that_is_withdrawn_before_it_is_written_leaves_no_trace(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, _, _):
        box, told = mail.by_id(7), list[Outcome[None]]()
        withdraw = mail.begin_post(box, Message(1, "ann", "agent", b"1", id=next(mail.numbers)), told.append)
        assert withdraw()
        await send(mail, "next")
        assert (texts(list(box.messages)), box.size, told) == (["next"], 6, [])


# -- Numbers -----------------------------------------------------------------------------------------------------------


async def test_numbers_go_on_after_an_orderly_end_and_never_come_twice(tmp_path: Path) -> None:
    given = list[int]()
    for _ in range(3):
        async with open_database(tmp_path / "db", SCHEMAS) as database, open_ids(database, "callers") as numbers:
            given += [next(numbers) for _ in range(BLOCK)]
            await database.write(lambda connection: None)
            given += [next(numbers) for _ in range(BLOCK)]

    assert given == list(range(1, 6 * BLOCK + 1))


async def test_numbers_that_a_kernel_had_and_gave_none_of_are_not_new(tmp_path: Path) -> None:
    async with open_database(tmp_path / "db", SCHEMAS) as database:
        found = []
        for _ in range(2):
            async with open_ids(database, "messages") as numbers:
                found.append(numbers.is_new)

    assert found == [True, False]


async def test_numbers_of_a_killed_kernel_are_skipped(tmp_path: Path) -> None:
    async with open_database(tmp_path / "db", SCHEMAS) as database, open_ids(database, "callers") as numbers:
        assert (next(numbers), numbers.is_new) == (1, True)
        async with open_ids(database, "callers") as following:  # as after a kill: the first was not given back
            assert (next(following), following.is_new) == (BLOCK + 1, False)
        async with open_ids(database, "messages") as others:
            assert next(others) == 1


async def test_numbers_begin_above_what_the_database_has(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mail, database, _):
        await send(mail, "there")
        await database.write(lambda connection: connection.execute("UPDATE mail SET id = 5000").fetchall())
    async with opened(tmp_path) as (mail, _, _):
        assert next(mail.numbers) == 5001


async def test_a_block_that_can_not_be_reserved_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_database(tmp_path / "db", SCHEMAS) as database, open_ids(database, "callers") as numbers:
        with await locked(tmp_path, database):
            for _ in range(BLOCK):
                next(numbers)
            with pytest.raises(DatabaseError, match="locked"):
                await database.write(lambda connection: None)
        assert "no more callers are reserved" in caplog.text
        last = next(numbers)
        await database.write(lambda connection: None)
        async with open_ids(database, "callers") as following:
            assert next(following) > last


@pytest.mark.parametrize("later", [False, True])
async def test_what_a_guest_was_sent_before_waits_behind_what_is_kept_for_it(tmp_path: Path, later: bool) -> None:
    async with opened(tmp_path) as (mail, _, _):
        mail.open(8)
        mail.adopt(8, "guest bob")
        await mail.post_all(Message(3, "ann", "agent", b'"kept"', family="ann"), [mail.by_id(8)])
        mail.close(8)
        boxes = [mail.open(number, name) for number, name in ((9, "bob"), (10, "eve"))]
        box = mail.by_id(9)
        box.put(Message(4, "bob", "agent", b'"leased"', id=next(mail.numbers), family="bob"))
        await mail.leases.take(box, 1, 60.0)
        if later:
            mail.adopt(9, "guest bob")
        copied = Message(3, "ann", "agent", b'"copied"', id=next(mail.numbers), family="ann")
        for each in boxes:  # of a call that has found them before
            each.put(copied)
        for number, name in ((9, "bob"), (10, "eve")):
            mail.adopt(number, f"guest {name}")
        assert mail.by_name("bob") is mail.by_id(9) is not box
        assert (texts(list(mail.by_id(10).messages)), mail.count_unkept()) == (["copied"], 0)
    async with opened(tmp_path) as (mail, _, _):
        with pytest.raises(NotFound):
            mail.find("bob")
        mail.open(9, "bob")
        mail.adopt(9, "guest bob")
        found = await mail.leases.take(mail.by_name("bob"), 100, None)
        assert [(text, one.attempt) for text, one in zip(texts(found), found, strict=True)] == [
            ("kept", 1),
            ("leased", 2),
            ("copied", 1),
        ]
        assert not mail.by_name("bob").size
        mail.open(10)
        mail.adopt(10, "guest eve")
        assert texts(await mail.leases.take(mail.by_id(10), 100, None)) == ["copied"]
        assert mail.store is not None
        assert not mail.store.sent


@pytest.mark.parametrize("family", ["ann", ""])
async def test_what_a_guest_was_sent_before_is_kept_within_the_limits_alone(tmp_path: Path, family: str) -> None:
    """Else each connection of a guest that has sent itself messages would add those to what is kept for it."""
    async with opened(tmp_path, most=(30 + KEPT_BYTES) * 2) as (mail, _, _):

        def fill(number: int, count: int) -> None:
            box = mail.open(number)
            for _ in range(count):
                box.put(Message(3, "ann", "guest", b"0", id=next(mail.numbers), family=family))

        for number, count in ((8, 2), (9, 0)):
            fill(number, count)
            mail.check_adoption(number, "guest bob")
            mail.adopt(number, "guest bob")
            mail.close(number)
        fill(10, 1 if family else MAX_MESSAGES)
        with pytest.raises(QuotaExceeded if family else Busy, match="read"):
            mail.check_adoption(10, "guest bob")
        await mail.leases.take(mail.by_id(10), MAX_MESSAGES, 60.0)
        with pytest.raises(QuotaExceeded if family else Busy, match="read"):  # leased ones are kept, too
            mail.check_adoption(10, "guest bob")
        await mail.leases.acknowledge(mail.by_id(10), [*mail.by_id(10).leases])
        mail.check_adoption(10, "guest bob")


@pytest.mark.parametrize(
    ("most", "size", "held"),
    [
        pytest.param(1 << 30, 10, MAX_MESSAGES, id="messages"),
        pytest.param(1 << 30, 1 << 20, 15, id="bytes"),
        pytest.param(5 * (10 + 2 + KEPT_BYTES), 10, 5, id="the quota of the sender's family"),
    ],
)
async def test_what_a_snapshot_gives_back_has_the_mailbox_s_limits(
    tmp_path: Path, most: float, size: int, held: int
) -> None:
    async with opened(tmp_path, most) as (mail, _, _):
        kept = copies.MailCopies(mail)
        for text in ("first", "second"):
            async with trio.open_nursery() as nursery:
                for _ in range(held - 1):
                    nursery.start_soon(send, mail, f"{text:{size}}")
            await kept.copy(text, "box")
            await take(mail, limit=MAX_MESSAGES) if size < 100 else [await take(mail) for _ in range(held)]
            assert mail.by_name("box").is_empty

        assert await kept.give_back("first", "box") == 0
        assert await kept.give_back("second", "box") == held - 2
        box = mail.by_name("box")
        assert (box.count, await kept.give_back("second", "box")) == (held, held - 2)

        await take(mail, limit=held - 1)
        while (left := box.count) > 1:
            await take(mail, limit=left - 1)
        assert await kept.give_back("second", "box") == 0, "what had no room was still in the snapshot"
        assert {text.strip() for text in texts([*box.messages])} == {"second"}
