"""The waker: what starts an agent, when one is idle, and what comes while it ends. With a clock of its own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import define, field
from msgspec import Raw
from msgspec.structs import replace

from agentos.agents.life.lifecycle import State
from agentos.agents.registry import Agent, Registry
from agentos.agents.tree.tracker import Tracker
from agentos.agents.waking.schedule import OnEvent
from agentos.agents.waking.turns import MAX_STARTING, SLOW_SECONDS
from agentos.agents.waking.waker import Waker
from agentos.services.event_log.ring import EventLog
from agentos.services.events import (
    AgentExited,
    AgentFailed,
    AgentReady,
    AgentSpawned,
    ConfigReloaded,
    CustomEvent,
    Event,
    KernelStopping,
    MessageReceived,
    StateChanged,
)
from agentos.services.mail.mailbox import MAX_MESSAGES, Message
from agentos.services.mail.mailboxes import Mailboxes
from agentos_sdk.errors import Unavailable
from agentos_sdk.opcodes import Op
from tests.agents.test_registry import agent

Program = Callable[[Agent], Awaitable[None]]
ORDERS = OnEvent(on_event="STATE_CHANGED", prefix="orders/")


@define
class Rules:
    version: int = 0


@define(eq=False, slots=False)
class Fleet:
    """A kernel's registry, mailboxes, events and waker, with agents whose programs the test plays."""

    registry: Registry = field(init=False)
    log: EventLog = field(factory=EventLog)
    woken: list[tuple[str, str]] = field(factory=list)
    ended: list[str] = field(factory=list)
    starting: float = 0.0  # seconds that a start takes
    ending: float = 0.0  # seconds
    problem: Unavailable | None = None
    programs: dict[str, Program] = field(factory=dict)  # what agents do until they end
    _lives: dict[str, trio.CancelScope] = field(factory=dict)
    _nursery: trio.Nursery = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.registry = Registry(self.publish)
        self.tracker, self.mail = Tracker(self.registry), Mailboxes(self.publish)
        begun = trio.Event()
        begun.set()
        self.waker = Waker(
            self.registry, self.mail, self.log, Rules(), self._wake, self._end, begun, lambda event: None
        )

    def publish(self, event: Event) -> None:
        self.log.take_event(event)
        self.waker.take_event(event)

    def add(self, name: str, start: object = "on_message", idle_stop: float | None = None) -> Agent:
        one = agent(name, start=start, idle_stop=idle_stop, restart="transient")
        one.spawner = None
        self.mail.open(one.id, name)
        self.tracker.add_agent(one, one.path)
        self.tracker.rest(one)
        return one

    async def _wake(self, one: Agent, reason: str) -> None:
        if self.problem is not None:
            raise self.problem
        if one.wish.woken or not one.over.is_set():
            return
        self.woken.append((one.name, reason))
        await trio.sleep(self.starting)
        one.renew()
        one.wish.wake()
        self.registry.change(one, AgentSpawned(one.id, one.name))
        self.registry.change(one, AgentReady(one.id, one.name, 7))
        self._lives[one.name] = trio.CancelScope()
        if one.name in self.programs:
            self._nursery.start_soon(self._live, one, self._lives[one.name])

    async def _live(self, one: Agent, life: trio.CancelScope) -> None:
        with life:
            await self.programs[one.name](one)

    async def _end(self, one: Agent) -> None:
        self.ended.append(one.name)
        await trio.sleep(self.ending)
        self.finish(one)

    def finish(self, one: Agent) -> None:
        """Its program ends with status 0."""
        self._lives[one.name].cancel()
        self.registry.change(one, AgentExited(one.id, one.name, "exit status 0"))
        self.tracker.finish(one)

    def give_up(self, one: Agent) -> None:
        self._lives[one.name].cancel()
        self.registry.change(one, AgentExited(one.id, one.name, "exit status 3"))
        self.registry.change(one, AgentFailed(one.id, one.name, "exit status 3"))
        self.tracker.finish(one)

    def send(self, one: Agent, text: str = "hello") -> None:
        self.mail.by_id(one.id).put(Message(9, "ada", "operator", f'"{text}"'.encode()))

    def read(self, one: Agent) -> list[bytes]:
        return [letter.body for letter in self.mail.by_id(one.id).take(MAX_MESSAGES)]

    async def receive(self, one: Agent) -> None:
        """RECV, again and again, as the kernel counts it."""
        box, activity = self.mail.by_id(one.id), one.caller.activity
        while True:
            activity.waiting += 1
            try:
                with trio.move_on_after(60):
                    await box.wait()
            finally:
                activity.end_wait()
            box.take(1)
            one.caller.counts.ok[Op.RECV] += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self.waker.serve)
            nursery.start_soon(self.log.serve)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()


