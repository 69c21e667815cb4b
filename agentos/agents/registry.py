"""Agent registry: all present and recent agents with their state, restarts and exit status.

Problem: nearly every part of the kernel asks about agents, by id and by name, also about those that have ended.
Idea: one record for each agent over all its lives. What identifies it stays; its present life and what is wished of
it are objects of their own (``life/present.py``, ``life/lifecycle.py``). The registry changes states, by the table of
events, and publishes each change; the other parts follow the events.
Must stay true: an event that the table doesn't list is a bug and changes nothing; a name belongs to one agent that
lives or may be started again; what an ended agent keeps is small (decisions 82 and 100).
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from secrets import randbelow

import trio
from attrs import define, field

from agentos.kernel.caller import Caller
from agentos.llm.settings import QueuePath
from agentos.sandbox.status import Status
from agentos.services.events import (
    AgentEvent,
    AgentFailed,
    AgentOver,
    AgentPaused,
    AgentReady,
    AgentSpawned,
    AgentState,
    Publish,
    discard,
)
from agentos.services.rate_limit import Rate
from agentos_sdk.errors import AlreadyExists, BadRequest, CallError, NotFound, Unavailable
from agentos_sdk.values import End
from supervisors import Supervisor

from .life.failures import Failures
from .life.lifecycle import ALIVE, NEXT, State, Wanted, Wish
from .life.output import Output
from .life.present import EndedLife, Life
from .spec import AgentSpec

HASH_SEED = "PYTHONHASHSEED"
MAX_HASH_SEED = 2**32 - 1  # 0 would mean the same order in all runs
MAX_ENDED = 1000  # ended agents kept, for waits for their end and for their logs
MAX_ENDED_WHOLE = 50  # of these, how many keep all of their output; the others keep the last lines
LAST_LINES, LAST_BYTES = 50, 8 << 10
PAST = trio.Event()  # stands for all events of an ended agent
PAST.set()


def describe_end(status: Status, requested: bool = False, limits: str | None = None) -> End:
    """``requested``: by KILL or a supervisor; ``limits``: the limits that the program hit."""
    reason = f"stopped: {status}" if requested else str(status)
    if limits is not None and limits.startswith("killed"):
        reason = limits
    elif limits is not None:
        reason = f"{reason}; {limits}"
    return End(status.code, status.signal, reason)


Converse = Callable[["Agent", trio.SocketStream], Awaitable[None]]
"""Runs in one life of an agent until it is cancelled at the end of that life; it must close the stream."""


class StartError(Exception):
    """A program didn't start. ``end`` says how it ended, ``stderr`` holds its last lines.

    ``error`` is the type of the error that the spawner gets.
    """

    def __init__(self, end: End, stderr: list[str], error: type[CallError] = Unavailable) -> None:
        super().__init__("\n".join([end.reason, *stderr]))
        self.end = end
        self.stderr = stderr
        self.error = error

    def __repr__(self) -> str:  # supervisors include it in their reason for giving up
        return self.end.reason


@define(eq=False)
class Agent:
    """One agent over all its lives. ``declared``: it comes from the configuration file, not from SPAWN.

    ``converse`` speaks with its program over standard input and output, in each life; without it, output goes to the
    log.
    """

    spec: AgentSpec  # what it was started with, and what a reload or SET_PERMS has changed since
    caller: Caller
    path: tuple[str, ...]  # of the supervisor that restarts it
    parent: "Agent | None"
    spawner: int | None  # id of the caller that spawned it; None: declared
    guest: str | None  # name of that caller if it is a guest, which may reconnect with another id
    queue_path: QueuePath  # its place in the model's queue
    rate: Rate
    output: Output = field(factory=Output)
    converse: "Converse | None" = None
    state: State = State.STARTING
    lives: int = 0
    restarts: int = 0  # by its supervisors
    failures: int = 0  # in a row, when its last restart was scheduled
    failed: Failures | None = None  # its recent lives that failed, if any did
    life: Life | EndedLife = field(factory=Life)  # the present life or the last
    supervisor: Supervisor | None = None  # its own, if it was spawned and has begun
    wish: Wish = field(factory=Wish)
    next_at: float | None = None  # seconds since the epoch: the next time of its schedule
    forked_from: str | None = None  # NAME or NAME@LABEL: it has gone on from there
    recording: str | None = None  # directory, of its last life that was recorded because of its spec
    end: End | None = None
    settled: trio.Event = field(factory=trio.Event)  # the first start, or that by START, succeeded or had a `problem`
    problem: StartError | None = None
    arrived: trio.Event = field(factory=trio.Event)  # it has come up, ended for good, or was given up
    came_up: bool = False
    hash_seed: int = 0  # of Python programs in its present life, each drawn anew; recordings have it
    pauses: int = 0  # how often it was paused
    over: trio.Event = field(factory=trio.Event)  # it has ended and won't be restarted

    @property
    def id(self) -> int:
        return self.caller.id

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def declared(self) -> bool:
        return self.spawner is None and not self.wish.removed

    @property
    def top(self) -> "Agent":
        """Its outermost ancestor, or itself."""
        return self if self.parent is None else self.parent.top

    @property
    def group(self) -> tuple[tuple[str, ...], str | None]:
        """What agents with the same supervisor have in common; those of each guest are a group of their own."""
        return self.path if self.declared else self.path[:-1], self.guest

    @property
    def pid(self) -> int | None:
        """Its program's pid on the host."""
        program = self.life.program
        return program.program if program is not None and program.status is None else None

    @property
    def alive(self) -> bool:
        """Whether it has, or is about to have, a process."""
        return self.state in ALIVE

    @property
    def comes_back(self) -> bool:
        """Whether it hasn't ended for good, or is started again when there is a reason."""
        return not self.over.is_set() or self.state is State.WAITING or self.due_at is not None

    @property
    def due_at(self) -> float | None:
        """Seconds since the epoch: when its schedule starts it next; None while it is stopped by request."""
        return self.next_at if self.wish.stopped_by is None else None

    @property
    def wanted(self) -> Wanted:
        """What is to become of it: the strongest wish."""
        wish = self.wish
        if wish.stopped_by is not None:
            return Wanted.STOP
        if wish.dismissed:
            return Wanted.END
        return Wanted.WAIT if self.spec.waits and not wish.woken else Wanted.RUN

    @property
    def shutdown_time(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        if self.wish.grace is not None:
            return self.wish.grace
        shutdown = self.spec.shutdown
        return shutdown if not isinstance(shutdown, str) else 0.0 if shutdown == "brutal_kill" else math.inf

    def limit_shutdown_time(self, grace: float) -> None:
        """Limit the shutdown time to ``grace`` seconds; if it is stopping already, this never extends the time."""
        self.wish.limit_grace(grace)
        if (scope := self.life.stop_scope) is not None:
            scope.deadline = min(scope.deadline, trio.current_time() + grace)

    def connect(self) -> None:
        """Note a connection of its present life."""
        if isinstance(self.life, Life):
            self.life.connected = True
        if self.spec.ready != "hello":
            self._end_start()

    def dismiss(self) -> None:
        """Have it end, for good or until START, unless it has ended; a start is aborted."""
        if not self.over.is_set():
            self.wish.dismiss()
            self._end_start()

    def _end_start(self) -> None:
        if self.life.start_scope is not None:
            self.life.start_scope.cancel()

    def renew(self) -> None:
        """Forget that it has ended for good: it is started again."""
        self.over = trio.Event()
        self.wish.renew()

    def settle(self, problem: StartError | None = None) -> None:
        """Record the result of the first start; later results change nothing."""
        if not self.settled.is_set():
            self.problem = problem
            self.settled.set()

    def unsettle(self) -> None:
        """Expect the result of another start. Those that wait for the result of this one get the next."""
        if self.settled.is_set():
            self.settled = trio.Event()

    def shrink(self) -> None:
        """Drop what only a life needs, of a spawned agent that is over: what LIST, INSPECT, WAIT and LOGS say stays."""
        self.supervisor = None
        self.over = self.arrived = self.caller.greeted = PAST
        if self.settled.is_set():  # otherwise it ended before it had begun, and its spawner has yet to learn of it
            self.settled = PAST
        self.life = EndedLife.of(self.life)
        self.output.tap = None
        self.caller.counts.shrink()


class Registry:
    """The agents by id and by name. A name refers to the agent that got it last.

    The only place that changes an agent's state, and publishes each change.
    """

    def __init__(self, publish: Publish = discard) -> None:
        self.publish = publish
        self._by_id: dict[int, Agent] = {}
        self._by_name: dict[str, Agent] = {}
        self._ended: deque[Agent] = deque()  # for good, in that order
        self.held: set[str] = set()  # names that no agent can get now

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._by_id.values())

    def add(self, agent: Agent) -> None:
        """Add an agent; raises ``AlreadyExists`` while the name belongs to another one, see :meth:`is_taken`."""
        if agent.name in self.held:
            raise AlreadyExists(f"name: {agent.name!r} is that of an agent that is being imported")
        if self.is_taken(agent.name):
            holder = self._by_name[agent.name]
            raise AlreadyExists(f"name: an agent called {agent.name!r} exists (id {holder.id}, {holder.state})")
        self._by_name[agent.name] = agent
        self._by_id[agent.id] = agent

    def retire(self, agent: Agent) -> None:
        """Keep of an agent that has ended for good what can be asked of it, and forget those that ended long before."""
        agent.shrink()
        self._ended.append(agent)
        if len(self._ended) > MAX_ENDED_WHOLE:
            self._ended[-MAX_ENDED_WHOLE - 1].output.trim(LAST_LINES, LAST_BYTES)
        if len(self._ended) > MAX_ENDED:
            other = self._ended.popleft()
            del self._by_id[other.id]
            if self._by_name.get(other.name) is other:
                del self._by_name[other.name]

    def begin_life(self, agent: Agent) -> Life:
        """Give the agent a new life, before its program is started."""
        if agent.wish.at_next_start is not None:
            agent.wish.take_changes()
        replayed = agent.caller.replayed
        known = replayed.hash_seed if replayed is not None else None
        agent.hash_seed = known if known is not None else randbelow(MAX_HASH_SEED) + 1
        self.change(agent, AgentSpawned(agent.id, agent.name))
        agent.caller.greeted = trio.Event()
        if agent.over.is_set():  # a supervisor above has restarted the group it belongs to
            agent.renew()
        agent.life = life = Life(agent.life.layers, agent.life.lacking)
        return life

    def change(self, agent: Agent, event: AgentEvent) -> None:
        """Change the agent's state as :data:`~agentos.agents.life.lifecycle.NEXT` says, and publish the event."""
        state = NEXT[agent.state].get(type(event))
        assert state is not None, f"{agent.name}: {type(event).__name__} is impossible in the state {agent.state}"
        is_new = state is not agent.state or isinstance(event, AgentSpawned)  # the first life has its state already
        agent.state = state
        if isinstance(event, AgentReady | AgentFailed | AgentOver):
            agent.arrived.set()
            agent.came_up = agent.came_up or isinstance(event, AgentReady)
        agent.pauses += isinstance(event, AgentPaused)
        self.publish(event)
        if is_new:
            self.publish(AgentState(agent.id, agent.name, str(state)))

    def find(self, number: int | None, name: str | None) -> Agent:
        """The agent that a request selects by exactly one of ``id`` and ``name``."""
        if (number is None) == (name is None):
            raise BadRequest("name: expected exactly one of name and id")
        found = self._by_id.get(number) if number is not None else self._by_name.get(name or "")
        if found is None:
            raise NotFound(f"no agent has the id {number}" if number is not None else f"no agent is called {name!r}")
        return found

    def find_by_name(self, name: str) -> Agent | None:
        """The agent that got the name last, or None."""
        return self._by_name.get(name)

    def get(self, number: int) -> Agent | None:
        """The agent with that id, or None."""
        return self._by_id.get(number)

    def is_taken(self, name: str) -> bool:
        """Whether the name is held, or an agent of it is declared, which can start again, or hasn't ended for good."""
        holder = self._by_name.get(name)
        return name in self.held or (holder is not None and (holder.declared or not holder.over.is_set()))

    def is_over(self, number: int) -> bool:
        """Whether this is the id of an agent that has ended and won't come back."""
        found = self._by_id.get(number)
        return found is not None and not found.comes_back

    def descends(self, agent: int, ancestor: int) -> bool:
        """Whether ``agent`` was spawned by ``ancestor`` or by one of its descendants."""
        found = self._by_id.get(agent)
        while found is not None and found.parent is not None:
            found = found.parent
            if found.id == ancestor:
                return True
        return False

    def are_siblings(self, one: int, other: int) -> bool:
        """Whether both are agents and have the same supervisor."""
        first, second = self._by_id.get(one), self._by_id.get(other)
        return first is not None and second is not None and first.group == second.group

    def is_own(self, caller: Caller, agent: int) -> bool:
        """Whether ``agent`` is the caller itself or one of its descendants. All agents belong to the operator."""
        if caller.kind == "operator" or agent == caller.id:
            return True
        if caller.kind == "agent":
            return self.descends(agent, caller.id)
        found = self._by_id.get(agent)
        return found is not None and found.top.guest == caller.name

    def lasting_name(self, caller: Caller) -> str | None:
        """A caller's name in this kernel and the next: ``parent/child``, ``guest ada``; None for one without a name."""
        agent = self._by_id.get(caller.id)
        if agent is not None:
            return self.lasting_name_of(agent)
        return caller.family if caller.kind == "guest" and caller.name != f"guest#{caller.id}" else None

    def lasting_name_of(self, agent: Agent) -> str:
        """An agent's name behind those of all that it descends from: another agent's child of its name has another."""
        if agent.parent is not None:
            return f"{self.lasting_name_of(agent.parent)}/{agent.name}"
        return agent.name if agent.guest is None else f"guest {agent.guest}/{agent.name}"

    def living_below(self, ancestor: Agent) -> Sequence[Agent]:
        """The descendants of ``ancestor`` that have not ended for good."""
        living = [agent for agent in self._by_id.values() if not agent.over.is_set()]
        return [agent for agent in living if self.descends(agent.id, ancestor.id)]
