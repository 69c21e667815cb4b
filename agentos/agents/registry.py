"""Every agent there is or lately was: the one record of its state, its restarts and how it ended."""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field, frozen

from agentos.kernel.caller import Caller
from agentos.llm.settings import Seat
from agentos.sandbox.cgroup_values import Usage
from agentos.sandbox.handle import Sandbox
from agentos.sandbox.status import Status
from agentos_sdk.errors import AlreadyExists, BadRequest, CallError, NotFound, Unavailable
from supervisors import Supervisor

from .lifecycle import ALIVE, NEXT, State
from .output import Output
from .rate import Rate
from .spec import AgentSpec

if TYPE_CHECKING:
    from .jail import Jail

KEPT = 1000  # ended agents that are remembered, so that their end can be waited for and their logs be read
KEPT_WHOLE = 50  # of these, how many keep all of their output; of the others only the last lines stay
LAST_LINES, LAST_BYTES = 50, 8 << 10


@frozen
class End:
    """How a life ended: ``code`` or ``signal``, neither when the program never ran; ``reason`` is for people."""

    code: int | None
    signal: int | None
    reason: str

    @classmethod
    def of(cls, status: Status, asked: bool = False, limits: str | None = None) -> "End":
        """``asked``: somebody wanted it to end; ``limits`` are those that it came up against."""
        reason = f"stopped: {status}" if asked else str(status)
        if limits is not None and limits.startswith("killed"):
            reason = limits
        elif limits is not None:
            reason = f"{reason}; {limits}"
        return cls(status.code, status.signal, reason)


class StartError(Exception):
    """A program didn't come up. ``end`` says how it ended, ``stderr`` holds its last lines.

    ``error`` is what its spawner gets to hear.
    """

    def __init__(self, end: End, stderr: list[str], error: type[CallError] = Unavailable) -> None:
        super().__init__("\n".join([end.reason, *stderr]))
        self.end = end
        self.stderr = stderr
        self.error = error

    def __repr__(self) -> str:  # supervisors write it into a line about why they gave up
        return self.end.reason


@define(eq=False)
class Agent:
    """One agent over all its lives. ``declared``: it stands in the configuration file, rather than being spawned."""

    spec: AgentSpec
    caller: Caller
    path: tuple[str, ...]  # of the supervisor that restarts it
    parent: "Agent | None"
    spawner: int | None  # id of the caller that spawned it; None: declared
    guest: str | None  # the name of that caller, if it is a guest: it may come back as another connection
    seat: Seat  # in the line to the model
    rate: Rate
    output: Output = field(factory=Output)
    state: State = State.STARTING
    lives: int = 0
    since: float = 0.0  # trio's clock, seconds: when the present life began
    program: Sandbox | None = None
    jail: "Jail | None" = None  # while that program runs
    layers: Mapping[str, Mapping[str, Any]] = field(factory=dict)  # of isolation, in the present life or the last
    lacking: Sequence[str] = ()  # of these, what was asked for and doesn't stand
    used: Usage | None = None  # in the last life, as its cgroup has counted
    children: Supervisor | None = None  # of the agents that it spawned, while it lives
    keeper: Supervisor | None = None  # its own, if it was spawned and has begun
    grace: float | None = None  # seconds; set by KILL for this once
    patience: trio.CancelScope | None = None  # around the time that it has between SIGTERM and SIGKILL
    dismissed: trio.Event = field(factory=trio.Event)  # it is being stopped for good
    end: End | None = None
    connected: trio.Event = field(factory=trio.Event)  # in the present life
    greeted: trio.Event = field(factory=trio.Event)
    settled: trio.Event = field(factory=trio.Event)  # its first start has succeeded, or failed with `problem`
    problem: StartError | None = None
    over: trio.Event = field(factory=trio.Event)  # it has ended and won't be restarted

    @property
    def id(self) -> int:
        return self.caller.id

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def declared(self) -> bool:
        return self.spawner is None

    @property
    def pid(self) -> int | None:
        """Its program's, as the host numbers it."""
        return self.program.program if self.program is not None and self.program.status is None else None

    @property
    def alive(self) -> bool:
        """It has, or is about to have, a process."""
        return self.state in ALIVE

    def begin(self) -> None:
        """A new life begins."""
        self.enter(State.STARTING)
        self.connected, self.greeted = trio.Event(), trio.Event()
        self.caller.on_hello = self.greeted.set
        if self.over.is_set():  # a supervisor above has restarted the group it belongs to
            self.over, self.dismissed, self.grace = trio.Event(), trio.Event(), None

    @property
    def allowed(self) -> float:
        """Seconds that it has between SIGTERM and SIGKILL."""
        if self.grace is not None:
            return self.grace
        shutdown = self.spec.shutdown
        return shutdown if not isinstance(shutdown, str) else 0.0 if shutdown == "brutal_kill" else math.inf

    def allow(self, grace: float) -> None:
        """Give it ``grace`` seconds to stop; where it is stopping already that never means more than it had."""
        self.grace = grace
        if self.patience is not None:
            self.patience.deadline = min(self.patience.deadline, trio.current_time() + grace)

    def settle(self, problem: StartError | None = None) -> None:
        """Its first start has come out; later ones change nothing."""
        if not self.settled.is_set():
            self.problem = problem
            self.settled.set()

    def enter(self, state: State) -> None:
        """Take a step of the life cycle; steps that it doesn't have are bugs."""
        if state is not self.state:
            assert state in NEXT[self.state], f"{self.name}: no way from {self.state} to {state}"
            self.state = state


