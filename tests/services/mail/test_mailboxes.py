"""Mailboxes against a model of a few lines, and readers that wait in them."""

import json
from collections import deque

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from trio.testing import wait_all_tasks_blocked

from agentos.services.events import AgentEscalated, AgentExited, Event, MessageReceived
from agentos.services.mail.mailbox import MAX_BATCH_BYTES, MAX_BYTES, MAX_MESSAGES, Mailbox, Message
from agentos.services.mail.mailboxes import MAX_NAMES, Mailboxes
from agentos_sdk.errors import AlreadyExists, BadRequest, Busy, NotFound
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

SIZES = st.sampled_from(
    [0, 1, 10, 1 << 10, MAX_BATCH_BYTES // 2, MAX_BATCH_BYTES - 1, MAX_BATCH_BYTES, MAX_BATCH_BYTES + 1, MAX_BYTES]
)


def message(text: str | bytes = b"1") -> Message:
    return Message(1, "somebody", "agent", text.encode() if isinstance(text, str) else text)


def box() -> Mailbox:
    return Mailbox(1, [])


def bodies(messages: list[Message]) -> list[bytes]:
    return [each.body for each in messages]


class MailboxModel(RuleBasedStateMachine):
    """What went in comes out once and in order, within the limits; what was put back comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.box = box()
        self.model: deque[bytes] = deque()
        self.out: list[Message] = []

    @rule(size=SIZES, many=st.sampled_from([1, 1, 1, 3, 400]))
    def put(self, size: int, many: int) -> None:
        body = bytes(size)
        for _ in range(many):
            fits = len(self.model) < MAX_MESSAGES and sum(map(len, self.model)) + size <= MAX_BYTES
            assert self.box.fits(size) == fits
            if fits:
                self.box.put(message(body))
                self.model.append(body)
            else:
                with pytest.raises(Busy):
                    self.box.put(message(body))
                return

    @rule(most=st.sampled_from([1, 2, 10, 5000]))
    def take(self, most: int) -> None:
        expected: list[bytes] = []
        while self.model and len(expected) < most:
            if expected and sum(map(len, expected)) + len(self.model[0]) > MAX_BATCH_BYTES:
                break
            expected.append(self.model.popleft())
        self.out = self.box.take(most)
        assert bodies(self.out) == expected

    @precondition(lambda self: self.out)
    @rule()
    def put_back(self) -> None:
        self.box.put_back(self.out)
        self.model.extendleft(reversed(bodies(self.out)))
        self.out = []

    @invariant()
    def it_knows_its_size(self) -> None:
        assert self.box.size == sum(map(len, self.model))
        assert bodies(list(self.box.messages)) == list(self.model)


TestMailboxModel = MailboxModel.TestCase
TestMailboxModel.settings = settings(max_examples=rounds(40), stateful_step_count=30)


def test_messages_that_are_held_back_stay_in_order() -> None:
    holder = box()
    for number, (sender, name) in enumerate([(3, "ann"), (3, "ann"), (4, "bob"), (3, "ann")], start=1):
        holder.put(Message(sender, name, "agent", b"1", id=number))
    holder.lease(holder.take(1), 60)

    assert [each.id for each in holder.take(10)] == [3]
    holder.remove_leased([1])
    assert [each.id for each in holder.take(10)] == [2, 4]


async def test_one_message_wakes_one_reader_and_the_one_that_waited_longest() -> None:
    mailbox, woken = box(), list[int]()

    async def read(number: int) -> None:
        await mailbox.wait()
        woken.append(number)
        mailbox.take(1)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(read, number)
            await wait_all_tasks_blocked()
        for count in range(3):
            mailbox.put(message())
            await wait_all_tasks_blocked()
            assert woken == list(range(count + 1))


async def test_as_many_readers_wake_as_messages_are_put_back() -> None:
    mailbox, taken = box(), list[bytes]()
    for text in ("a", "b", "c"):
        mailbox.put(message(text))
    out = mailbox.take(3)

    async def read() -> None:
        await mailbox.wait()
        taken.extend(bodies(mailbox.take(1)))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read)
            await wait_all_tasks_blocked()
            mailbox.put_back(out)

    assert sorted(taken) == [b"a", b"b", b"c"]


async def test_a_reader_that_is_cancelled_with_the_wake_up_in_hand_passes_it_on() -> None:
    mailbox, woken = box(), list[str]()

    async def read(name: str, scope: trio.CancelScope) -> None:
        with scope:
            await mailbox.wait()
            woken.append(name)

    first, second = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, "first", first)
        await wait_all_tasks_blocked()
        nursery.start_soon(read, "second", second)
        await wait_all_tasks_blocked()
        first.cancel()
        mailbox.put(message())
        await wait_all_tasks_blocked()
        second.cancel()

    assert woken == ["second"]
    assert len(mailbox.messages) == 1


async def test_a_reader_that_another_reader_forestalled_waits_on() -> None:
    mailbox = box()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.wait)
        await wait_all_tasks_blocked()

        mailbox.put(message())
        mailbox.take(1)
        await wait_all_tasks_blocked()
        assert nursery.child_tasks

        mailbox.put(message())


async def test_a_cancelled_reader_leaves_no_trace() -> None:
    mailbox = box()
    with trio.CancelScope() as scope:
        scope.cancel()
        await mailbox.wait()

    mailbox.put(message())

    assert not mailbox._readers
    assert len(mailbox.messages) == 1


def test_a_mailbox_is_found_by_its_id_and_by_each_of_its_names() -> None:
    mail = Mailboxes()
    mine = mail.open(7, "agent")

    mail.register(7, "nickname")

    assert mail.by_id(7) is mail.by_name("agent") is mail.by_name("nickname") is mine
    assert mine.name == "nickname"
    with pytest.raises(NotFound):
        mail.by_id(8)
    with pytest.raises(NotFound):
        mail.by_name("nobody")


def test_a_name_belongs_to_one_mailbox_until_that_is_closed() -> None:
    mail = Mailboxes()
    mail.open(1, "one")
    mail.open(2)

    with pytest.raises(AlreadyExists):
        mail.register(2, "one")
    mail.close(1)
    mail.register(2, "one")

    assert mail.by_name("one").id == 2
    assert not mail.is_taken("two")


def test_the_name_registered_last_is_the_one_messages_are_sent_under() -> None:
    mail = Mailboxes()
    mine = mail.open(1, "a")
    mail.register(1, "b")

    mail.register(1, "a")

    assert mine.name == "a"
    assert mail.open(2).name == "#2"


def test_a_mailbox_has_a_bounded_number_of_names() -> None:
    mail = Mailboxes()
    mail.open(1)
    for n in range(MAX_NAMES):
        mail.register(1, f"n{n}")

    with pytest.raises(BadRequest, match="name: "):
        mail.register(1, "one-more")
    mail.register(1, "n0")


def test_closing_twice_or_what_never_was_is_no_error() -> None:
    mail = Mailboxes()
    mail.open(1, "a")

    mail.close(1)
    mail.close(1)
    mail.close(99)

    assert list(mail) == []


async def test_a_broadcast_goes_to_all_that_are_wanted_and_have_room() -> None:
    mail = Mailboxes()
    for number, name in ((1, "sender"), (2, "free"), (3, "full")):
        mail.open(number, name)
    for _ in range(MAX_MESSAGES):
        mail.by_id(3).put(message())

    delivered, full = await mail.post_all(message("all"), [each for each in mail if each.id != 1])

    assert (delivered, full) == (1, ["full"])
    assert bodies(list(mail.by_id(2).messages)) == [b"all"]
    assert not mail.by_id(1).messages


def test_a_spawner_is_told_that_its_agent_was_given_up() -> None:
    boxes = Mailboxes()
    spawner = boxes.open(7, "spawner")

    boxes.tell_spawner(AgentEscalated("root/spawned/a", "too many restarts", 9, "a", spawner=7))
    boxes.tell_spawner(AgentEscalated("root/b", "declared: it has no spawner", 10, "b"))
    boxes.end_life(AgentExited(9, "a", "exit status 1"))

    [message] = spawner.messages
    assert (message.from_id, message.from_name, message.from_kind) == (0, "kernel", "kernel")
    assert json.loads(message.body) == {
        "event": "AGENT_ESCALATED",
        "agent_id": 9,
        "name": "a",
        "reason": "too many restarts",
    }


def test_an_escalation_to_a_full_or_closed_mailbox_is_dropped() -> None:
    boxes = Mailboxes()
    full = boxes.open(7, "full")
    for _ in range(MAX_MESSAGES):
        full.put(message())

    for spawner in (7, 8):
        boxes.tell_spawner(AgentEscalated("root/spawned/a", "too many restarts", 9, "a", spawner))

    assert len(full.messages) == MAX_MESSAGES


async def test_each_message_that_a_mailbox_accepts_is_published_without_its_text() -> None:
    published = list[Event]()
    mail = Mailboxes(published.append)
    one, other = mail.open(7, "one"), mail.open(8)

    one.put(message("hello"))
    assert await mail.post_all(message("to all"), [one, other]) == (2, [])
    one.put_back(one.take(2))
    other.size = MAX_BYTES
    assert await mail.post_all(message("to all"), [other]) == (0, ["#8"])

    assert published == [
        MessageReceived(7, "one", 1, "somebody", 5),
        MessageReceived(7, "one", 1, "somebody", 6),
        MessageReceived(8, "#8", 1, "somebody", 6),
    ]


async def test_a_held_mailbox_hands_out_nothing_until_it_is_released() -> None:
    held, told, got = box(), list[int](), list[bytes]()
    held.on_message = lambda: told.append(len(held.messages))
    held.held = True

    async def read() -> None:
        await held.wait()
        got.extend(bodies(held.take(10)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        held.put(message("1"))
        await wait_all_tasks_blocked()
        assert (held.take(1), got, told) == ([], [], [1])

        held.release()

    assert got == [b"1"]
    assert held.taken == 1


def test_the_owner_is_told_of_messages_that_no_reader_waits_for() -> None:
    mailbox, told = box(), list[int]()
    mailbox.on_message = lambda: told.append(len(mailbox.messages))

    mailbox.put(message())
    mailbox.put_back(mailbox.take(1))

    assert told == [1, 1]
    assert mailbox.taken == 0
