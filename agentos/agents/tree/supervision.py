"""Agent supervision: builds the supervisor tree from the specs, runs and stops it, spawns and kills agents."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

import trio
from attrs import define, field
from msgspec import Struct

from agentos.agents.life.life import LifeDeps, LifeRunner, wait_first
from agentos.agents.life.output import Output
from agentos.agents.model_share import choose_share
from agentos.agents.registry import Agent, Converse, Registry, StartError
from agentos.agents.spec import STOP_TIMEOUT, AgentSpec, GroupSpec
from agentos.kernel.caller import Caller
from agentos.llm.settings import Account, QueuePath, Share
from agentos.services.events import AgentOutput, KernelStopping
from agentos.services.quotas import Quota
from agentos.services.rate_limit import Rate
from agentos.threads import Limiter
from agentos_sdk.errors import Unavailable
from agentos_sdk.values import End, Line
from supervisors import GaveUp, NoProc, Refused, StartFailed, Supervisor, SupervisorSpec

from .container import Path, specify_one_child
from .declared_tree import FOR_SPAWNED, SPAWNED, CallerPorts, DeclaredTree
from .event_lines import ROOT
from .kept_stops import KeptStops
from .start_stop import StartStop
from .stop_order import list_units, list_waves
from .tracker import Tracker

log = logging.getLogger("agentos.agents")
NOT_NOW = "no agent can be started now: the supervisor above it is stopping or being restarted"
FORCED_STOP = 3.0  # seconds from a forced stop until what still runs is cancelled


class SpawnLimits(Struct, frozen=True):
    """How many living descendants an agent may have, and how many agents it may spawn per second."""

    children: int = 32
    per_second: float = 10.0


class OneAgent(Struct, frozen=True):
    """A supervisor of its own for each spawned agent, so that its failures don't affect other agents.

    It reports its start before the agent is up: while one agent is slow to start, the supervisor above must be free to
    start and stop others. A spawner waits for ``Agent.settled``.
    """

    spec: SupervisorSpec
    agent: Agent
    tracker: Tracker

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[Supervisor]) -> None:
        agent = self.agent
        *within, name = agent.path
        agent.supervisor = Supervisor(self.spec, id=name, within=tuple(within), observe=self.tracker.observe)
        task_status.started(agent.supervisor)
        try:
            if not agent.wish.dismissed:
                await agent.supervisor.run(stop)
        finally:  # in every case, because the spawner waits for the result
            agent.settle(StartError(agent.end or End(None, None, "stopped before it had begun"), []))
            self.tracker.finish(agent)


@define(eq=False)
class Supervision:
    """The agent tree of one kernel.

    ``kernel_account`` is the share of the model for all agents together, ``default_budget`` that of an agent that isn't
    trusted and has no other.
    """

    registry: Registry
    ports: CallerPorts
    deps: LifeDeps
    limits: SpawnLimits
    kernel_account: Account
    default_budget: Sequence[Quota]
    kept_stops: KeptStops
    stop_timeout: float = STOP_TIMEOUT
    root: Supervisor = field(init=False)
    tracker: Tracker = field(init=False)
    start_stop: StartStop = field(init=False)
    declared: DeclaredTree = field(init=False)
    begun: trio.Event = field(factory=trio.Event, init=False)  # the root supervisor is up
    _asked: trio.Event = field(factory=trio.Event, init=False)  # to end the tree
    _tree: trio.Nursery = field(init=False)
    _required_up: trio.Event = field(factory=trio.Event, init=False)  # or one of them can't come up
    _missing: str | None = field(default=None, init=False)  # why a required agent isn't up
    _starting_supervisor: Limiter = field(factory=lambda: Limiter(1), init=False)  # of the agents that an agent spawns
    _running: trio.CancelScope = field(factory=trio.CancelScope, init=False)  # around the run of the tree

    def __attrs_post_init__(self) -> None:
        self.tracker = Tracker(self.registry)
        self.start_stop = StartStop(self.tracker, self.kept_stops)
        self.declared = DeclaredTree(
            self.tracker,
            self.start_stop,
            self.deps,
            self.ports,
            self._add_agent,
            self._watch_more,
            self._update_queue_paths,
        )

    def build(self, group: GroupSpec) -> Supervisor:
        """The root supervisor of a declared tree, not running yet."""
        self.root = Supervisor(self.declared.build(group), id=ROOT, observe=self.tracker.observe)
        self.tracker.add_supervisor(self.root)
        self.start_stop.hold_back([*self.registry])
        return self.root

    async def run(self, ready: Callable[[Sequence[str]], None]) -> str | None:
        """Run the tree until it ends; returns why if it gave up, None if it was asked to end.

        ``ready`` is called when each required agent has come up, and all members of the root unless it is
        ``one_for_one``; not if the tree is ending by then. It gets the names of the declared agents that aren't up yet.
        """
        with self._running:
            try:
                async with trio.open_nursery() as tree:
                    tree.start_soon(self._watch_required, list(self.registry))
                    tree.start_soon(self._end_when_asked)
                    await tree.start(self.root.run)
                    self._tree = tree
                    self.begun.set()
                    await self._required_up.wait()
                    if self.root.exit is None and not self.stopping:
                        ready([agent.name for agent in self.registry if agent.declared and not agent.arrived.is_set()])
            except* (GaveUp, StartFailed):
                pass  # the root's exit says why
        assert self.root.exit is not None
        return self._missing or self.tracker.explain_root_exit(self.root.exit)

    def _watch_more(self, added: Sequence[Agent]) -> None:
        """Stop the tree if one of these agents is required and doesn't come up in its time."""
        if self.root.exit is None:  # otherwise the kernel has stopped during a reload
            self._tree.start_soon(self._watch_required, added)

    async def _watch_required(self, agents: Sequence[Agent]) -> None:
        """Stop the tree if a required agent isn't up in its time, or can't be any more."""
        began = trio.current_time()
        for agent in [agent for agent in agents if agent.spec.required]:
            with trio.move_on_at(began + agent.spec.start_timeout):
                await agent.arrived.wait()
            if not agent.spec.required:  # by a reload
                continue
            done = agent.spec.restart != "permanent" and agent.end is not None and agent.end.exit_code == 0
            if not agent.came_up and not done and agent.wish.stopped_by is None and not self.stopping:
                late = f"it wasn't up within {agent.spec.start_timeout:g} s"
                last = agent.end.reason if agent.end is not None else "it never began"
                why = late if not agent.arrived.is_set() else "it was given up"
                self._missing = f"{agent.name} is required, and {why} ({last})"
                self.stop()
                break
        self._required_up.set()

    def shut_down(self, grace: float | None = None) -> None:
        """End the tree in order, and with it the kernel; ``grace`` limits each agent's shutdown time, in seconds."""
        if grace is not None:
            for agent in self.registry:
                agent.limit_shutdown_time(min(grace, agent.shutdown_time))
        if not self.stopping:
            self.registry.publish(KernelStopping())
            self.stop()

    @property
    def stopping(self) -> bool:
        """Whether the tree was asked to end."""
        return self._asked.is_set()

    def stop(self) -> None:
        """End the tree, within ``stop_timeout``: agents after those they spawned and those started after them."""
        self._asked.set()
        if not self.begun.is_set():
            self.root.stop()  # which aborts the start

    async def _end_when_asked(self) -> None:
        await wait_first(self._asked.wait, self.root.wait)
        with trio.move_on_after(self.stop_timeout):
            if self.begun.is_set() and self.root.exit is None:
                await self._stop_in_waves()
            self.root.stop()
            await self.root.wait()
            return
        log.warning("after kernel.stop_timeout (%g s), killing what still runs", self.stop_timeout)
        self.root.stop()
        self.stop_now()

    async def _stop_in_waves(self) -> None:
        """Stop all agents; what doesn't stop in a group of its own is left to the root supervisor."""
        for agent in self.registry:
            if not agent.declared and agent.parent is None and not agent.over.is_set():
                self._dismiss(agent)
        for wave in list_waves(list_units(self.tracker.groups, (ROOT,))):
            async with trio.open_nursery() as together:
                for path in {unit.path for unit in wave}:
                    names = [unit.name for unit in wave if unit.path == path]
                    together.start_soon(terminate, self.tracker.find_supervisor(path), names)

    def stop_now(self) -> None:
        """Set all shutdown times to zero, including those of agents that are stopping already.

        What still runs :data:`FORCED_STOP` seconds later is cancelled.
        """
        for agent in self.registry:
            agent.limit_shutdown_time(0)
        self._running.deadline = trio.current_time() + FORCED_STOP

    async def spawn(
        self,
        spec: AgentSpec,
        spawner: Caller,
        parent: Agent | None,
        converse: Converse | None = None,
        rights_of: Caller | None = None,
        begin: Callable[[Agent], object] | None = None,
    ) -> Agent:
        """Start an agent below ``parent``, or below the root without one; it is running on return.

        ``converse`` speaks with its program over standard input and output; only a jailed one can have it.
        It has no right that the spawner, or instead of it the caller ``rights_of``, doesn't have. ``begin`` is called
        with it before its program starts.

        Raises ``AlreadyExists``, ``Unavailable`` or :class:`~agentos.agents.registry.StartError`. If cancelled, no
        agent is left.
        """
        within = (ROOT, SPAWNED) if parent is None else (*parent.path, parent.name)
        may_start = parent.life.spawns if parent is not None else self.tracker.find_supervisor(within) is not None
        if self._asked.is_set() or not may_start:
            raise Unavailable(NOT_NOW)
        # Nothing is awaited before, so that it counts.
        agent = self._add_agent(spec, (*within, spec.name), None, parent, spawner, rights_of)
        agent.converse = converse
        life = LifeRunner(agent, self.deps)
        try:
            if begin is not None:
                begin(agent)
            above = self.tracker.find_supervisor(within) if parent is None else await self._supervise_children(parent)
            if above is None:
                raise NoProc(within[-1])
            one = specify_one_child(spec.name, life, spec.restart, spec.backoff, spec.max_restarts, spec.restart_window)
            await above.start_child(OneAgent(one, agent, self.tracker))
            await agent.settled.wait()
        except (NoProc, Refused, StartFailed):  # its supervisor or an agent of that name is ending
            self.tracker.finish(agent)
            raise Unavailable(NOT_NOW) from None
        except BaseException:
            self._dismiss(agent)
            raise
        if agent.problem is not None:
            await agent.over.wait()
            problem, agent.problem = agent.problem, None  # once raised it references frames
            raise problem
        return agent

    async def _supervise_children(self, parent: Agent) -> Supervisor | None:
        """The supervisor of the agents that ``parent`` spawns; None if the parent is stopping.

        It is started for the first of them. It runs in the parent's life, and ends with it.
        """
        async with self._starting_supervisor:
            life = parent.life
            if life.children is None and life.nursery is not None and life.spawns:
                life.children = Supervisor(
                    FOR_SPAWNED, id=parent.name, within=parent.path, observe=self.tracker.observe
                )
                with trio.CancelScope(shield=True):  # others may wait for it, too
                    await life.nursery.start(life.children.run)
            return life.children

    async def wake(self, agent: Agent, reason: str) -> None:
        """Start an agent that waits, unless the kernel ends; as :meth:`.start_stop.StartStop.wake`."""
        if not self.stopping:
            await self.start_stop.wake(agent, reason)

    async def kill(self, agent: Agent, grace: float | None, by: str) -> None:
        """End an agent for good, after the agents it spawned; a declared one is stopped, as by STOP.

        ``grace`` overrides its shutdown time, in seconds; its descendants get no more than that either.
        """
        if grace is not None:
            agent.limit_shutdown_time(grace)
            for other in self.registry.living_below(agent):
                other.limit_shutdown_time(min(grace, other.shutdown_time))
        if agent.declared:
            await self.start_stop.stop([agent], by)
        else:
            self._dismiss(agent)
        await agent.over.wait()

    def _dismiss(self, agent: Agent) -> None:
        """Stop the supervisor of a spawned agent. Waiting would block the supervisor above."""
        agent.dismiss()
        if agent.supervisor is not None:
            agent.supervisor.stop()
        else:
            self.tracker.finish(agent)  # its supervisor has not begun, and won't

    def _add_agent(
        self,
        spec: AgentSpec,
        path: Path,
        supervisor: Path | None,
        parent: Agent | None = None,
        spawner: Caller | None = None,
        rights_of: Caller | None = None,
    ) -> Agent:
        """Create and register an agent. ``supervisor`` is the path of the one that restarts it, if not ``path``.

        Raises ``AlreadyExists``.
        """
        caller = self.ports.make(spec, rights_of or spawner)
        guest = spawner if spawner is not None and spawner.kind == "guest" else None
        above = self.ports.queue_path(guest) if guest is not None else None
        agent = Agent(
            spec,
            caller,
            path,
            parent,
            spawner.id if spawner is not None else None,
            guest.name if guest is not None else None,
            self._make_queue_path(spec, path, parent.queue_path if parent is not None else above),
            Rate(self.limits.per_second, self.limits.children),
            Output(partial(self._publish_line, caller.id, spec.name)),
        )
        self.tracker.add_agent(agent, supervisor or path)
        return agent

    def _publish_line(self, agent_id: int, name: str, line: Line) -> None:
        self.registry.publish(AgentOutput(agent_id, name, line.stream, line.text, line.at))

    def _update_queue_paths(self) -> None:
        """Apply changed shares of agents and groups; those that were spawned follow their parents."""
        for agent in self.registry:
            if agent.declared:
                agent.queue_path = self._make_queue_path(agent.spec, agent.path, None)
            elif agent.parent is not None:
                agent.queue_path = (*agent.parent.queue_path, agent.queue_path[-1])

    def _make_queue_path(self, spec: AgentSpec, path: Path, above: QueuePath | None) -> QueuePath:
        """An agent's place in the model's queue. A group counts in it only with a weight or a budget in the file."""
        if above is not None:
            name = f"{above[-1].name}/{spec.name}"
            return (*above, Account(name, choose_share(spec, above, self.default_budget)))
        declared = self.tracker.groups
        around = [declared[path[:depth]] for depth in range(1, len(path) + 1) if path[:depth] in declared]
        groups = tuple(Account(f"group {group.name}", group.llm) for group in around if group.llm != Share())
        above = (self.kernel_account, *groups)
        return (*above, Account(spec.name, choose_share(spec, above, self.default_budget)))


async def terminate(supervisor: Supervisor | None, names: Sequence[str]) -> None:
    """Stop children at the same time, if their supervisor is up."""
    if supervisor is not None:
        with contextlib.suppress(NoProc):
            await supervisor.terminate_children(names)
