"""Waker: starts agents when there is something in their mailboxes, and ends those for which nothing comes.

The mailbox is what the socket is for socket activation: it is there while the agent isn't, so that nothing is lost
between waking and listening. Events that start an agent are put into its mailbox, too. One task looks at what has come.
While an idle agent ends, its mailbox hands out nothing: what comes then is for its next life.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import trio
from attrs import define, field
from msgspec import Struct

from agentos.agents.life.lifecycle import State
from agentos.agents.registry import Agent, Registry
from agentos.services.event_log.ring import EventLog
from agentos.services.event_log.subscription import Filter, Sight, Subscription, Versioned, Viewer
from agentos.services.events import (
    AgentFailed,
    AgentReady,
    AgentStopped,
    AgentWaiting,
    ConfigReloaded,
    Event,
    KernelStopping,
)
from agentos.services.mail.mailbox import Mailbox, Message
from agentos.services.mail.mailboxes import KERNEL, KERNEL_ID, Mailboxes
from agentos_sdk.encoding.quantities import duration
from agentos_sdk.errors import CallError, Unavailable
from agentos_sdk.opcodes import Op

from .schedule import OnEvent, StartReason
from .timers import Wake
from .turns import Turns

log = logging.getLogger("agentos.agents")

LOOKS = 10  # for idle agents, in their time
MIN_INTERVAL, MAX_INTERVAL = 0.1, 5.0  # seconds between two looks
FULL_SECONDS = 0.5  # until a mailbox without room for events is tried again
MAX_EVENTS, MAX_EVENT_BYTES = 100, 1 << 20  # messages in a mailbox with which it has no room: senders need the rest
PAGE, PAGE_BYTES = 100, 1 << 20  # events that are put into a mailbox at a time


class SeesOthers(Struct, frozen=True):
    """Sees every event but those about the agent itself, by which it would start itself again and again."""

    name: str

    def sight(self) -> Sight:
        return Sight(frozenset(), granted=True, reads=True)

    def shows_events(self, name: str) -> bool:
        return name != self.name

    def may_read(self, key: str) -> bool:
        return True


@define(eq=False)
class Waiter:
    """An agent that messages start. ``taken`` is how many it had read before its last start by one."""

    agent: Agent
    box: Mailbox
    start: StartReason | None = None
    listening: trio.CancelScope = field(factory=trio.CancelScope)  # around the task that puts events into its mailbox
    taken: int | None = None
    waking: bool = False  # it is being started, or waits for its turn
    idle: float = 0.0  # seconds, as it was found look by look
    looked_at: float = -math.inf  # trio's clock
    done: tuple[int, int] = (0, 0)  # at the last look: its calls but RECV, and the messages that it had read
    received: int = 0  # at the last look: its calls of RECV

    def waits_for_messages(self) -> bool:
        """Whether it has done nothing but RECV since the last look, or does nothing else, and nothing has come."""
        outcomes, readers = self.agent.caller.counts.own(), self.box.readers
        received = sum(count for (op, _), count in outcomes.items() if op == Op.RECV)
        done = (sum(outcomes.values()) - received, self.box.taken)
        listens = readers > 0 or received != self.received
        alone = self.agent.caller.activity.waiting <= readers and not self.box.messages and not self.box.leases
        same, self.done, self.received = done == self.done, done, received
        return listens and alone and same


@define(eq=False)
class Waker:
    """Starts and ends the declared agents of one kernel that have a ``start``.

    ``end`` ends one that has nothing to do. ``rules`` are those of all callers. The tree is up when ``begun`` is set.
    """

    registry: Registry
    mail: Mailboxes
    events: EventLog
    rules: Versioned
    wake: Wake
    end: Callable[[Agent], Awaitable[None]]
    begun: trio.Event
    tell_timers: Callable[[Event], None]  # of agents that wait, and of reloads
    _waiters: dict[int, Waiter] = field(factory=dict, init=False)  # by agent
    _new: set[int] = field(factory=set, init=False)  # agents for which something has come
    _rested: set[int] = field(factory=set, init=False)  # agents that have begun to wait
    _news: trio.Event = field(factory=trio.Event, init=False)
    _turns: Turns = field(factory=Turns, init=False)
    _reloaded: bool = field(default=True, init=False)
    _ends: bool = field(default=False, init=False)  # the kernel

    def take_event(self, event: Event) -> None:
        """Look at an agent that waits from now on or is up, and at all after a reload; the timers do, too."""
        match event:
            case AgentWaiting(agent_id=number):
                self.tell_timers(event)
                self._rested.add(number)
            case AgentFailed(agent_id=number) | AgentStopped(agent_id=number) if number in self._waiters:
                self._waiters[number].taken = None  # START has it begin with what is there
                return
            case AgentReady(agent_id=number) if number in self._waiters:
                pass  # it may have an idle_stop
            case ConfigReloaded():
                self.tell_timers(event)
                self._reloaded = True
            case KernelStopping():
                self._ends = True
            case _:
                return
        self._news.set()

    def _come(self, agent: Agent) -> None:
        if agent.state is State.WAITING:  # otherwise its mailbox is looked at when it waits again
            self._new.add(agent.id)
            self._news.set()

    async def serve(self) -> None:
        """Start and end agents, until the kernel stops."""
        async with trio.open_nursery() as nursery:
            self._take_agents(nursery)  # before the first agent begins: its events count
            await self.begun.wait()
            while not self._ends:
                self._news = trio.Event()
                if self._reloaded:
                    self._take_agents(nursery)
                self._wake_agents(nursery)
                with trio.CancelScope(deadline=self._look_for_idle(nursery)):
                    await self._news.wait()
            nursery.cancel_scope.cancel()

    def _take_agents(self, nursery: trio.Nursery) -> None:
        """Follow the mailboxes of the agents that have a ``start`` now, and those of no others."""
        self._reloaded = False
        wanted = {agent.id: agent for agent in self.registry if agent.declared and agent.spec.start is not None}
        for number, waiter in [*self._waiters.items()]:
            if number not in wanted or wanted[number].spec.start != waiter.start:
                waiter.listening.cancel()
                waiter.box.on_message = None
                del self._waiters[number]
        for number, agent in wanted.items():
            if number not in self._waiters:
                waiter = self._waiters[number] = Waiter(agent, self.mail.by_id(number), agent.spec.start)
                waiter.box.on_message = partial(self._come, agent)
                if isinstance(waiter.start, OnEvent):
                    self._listen(waiter, waiter.start, nursery)
            self._new.add(number)

    def _wake_agents(self, nursery: trio.Nursery) -> None:
        new, rested = self._new, self._rested
        self._new, self._rested = set(), set()
        for number in new | rested:
            waiter = self._waiters.get(number)
            if waiter is None or waiter.agent.state is not State.WAITING or not waiter.box.messages:
                continue
            if waiter.waking:
                (self._new if number in new else self._rested).add(number)
                continue
            if number not in new and waiter.taken == waiter.box.taken:
                log.warning("%s: ended without reading its messages: the next one starts it", waiter.agent.name)
                continue
            waiter.taken, waiter.idle, waiter.waking = waiter.box.taken, 0.0, True
            is_event = waiter.box.messages[0].from_kind == "kernel"
            nursery.start_soon(self._wake, waiter, "event" if is_event else "message")

    async def _wake(self, waiter: Waiter, reason: str) -> None:
        async with self._turns.take():
            self._new.discard(waiter.agent.id)
            try:
                await self.wake(waiter.agent, reason)
            except CallError as error:
                log.warning("%s: a message can't start it: %s", waiter.agent.name, error)
                waiter.taken = None
        waiter.waking = False
        self._news.set()

    # -- Events ----------------------------------------------------------------------------------------------------

    def _listen(self, waiter: Waiter, start: OnEvent, nursery: trio.Nursery) -> None:
        """Put events into an agent's mailbox from now on."""
        agent, wanted = waiter.agent, Filter((start.on_event,), prefix=start.prefix)
        viewer = Viewer(self.events.boot, agent.id, SeesOthers(agent.name), self.rules)
        subscription = Subscription(viewer, [wanted])
        self.events.subscribe(subscription)
        nursery.start_soon(self._put_events, waiter, subscription)

    async def _put_events(self, waiter: Waiter, subscription: Subscription) -> None:
        with waiter.listening:
            try:
                while True:
                    await self.events.wait(subscription)
                    page = await self.events.read(subscription, PAGE, PAGE_BYTES)
                    if page.missed:
                        log.warning("%s: its mailbox was full, and %d events are lost", waiter.agent.name, page.missed)
                    await self._put(waiter, page.events)
            finally:
                self.events.unsubscribe(subscription)

    async def _put(self, waiter: Waiter, events: Iterable[bytes]) -> None:
        """Put events into an agent's mailbox, unless it was stopped or given up; waits until it has room for them."""
        for event in events:
            message = Message(KERNEL_ID, KERNEL, "kernel", event, id=next(self.mail.numbers))
            full: Sequence[str] = [waiter.box.name]
            while full and not self.registry.is_over(waiter.agent.id):
                try:
                    if waiter.box.count < MAX_EVENTS and waiter.box.size < MAX_EVENT_BYTES:
                        _, full = await self.mail.post_all(message, [waiter.box])
                except Unavailable as error:
                    log.warning("%s: an event can't be kept: %s", waiter.box.name, error)
                if full:
                    await trio.sleep(FULL_SECONDS)

    # -- Idle agents -----------------------------------------------------------------------------------------------

    def _look_for_idle(self, nursery: trio.Nursery) -> float:
        """End the agents for which nothing has come for their time; returns when to look next, on Trio's clock."""
        now, next_look = trio.current_time(), math.inf
        for waiter in self._waiters.values():
            limit = waiter.agent.spec.idle_stop
            if limit is None or waiter.agent.state is not State.RUNNING or waiter.box.held:
                continue
            interval = min(max(limit / LOOKS, MIN_INTERVAL), MAX_INTERVAL)
            if now >= waiter.looked_at + interval:
                waiter.idle = waiter.idle + interval if waiter.waits_for_messages() else 0.0
                waiter.looked_at = now
                if waiter.idle >= limit:
                    waiter.box.held = True
                    nursery.start_soon(self._end, waiter, limit)
            next_look = min(next_look, waiter.looked_at + interval)
        return next_look

    async def _end(self, waiter: Waiter, limit: float) -> None:
        agent = waiter.agent
        log.info("%s: nothing came for %s: it ends, and waits", agent.name, duration(limit))
        try:
            await self.end(agent)
        except CallError as error:
            log.warning("%s: it can't be ended: %s", agent.name, error)
        finally:
            waiter.idle = 0.0
            waiter.box.release()
