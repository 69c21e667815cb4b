"""Timers: starts agents at the times of their schedules. The only place that knows what is due next.

One heap and one task. A time is written down before its run begins: a kernel that is killed at that moment doesn't run
it twice. The wall clock may be set and the machine may sleep, and Trio's clock doesn't tell: the task looks at the wall
clock at least every :data:`LOOK` seconds. A time that the clock has passed in any way is due, once. When the clock was
set back, each schedule says whether it goes by the clock or repeats nothing.
"""

import heapq
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable
from random import Random

import trio
from attrs import define, field

from agentos.agents.registry import Agent, Registry
from agentos.services.events import AgentWaiting, ConfigReloaded, Event, RunSkipped
from agentos_sdk.errors import CallError

from .last_runs import LastRuns
from .schedule import Schedule
from .turns import Turns

log = logging.getLogger("agentos.agents")

LOOK = 10.0  # seconds between two looks at the wall clock

Wake = Callable[[Agent, str], Awaitable[None]]
"""Starts an agent that waits, for a reason; raises ``CallError`` if it can't be started."""


@define(eq=False)
class Timer:
    """One agent's schedule. ``last`` is the time that it has reached, ``due`` its next one, with its jitter.

    ``skipped`` counts the runs left out since the last one began. ``starting``: a run waits for its turn, or begins.
    """

    agent: Agent
    schedule: Schedule
    last: float
    due: float = 0.0
    skipped: int = 0
    starting: bool = False


@define(eq=False)
class Timers:
    """Starts the declared agents of one kernel that have a schedule.

    The tree is up when ``begun`` is set. ``read_clock`` is the wall clock.
    """

    registry: Registry
    runs: LastRuns
    wake: Wake
    begun: trio.Event
    read_clock: Callable[[], float] = time.time
    look: float = LOOK
    _random: Random = field(factory=Random)
    _timers: dict[Agent, Timer] = field(factory=dict, init=False)
    _heap: list[tuple[float, int, Timer]] = field(factory=list, init=False)  # with entries of former times
    _number: "itertools.count[int]" = field(factory=itertools.count, init=False)
    _late: dict[int, Timer] = field(factory=dict, init=False)  # by agent: it couldn't be started at its time
    _again: set[int] = field(factory=set, init=False)  # agents of these that wait anew: their group is up
    _seen: float = field(default=-math.inf, init=False)  # the wall clock at the last look
    _reloaded: bool = field(default=True, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)  # there may be something to do
    _turns: Turns = field(factory=Turns, init=False)

    def take_event(self, event: Event) -> None:
        """Look at all schedules anew after a reload; try an agent again when it waits in a group that has come up."""
        if isinstance(event, AgentWaiting) and event.agent_id in self._late:
            self._again.add(event.agent_id)
            self._changed.set()
        elif isinstance(event, ConfigReloaded):
            self._reloaded = True
            self._changed.set()

    async def serve(self) -> None:
        """Start what is due, until cancelled."""
        await self.begun.wait()
        async with trio.open_nursery() as starts:
            while True:
                self._changed = trio.Event()
                if self._reloaded:
                    self._reloaded = False
                    await self._take_schedules()
                self._begin_due(starts)
                for number in self._again & self._late.keys():
                    starts.start_soon(self._wake, self._late[number])
                self._again.clear()
                wait = min(self._heap[0][0] - self._seen, self.look) if self._heap else math.inf
                with trio.move_on_after(wait):
                    await self._changed.wait()

    async def _take_schedules(self) -> None:
        """Keep a timer for each declared agent with a schedule, and none for others."""
        wanted = {agent: agent.spec.schedule for agent in self.registry if agent.declared and agent.spec.schedule}
        for agent in self._timers.keys() - wanted.keys():
            del self._timers[agent]
            agent.next_at = None
        now, new = self.read_clock(), []
        for agent, schedule in wanted.items():
            if (known := self._timers.get(agent)) is None or known.schedule != schedule:
                found = self.runs.find(agent.name)
                timer = Timer(agent, schedule, now if found is None else schedule.correct(found, now))
                self._timers[agent] = timer
                self._plan(timer, schedule.find_first(timer.last, now))
                new += [timer] if timer.last != found else []
        if new:  # from now on a missed time is one that this kernel has seen coming
            await self.runs.note({timer.agent.name: timer.last for timer in new})

    def _plan(self, timer: Timer, due: float) -> None:
        timer.due = timer.agent.next_at = due + self._random.uniform(0, timer.schedule.jitter)
        heapq.heappush(self._heap, (timer.due, next(self._number), timer))

    def _begin_due(self, starts: trio.Nursery) -> None:
        now = self.read_clock()
        if now < self._seen:
            for timer in self._timers.values():
                timer.last = timer.schedule.correct(timer.last, now)
                self._plan(timer, timer.schedule.find_next(timer.last))
        self._seen = now
        while self._heap and (self._heap[0][0] <= now or not self._is_current(self._heap[0])):
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                timer, due = entry[2], entry[0]
                timer.last = timer.schedule.reach(timer.last, now)
                self._plan(timer, timer.schedule.find_next(timer.last))
                starts.start_soon(self._run, timer, due)

    def _is_current(self, entry: tuple[float, int, Timer]) -> bool:
        due, _, timer = entry
        return timer.due == due and self._timers.get(timer.agent) is timer

    async def _run(self, timer: Timer, due: float) -> None:
        """Write down that the time has come, and begin the run in its turn, unless the last one still works."""
        agent = timer.agent
        works = timer.starting or not agent.over.is_set()
        timer.skipped = timer.skipped + 1 if works else 0
        # The 1st, 2nd, 4th, 8th are told: a run that never ends leaves out one each second for ever.
        if works and agent.wish.stopped_by is None and timer.skipped.bit_count() == 1:
            self.registry.publish(RunSkipped(agent.id, agent.name, due, timer.due, timer.skipped))
        if not works:
            timer.starting = True
        await self.runs.note({agent.name: timer.last})
        if not works:
            await self._wake(timer)

    async def _wake(self, timer: Timer) -> None:
        self._late.pop(timer.agent.id, None)
        timer.starting = True
        async with self._turns.take():
            try:
                await self.wake(timer.agent, "schedule")
            except CallError as error:
                log.warning("%s: its schedule can't start it now: %s", timer.agent.name, error)
                self._late[timer.agent.id] = timer
        timer.starting = False