async def test_an_agent_is_started_once_for_many_messages(autojump_clock: trio.testing.MockClock) -> None:
    fleet = Fleet()
    one, other = fleet.add("one"), fleet.add("other")

    async with fleet.running():
        for _ in range(5):
            fleet.send(one)
        await trio.testing.wait_all_tasks_blocked()

    assert fleet.woken == [("one", "message")]
    assert (one.state, other.state) == (State.RUNNING, State.WAITING)


async def test_messages_that_are_there_when_the_kernel_starts_start_it(autojump_clock: trio.testing.MockClock) -> None:
    fleet = Fleet()
    fleet.send(fleet.add("one"))

    async with fleet.running():
        assert fleet.woken == [("one", "message")]


async def test_a_message_that_comes_as_it_ends_starts_it_again(autojump_clock: trio.testing.MockClock) -> None:
    fleet = Fleet()
    one = fleet.add("one")
    async with fleet.running():
        fleet.send(one)
        await trio.testing.wait_all_tasks_blocked()
        fleet.read(one)
        fleet.send(one, "late")

        fleet.finish(one)
        await trio.testing.wait_all_tasks_blocked()

    assert [name for name, _ in fleet.woken] == ["one", "one"]


async def test_an_agent_that_reads_nothing_is_started_by_the_next_message_only(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet()
    one = fleet.add("one")
    async with fleet.running():
        fleet.send(one)
        await trio.testing.wait_all_tasks_blocked()
        fleet.finish(one)
        await trio.sleep(100)
        assert len(fleet.woken) == 1
        assert "one: ended without reading its messages" in caplog.text

        fleet.send(one)
        await trio.testing.wait_all_tasks_blocked()

    assert len(fleet.woken) == 2


async def test_of_many_that_one_sender_wakes_few_start_at_a_time_and_slow_ones_hold_up_none(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fleet = Fleet()
    agents = [fleet.add(f"a{number}") for number in range(2 * MAX_STARTING + 1)]
    fleet.starting = 600.0
    async with fleet.running():
        for one in agents:
            for _ in range(3):
                fleet.send(one)
        await trio.sleep(0.05)
        assert len(fleet.woken) == MAX_STARTING
        await trio.sleep(SLOW_SECONDS)
        assert len(fleet.woken) == 2 * MAX_STARTING
        await trio.sleep(1)

    assert sorted(fleet.woken) == sorted((one.name, "message") for one in agents), "each once"


async def test_an_agent_that_was_given_up_begins_with_its_messages_when_it_is_started_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fleet = Fleet()
    one = fleet.add("one")
    async with fleet.running():
        fleet.send(one)
        await trio.testing.wait_all_tasks_blocked()
        fleet.give_up(one)
        await trio.testing.wait_all_tasks_blocked()
        assert len(fleet.woken) == 1

        fleet.tracker.rest(one)  # as START does
        await trio.testing.wait_all_tasks_blocked()

    assert len(fleet.woken) == 2


async def test_no_agent_is_started_when_the_kernel_stops(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet()
    one = fleet.add("one")
    async with fleet.running():
        fleet.send(one)
        await trio.testing.wait_all_tasks_blocked()
        fleet.publish(KernelStopping())
        fleet.finish(one)
        await trio.testing.wait_all_tasks_blocked()

    assert len(fleet.woken) == 1
    assert caplog.text == ""


async def test_an_agent_that_cannot_be_started_is_tried_when_its_group_is_up_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fleet = Fleet(problem=Unavailable("its group is ending"))
    one = fleet.add("one")
    async with fleet.running():
        fleet.send(one)
        await trio.testing.wait_all_tasks_blocked()
        fleet.problem = None

        fleet.tracker.rest(one)  # as its container does
        await trio.testing.wait_all_tasks_blocked()

    assert fleet.woken == [("one", "message")]


async def test_an_agent_for_which_nothing_comes_ends_after_its_time(autojump_clock: trio.testing.MockClock) -> None:
    fleet = Fleet()
    one, patient = fleet.add("one", idle_stop=300.0), fleet.add("patient")
    fleet.programs = {"one": fleet.receive, "patient": fleet.receive}
    async with fleet.running():
        for each in (one, patient):
            fleet.send(each)
        await trio.sleep(290)
        assert fleet.ended == []
        await trio.sleep(30)

    assert fleet.ended == ["one"]
    assert (one.state, patient.state) == (State.WAITING, State.RUNNING)


async def test_one_that_works_is_not_idle_however_long_it_takes(autojump_clock: trio.testing.MockClock) -> None:
    fleet = Fleet()
    asks, computes, calls = (fleet.add(name, idle_stop=10.0) for name in ("asks", "computes", "calls"))

    async def ask(one: Agent) -> None:
        one.caller.activity.waiting += 1  # a question to the model, beside RECV
        await fleet.receive(one)

    async def compute(one: Agent) -> None:
        fleet.read(one)  # and no call since

    async def call(one: Agent) -> None:
        async with trio.open_nursery() as beside:
            beside.start_soon(fleet.receive, one)
            while True:
                await trio.sleep(3)
                one.caller.counts.ok[Op.READ] += 1

    fleet.programs = {"asks": ask, "computes": compute, "calls": call}
    async with fleet.running():
        for each in (asks, computes, calls):
            fleet.send(each)
        await trio.sleep(1000)

    assert fleet.ended == []


async def test_what_comes_while_an_idle_agent_ends_is_for_its_next_life(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fleet = Fleet(ending=5.0)
    one = fleet.add("one", idle_stop=10.0)
    fleet.programs = {"one": fleet.receive}
    async with fleet.running():
        fleet.send(one)
        await trio.sleep(12)
        assert fleet.ended == ["one"]

        fleet.send(one, "late")

        assert fleet.read(one) == []
        await trio.sleep(6)
        assert len(fleet.woken) == 2


async def test_events_are_put_into_the_mailbox_in_order_and_start_it(autojump_clock: trio.testing.MockClock) -> None:
    fleet = Fleet()
    one = fleet.add("one", ORDERS)
    async with fleet.running():
        for key in ("orders/1", "bills/1", "orders/2"):
            fleet.publish(StateChanged("global", key, 1, None, False))
        await trio.sleep(1)

    assert fleet.woken == [("one", "event")]
    bodies = fleet.read(one)
    assert [key in body for key, body in zip((b'"orders/1"', b'"orders/2"'), bodies, strict=True)] == [True, True]


async def test_what_is_about_the_agent_itself_does_not_start_it(autojump_clock: trio.testing.MockClock) -> None:
    fleet = Fleet()
    one = fleet.add("one", OnEvent(on_event="*"))
    async with fleet.running():
        fleet.publish(MessageReceived(one.id, "one", 9, "ada", 3))
        await trio.sleep(1)
        assert fleet.woken == []

        fleet.publish(AgentExited(999, "other", "exit status 1"))
        await trio.sleep(1)

    assert fleet.woken == [("one", "event")]
    assert len(fleet.read(one)) == 1


@pytest.mark.parametrize(("events", "at_once"), [("custom.few", 100), ("custom.large", 71)])  # 1 MiB of 15,000 bytes
async def test_events_wait_for_room_and_leave_some_to_senders(
    autojump_clock: trio.testing.MockClock, events: str, at_once: int
) -> None:
    fleet = Fleet()
    one = fleet.add("one", OnEvent(on_event=events))
    async with fleet.running():
        for number in range(at_once + 10):
            text = b"x" * (14_800 if events == "custom.large" else 8)
            fleet.publish(CustomEvent(9, "ada", events, Raw(b'{"%d":"%s"}' % (number, text))))
        await trio.sleep(5)
        assert len(fleet.mail.by_id(one.id).messages) == at_once
        fleet.send(one)
        read = fleet.read(one)
        assert len(read) + len(fleet.read(one)) == at_once + 1
        await trio.sleep(5)

        assert len(fleet.read(one)) == 10


async def test_a_reload_changes_what_starts_an_agent(autojump_clock: trio.testing.MockClock) -> None:
    fleet = Fleet()
    one, other = fleet.add("one", ORDERS), fleet.add("other")
    async with fleet.running():
        one.spec = replace(one.spec, start=OnEvent(on_event="CUSTOM"))
        other.spec = replace(other.spec, start=None)
        fleet.publish(ConfigReloaded([]))
        await trio.testing.wait_all_tasks_blocked()

        fleet.send(other)
        fleet.publish(StateChanged("global", "orders/1", 1, None, False))
        await trio.sleep(1)
        assert fleet.woken == []

        fleet.publish(CustomEvent(9, "ada", "CUSTOM", Raw(b"{}")))
        await trio.sleep(1)

    assert fleet.woken == [("one", "event")]


async def test_a_stopped_agent_gets_no_events(autojump_clock: trio.testing.MockClock) -> None:
    fleet = Fleet()
    one = fleet.add("one", ORDERS)
    async with fleet.running():
        one.wish.stop("operator")
        one.state = State.STOPPED
        fleet.publish(StateChanged("global", "orders/1", 1, None, False))
        await trio.sleep(1)

    assert fleet.read(one) == []
    assert fleet.woken == []
