"""The declared tree: the specs of its supervisors, made from the configuration's groups at the start and by a reload.

Agents, containers and the bodies of groups that exist are used again, so that their supervisors can go on with new
specs.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial

import trio
from attrs import define, field
from msgspec import Struct
from msgspec.structs import replace

from agentos.agents.life.life import LifeDeps, LifeRunner
from agentos.agents.life.lifecycle import AT_START, State, Step
from agentos.agents.registry import Agent
from agentos.agents.spec import AgentSpec, GroupSpec, Shutdown
from agentos.kernel.caller import Caller
from agentos.llm.settings import QueuePath
from agentos_sdk.errors import CallError, NotFound
from supervisors import ChildSpec, NoProc, Supervisor, SupervisorSpec, Template

from .changes import Place, TreeChange, list_places, prune_tree, take_live
from .container import BackgroundStart, Container, Group, Path, specify_one_child
from .event_lines import ROOT
from .start_stop import StartStop
from .tracker import Tracker

log = logging.getLogger("agentos.reload")
SPAWNED = "spawned"  # the supervisor below the root that keeps the agents spawned by the operator
FOR_SPAWNED = SupervisorSpec(
    strategy="simple_one_for_one",
    template=Template(lambda start: start, restart="temporary", shutdown="infinity", type="supervisor"),
)
"""Supervises the supervisors of spawned agents: it restarts none of them and stops all of them at once."""


class CallerPorts(Struct, frozen=True):
    """What the tree needs of the kernel's callers.

    ``make`` gives an agent its identity and its rights, ``declare`` changes them to those of a spec, ``limit`` takes
    away what a spec doesn't grant, ``forget`` removes its mailbox, rights and session. ``queue_path`` returns a
    caller's place in the model's queue. ``keep_mail`` gets an agent's id and name, and whether its messages are kept
    from now on.
    """

    make: Callable[[AgentSpec, Caller | None], Caller]
    declare: Callable[[Agent, AgentSpec], None]
    limit: Callable[[Agent, AgentSpec], None]
    forget: Callable[[Agent], None]
    queue_path: Callable[[Caller], QueuePath]
    keep_mail: Callable[[int, str, bool], None]


@define(eq=False)
class DeclaredTree:
    """The tree that the configuration declares. One task at a time reloads it.

    ``add_agent`` makes an agent that does not exist yet, from its spec, the path of its group, and that of the
    supervisor that restarts it. ``watch_required`` watches the start of those that a reload adds.
    """

    tracker: Tracker
    start_stop: StartStop
    deps: LifeDeps
    ports: CallerPorts
    add_agent: Callable[[AgentSpec, Path, Path], Agent]
    watch_required: Callable[[Sequence[Agent]], None]
    update_queue_paths: Callable[[], None]
    specs: Mapping[Path, SupervisorSpec] = field(factory=dict, init=False)  # of each group's supervisor
    _containers: Mapping[tuple[Path, str], Container] = field(factory=dict, init=False)  # of the tree before
    _limited: set[str] = field(factory=set, init=False)  # agents whose next life gets other rights than the present one

    def build(self, root: GroupSpec) -> SupervisorSpec:
        """The spec of the root supervisor. What the next lives of containers and groups run is changed by this."""
        self._containers, self.tracker.containers, self.tracker.groups = self.tracker.containers, {}, {}
        self.specs = specs = dict[Path, SupervisorSpec]()
        return self._make_group(root, (ROOT,), specs, ChildSpec(SPAWNED, FOR_SPAWNED))

    async def reload(self, old: GroupSpec, new: GroupSpec, changes: Sequence[TreeChange]) -> Sequence[TreeChange]:
        """Replace the tree ``old`` by ``new``; returns the changes as they were made.

        Agents that start are not waited for. Raises ``AlreadyExists``, before anything is changed, if the name of an
        added agent is taken.
        """
        before, after = list_places(old), list_places(new)
        known = {spec.name for spec in old.agents()}
        added = [
            self.add_agent(spec, after[spec.name].path, after[spec.name].supervisor)
            for spec in new.agents()
            if spec.name not in known
        ]
        starting = {change.name for change in changes if change.kind in ("added", "restarted")}
        for spec in new.agents():
            if spec.name in known:
                self._change_rights(self._find(spec.name), before[spec.name].spec, spec, spec.name in starting)
        self.update_queue_paths()
        remaining = await self._stop_leaving(old, before, after)
        # No checkpoint until the new tree is built: a life that begins meanwhile would be one of both files.
        for spec in new.agents():
            if spec.name in known:
                self._renew(self._find(spec.name), before[spec.name].spec, spec, spec.name in starting)
        await self.change(remaining, new)
        self.update_queue_paths()
        changes = [await self._settle_change(change) for change in changes]
        starting |= {change.name for change in changes if change.kind == "restarted"}
        await self._start((ROOT,), new, starting)
        self.watch_required(added)
        return changes

    def _find(self, name: str) -> Agent:
        return self.tracker.registry.find(None, name)

    async def _stop_leaving(self, old: GroupSpec, before: Mapping[str, Place], after: Mapping[str, Place]) -> GroupSpec:
        """Stop what isn't in the new tree, or is in another place of it; returns the tree that remains."""
        stays = {name for name, place in before.items() if place.is_at(after.get(name))}
        leaving = [self._find(spec.name) for spec in old.agents() if spec.name not in stays]
        remaining = prune_tree(old, stays)
        for agent in leaving:
            agent.spec = replace(agent.spec, required=False)  # the kernel must not end because of this
            agent.dismiss()
        await self.change(old, remaining)
        moved = {name for name, place in after.items() if isinstance(place.spec, AgentSpec)}
        for agent in leaving:
            self.tracker.finish(agent)
            if agent.name not in moved:
                self._limited.discard(agent.name)
                self.ports.forget(agent)
                self.tracker.remove_agent(agent)
        return remaining

    def _change_rights(self, agent: Agent, was: AgentSpec | GroupSpec, spec: AgentSpec, starts: bool) -> None:
        """Apply the rights and the share of the model before anything is stopped, which takes up to its shutdown time.

        A program that shall end gets no right that is meant for the next one.
        """
        agent.spec = replace(agent.spec, llm=spec.llm)
        if not isinstance(was, AgentSpec) or (spec.permissions, spec.jailed) == (was.permissions, was.jailed):
            return
        if starts or spec.name in self._limited:
            self._limited.add(spec.name)
            self.ports.limit(agent, spec)
        else:
            self.ports.declare(agent, spec)

    def _renew(self, agent: Agent, was: AgentSpec | GroupSpec, spec: AgentSpec, starts: bool) -> None:
        """Apply what holds at once; keep the rest for the next life of an agent that runs and has to be restarted."""
        if starts or agent.wish.at_next_start is not None:
            agent.wish.change_later(partial(self._become, agent, spec))
            agent.spec = take_live(agent.spec, spec)
        else:
            self._become(agent, spec)
        if starts and agent.wish.stopped_by is None and agent.arrived.is_set():
            agent.arrived, agent.came_up = trio.Event(), False  # for those that wait for it with `after`
        if isinstance(was, AgentSpec) and spec.mailbox != was.mailbox:
            self.ports.keep_mail(agent.id, agent.name, spec.mailbox == "kept")
        if not agent.alive:
            agent.wish.take_changes()

    def _become(self, agent: Agent, spec: AgentSpec) -> None:
        agent.spec = replace(spec, permissions=agent.spec.permissions)  # which SET_PERMS may have replaced
        if spec.name in self._limited:
            self._limited.remove(spec.name)
            self.ports.declare(agent, spec)

    async def _settle_change(self, change: TreeChange) -> TreeChange:
        """The change as it is made.

        It is a restart if limits can't change while the agent runs, or if its start waits for what the file said.
        """
        agent = self.tracker.registry.find_by_name(change.name)
        if change.kind != "updated" or agent is None or not agent.alive:
            return change
        waits = agent.state is State.STARTING and not {"after", "ready"}.isdisjoint(change.fields)
        limits = any(field.startswith("limits.") for field in change.fields)
        if not waits and (not limits or await self.deps.jails.change_limits(agent)):
            return change
        if agent.wish.at_next_start is None:
            agent.wish.change_later(partial(self._become, agent, agent.spec))
        return replace(change, kind="restarted")

    async def _start(self, path: Path, group: GroupSpec, starting: Set[str]) -> None:
        """Start or restart these agents and groups below a group, in the order of the file."""
        if self.tracker.find_supervisor(path) is None:
            if not starting.isdisjoint(list_places(group)):  # it was given up, or waits for its restart
                await self._begin(self.start_stop.begin_group(path))
            return
        for child in group.children:
            if isinstance(child, GroupSpec) and child.name not in starting:
                await self._start((*path, child.name), child, starting)
            elif isinstance(child, GroupSpec):
                await self._begin(self.start_stop.begin_group((*path, child.name)))
            elif child.name in starting:
                await self._begin(self.start_stop.begin_agent(self._find(child.name)))

    async def _begin(self, start: Awaitable[object]) -> None:
        try:
            await start
        except CallError as error:  # the reload has happened; the agent's state shows it
            log.warning("%s", error)

    async def change(self, old: GroupSpec, new: GroupSpec) -> None:
        """Replace the tree ``old`` by ``new``: children that are not in it are stopped, new ones are not started yet.

        A child must not be in another place of the new tree than of the old one. Supervisors below which nothing
        differs are left alone.
        """
        self.build(new)
        await self._change((ROOT,), old, new)

    async def _change(self, path: Path, old: GroupSpec, new: GroupSpec) -> None:
        if old == new:
            return
        await change_spec(self.tracker.find_supervisor(path), self.specs[path])
        before = {child.name: child for child in old.children}
        for child in new.children:
            was = before.get(child.name)
            if was is None or was == child:
                continue
            if (container := self.tracker.containers.get((path, child.name))) is not None:
                await change_spec(container.supervisor, container.spec)
            if isinstance(child, GroupSpec) and isinstance(was, GroupSpec):
                await self._change((*path, child.name), was, child)

    # -- Making specs ----------------------------------------------------------------------------------------------

    def _make_group(
        self, group: GroupSpec, path: Path, specs: dict[Path, SupervisorSpec], *before: ChildSpec
    ) -> SupervisorSpec:
        self.tracker.groups[path] = group
        make = self._make_container if group.strategy == "one_for_one" else self._make_member
        specs[path] = SupervisorSpec(
            [*before, *(make(spec, path, specs) for spec in group.children)],
            strategy=group.strategy,
            intensity=group.intensity,
            period=group.period,
            auto_shutdown=group.auto_shutdown,
            shutdown_order="together" if stops_together(group) else "reverse",
        )
        return specs[path]

    def _make_member(self, spec: AgentSpec | GroupSpec, path: Path, specs: dict[Path, SupervisorSpec]) -> ChildSpec:
        """A child that is restarted together with its siblings: it starts when the previous one is up."""
        start: LifeRunner | SupervisorSpec
        shutdown: Shutdown
        if isinstance(spec, AgentSpec):
            # A life limits its own shutdown time; the agents that it spawned end first.
            start, shutdown = self._make_life(spec, path, path), "infinity"
        else:
            start, shutdown = self._make_group(spec, (*path, spec.name), specs), spec.shutdown
        return ChildSpec(
            spec.name,
            start,
            restart=spec.restart,
            shutdown=shutdown,
            significant=spec.significant,
            backoff=spec.backoff,
        )

    def _make_container(self, spec: AgentSpec | GroupSpec, path: Path, specs: dict[Path, SupervisorSpec]) -> ChildSpec:
        """A child of a ``one_for_one`` group, in a container that applies the child's own limits."""
        inside = (*path, spec.name)
        container = self._containers.get((path, spec.name))
        start: BackgroundStart | Group
        shutdown: Shutdown
        declines: Callable[[], bool] = bool
        wait = partial(self._wait_for, spec.after)
        if isinstance(spec, AgentSpec):
            life = self._make_life(spec, path, inside)
            start, shutdown = BackgroundStart(life, wait), "infinity"
            declines = partial(self._declines, life.agent)
        else:
            group = self._make_group(spec, inside, specs)
            body = container.child.start if container is not None else None
            if not isinstance(body, Group):
                body = Group(inside, group, self.tracker.observe, self.tracker.add_supervisor, wait)
            start = body
            start.spec, start.wait, shutdown = group, wait, spec.shutdown
        one = specify_one_child(spec.name, start, spec.restart, spec.backoff, spec.max_restarts, spec.restart_window)
        if container is None:
            container = Container(inside, one, False, self.tracker.observe, declines)
        container.spec, container.escalates = one, spec.on_give_up == "escalate"
        self.tracker.containers[path, spec.name] = container
        return ChildSpec(
            spec.name,
            container,
            restart="transient",
            shutdown=shutdown,
            significant=spec.significant,
            type="supervisor",
        )

    def _make_life(self, spec: AgentSpec, path: Path, supervisor: Path) -> LifeRunner:
        agent = self.tracker.registry.find_by_name(spec.name)
        if agent is None or not agent.declared:
            agent = self.add_agent(spec, path, supervisor)
        self.tracker.place_agent(agent, path, supervisor)
        return LifeRunner(agent, self.deps)

    def _declines(self, agent: Agent) -> bool:
        """Whether an agent doesn't start now: it was stopped by request, or waits from now on."""
        step = AT_START[agent.wanted]
        if step is Step.REST:
            self.tracker.rest(agent)
        return step is not Step.BEGIN

    async def _wait_for(self, names: Sequence[str]) -> None:
        """Return when these agents, and the agents of these groups, have come up, ended for good or were given up."""
        for agent in [agent for name in names for agent in self._find_agents(name)]:
            await agent.arrived.wait()

    def _find_agents(self, name: str) -> Sequence[Agent]:
        """The agent of that name, or the agents of that group; none if a reload has removed it."""
        with contextlib.suppress(NotFound):
            return self.start_stop.find(name).agents
        return []


def stops_together(group: GroupSpec) -> bool:
    """Whether no member of a ``one_for_one`` group was started after another one."""
    names = {child.name for child in group.children}
    return group.strategy == "one_for_one" and not any(names & {*child.after} for child in group.children)


async def change_spec(supervisor: Supervisor | None, spec: SupervisorSpec) -> None:
    """Change the spec of a supervisor that is up; nothing is done for another one, whose next life has it anyway."""
    if supervisor is not None:
        with contextlib.suppress(NoProc):
            await supervisor.change_spec(spec)
