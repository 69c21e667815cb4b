"""The declared tree: the specs of its supervisors, made from the configuration's groups at the start and by a reload.

Agents, containers and the bodies of groups that exist are used again, so that their supervisors can go on with new
specs.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import define, field

from agentos.agents.life.life import LifeDeps, LifeRunner
from agentos.agents.life.lifecycle import AT_START, Step
from agentos.agents.registry import Agent
from agentos.agents.spec import AgentSpec, GroupSpec, Shutdown
from agentos_sdk.errors import NotFound
from supervisors import ChildSpec, NoProc, Supervisor, SupervisorSpec, Template

from .container import BackgroundStart, Container, Group, Path, specify_one_child
from .event_lines import ROOT
from .start_stop import StartStop
from .tracker import Tracker

SPAWNED = "spawned"  # the supervisor below the root that keeps the agents spawned by the operator
FOR_SPAWNED = SupervisorSpec(
    strategy="simple_one_for_one",
    template=Template(lambda start: start, restart="temporary", shutdown="infinity", type="supervisor"),
)
"""Supervises the supervisors of spawned agents: it restarts none of them and stops all of them at once."""


@define(eq=False)
class DeclaredTree:
    """The tree that the configuration declares.

    ``add_agent`` makes an agent that does not exist yet, from its spec, the path of its group, and that of the
    supervisor that restarts it.
    """

    tracker: Tracker
    start_stop: StartStop
    deps: LifeDeps
    add_agent: Callable[[AgentSpec, Path, Path], Agent]
    specs: Mapping[Path, SupervisorSpec] = field(factory=dict, init=False)  # of each group's supervisor
    _containers: Mapping[tuple[Path, str], Container] = field(factory=dict, init=False)  # of the tree before

    def build(self, root: GroupSpec) -> SupervisorSpec:
        """The spec of the root supervisor. What the next lives of containers and groups run is changed by this."""
        self._containers, self.tracker.containers, self.tracker.groups = self.tracker.containers, {}, {}
        self.specs = specs = dict[Path, SupervisorSpec]()
        return self._make_group(root, (ROOT,), specs, ChildSpec(SPAWNED, FOR_SPAWNED))

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
                body = Group(inside, group, self.tracker.observe, self.tracker.add_supervisor)
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
        if (agent := self.tracker.registry.find_by_name(name)) is not None:
            return [agent]
        with contextlib.suppress(NotFound):
            return self.start_stop.list_members(self.start_stop.find_group(name))
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