class Registry:
    """The agents by id and by name. A name belongs to the agent that got it last."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[int, Agent] = OrderedDict()
        self._by_name: dict[str, Agent] = {}

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._by_id.values())

    def add(self, agent: Agent) -> None:
        """Take an agent in; ``AlreadyExists`` while another of that name hasn't ended for good."""
        holder = self._by_name.get(agent.name)
        if holder is not None and not holder.over.is_set():
            raise AlreadyExists(f"name: an agent called {agent.name!r} exists (id {holder.id}, {holder.state})")
        self._by_name[agent.name] = agent
        self._by_id[agent.id] = agent
        over = [other for other in self if other.over.is_set() and not other.declared]
        for other in over[:-KEPT_WHOLE]:
            other.output.trim(LAST_LINES, LAST_BYTES)
        for other in over[:-KEPT]:
            del self._by_id[other.id]
            if self._by_name.get(other.name) is other:
                del self._by_name[other.name]

    def find(self, number: int | None, name: str | None) -> Agent:
        """The agent that a request means by exactly one of ``id`` and ``name``."""
        if (number is None) == (name is None):
            raise BadRequest("name: expected exactly one of name and id")
        found = self._by_id.get(number) if number is not None else self._by_name.get(name or "")
        if found is None:
            raise NotFound(f"no agent has the id {number}" if number is not None else f"no agent is called {name!r}")
        return found

    def get(self, number: int) -> Agent | None:
        """The agent with that id, if it is one."""
        return self._by_id.get(number)

    def is_taken(self, name: str) -> bool:
        """Whether an agent of that name exists and hasn't ended for good."""
        holder = self._by_name.get(name)
        return holder is not None and not holder.over.is_set()

    def is_over(self, number: int) -> bool:
        """Whether this is the id of an agent that has ended and won't come back."""
        found = self._by_id.get(number)
        return found is not None and found.over.is_set()

    def descends(self, agent: int, ancestor: int) -> bool:
        """Whether ``agent`` was spawned by ``ancestor``, or by one that it spawned, and so on."""
        found = self._by_id.get(agent)
        while found is not None and found.parent is not None:
            found = found.parent
            if found.id == ancestor:
                return True
        return False

    def is_own(self, caller: Caller, agent: int) -> bool:
        """Whether it is the caller itself, or was spawned by it at whatever remove; all are the operator's."""
        if caller.kind == "operator" or agent == caller.id:
            return True
        if caller.kind == "agent":
            return self.descends(agent, caller.id)
        found = self._by_id.get(agent)
        while found is not None and found.parent is not None:
            found = found.parent
        return found is not None and found.guest == caller.name

    def living_below(self, ancestor: Agent) -> Sequence[Agent]:
        """The agents that ``ancestor`` or its descendants spawned and that have not ended for good."""
        return [agent for agent in self if not agent.over.is_set() and self.descends(agent.id, ancestor.id)]
