"""Applies a changed configuration to the tree of declared agents while it runs."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial

import trio
from attrs import define
from msgspec.structs import replace

from agentos.agents.life.lifecycle import State
from agentos.agents.registry import Agent
from agentos.agents.spec import AgentSpec, GroupSpec
from agentos_sdk.errors import CallError

from .changes import Place, TreeChange, list_places, prune_tree, take_live
from .container import Path
from .event_lines import ROOT
from .supervision import Supervision

log = logging.getLogger("agentos.reload")

Places = Mapping[str, Place]


@define(eq=False)
class TreeReload:
    """Changes a running tree; used by one task at a time.

    ``declare`` gives an agent the rights of a spec, ``forget`` removes an agent's mailbox, rights and session.
    ``keep_mail`` gets an agent's id and name, and whether its messages are kept from now on. ``change_limits`` applies
    the limits of an agent's spec to its running program, and says whether it could.
    """

    supervision: Supervision
    declare: Callable[[Agent, AgentSpec], None]
    forget: Callable[[Agent], None]
    keep_mail: Callable[[int, str, bool], None]
    change_limits: Callable[[Agent], Awaitable[bool]]

    async def apply(self, old: GroupSpec, new: GroupSpec, changes: Sequence[TreeChange]) -> Sequence[TreeChange]:
        """Replace the tree ``old`` by ``new``; returns the changes as they were made.

        Agents that start are not waited for. Raises ``AlreadyExists``, before anything is changed, if the name of an
        added agent is taken.
        """
        before, after = list_places(old), list_places(new)
        added = self._add_agents(before, after)
        remaining = await self._stop_leaving(old, before, after)
        starting = {change.name for change in changes if change.kind in ("added", "restarted")}
        # No checkpoint until the new tree is built: a life that begins meanwhile would be one of both files.
        known = list_agents(before)
        for name, spec in list_agents(after).items():
            if name in known:
                self._renew(self._find(name), before[name].spec, spec, name in starting)
        await self.supervision.declared.change(remaining, new)
        self.supervision.update_queue_paths()
        changes = [await self._settle_change(change) for change in changes]
        starting |= {change.name for change in changes if change.kind == "restarted"}
        await self._start((ROOT,), new, starting)
        self.supervision.watch_required(added)
        return changes

    def _find(self, name: str) -> Agent:
        return self.supervision.registry.find(None, name)

    def _add_agents(self, before: Places, after: Places) -> Sequence[Agent]:
        known = list_agents(before)
        added = {name: spec for name, spec in list_agents(after).items() if name not in known}
        return [
            self.supervision.add_declared(spec, after[name].path, after[name].supervisor)
            for name, spec in added.items()
        ]

    async def _stop_leaving(self, old: GroupSpec, before: Places, after: Places) -> GroupSpec:
        """Stop what isn't in the new tree, or is in another place of it; returns the tree that remains."""
        stays = {name for name, place in before.items() if place.is_at(after.get(name))}
        leaving = [self._find(name) for name in list_agents(before) if name not in stays]
        remaining = prune_tree(old, stays)
        for agent in leaving:
            agent.spec = replace(agent.spec, required=False)  # the kernel must not end because of this
            agent.dismiss()
        await self.supervision.declared.change(old, remaining)
        wanted = list_agents(after)
        for agent in leaving:
            self.supervision.tracker.finish(agent)
            if agent.name not in wanted:
                self.forget(agent)
                self.supervision.tracker.remove_agent(agent)
        return remaining

    def _renew(self, agent: Agent, was: AgentSpec | GroupSpec, spec: AgentSpec, starts: bool) -> None:
        """Apply what holds at once; keep the rest for the next life of an agent that runs and has to be restarted."""
        if starts or agent.wish.at_next_start is not None:
            agent.wish.change_later(partial(self._become, agent, spec))
            agent.spec = take_live(agent.spec, spec)
        else:
            self._become(agent, spec)
        if starts and agent.wish.stopped_by is None and agent.arrived.is_set():
            agent.arrived, agent.came_up = trio.Event(), False  # for those that wait for it with `after`
        if isinstance(was, AgentSpec) and spec.permissions != was.permissions and spec.jailed == agent.spec.jailed:
            self.declare(agent, spec)
        if isinstance(was, AgentSpec) and spec.mailbox != was.mailbox:
            self.keep_mail(agent.id, agent.name, spec.mailbox == "kept")
        if not agent.alive:
            agent.wish.take_changes()

    def _become(self, agent: Agent, spec: AgentSpec) -> None:
        jailed = agent.spec.jailed
        agent.spec = replace(spec, permissions=agent.spec.permissions)  # which SET_PERMS may have replaced
        if spec.jailed != jailed:
            self.declare(agent, spec)

    async def _settle_change(self, change: TreeChange) -> TreeChange:
        """The change as it is made.

        It is a restart if limits can't change while the agent runs, or if its start waits for what the file said.
        """
        agent = self.supervision.registry.find_by_name(change.name)
        if change.kind != "updated" or agent is None or not agent.alive:
            return change
        waits = agent.state is State.STARTING and not {"after", "ready"}.isdisjoint(change.fields)
        limits = any(field.startswith("limits.") for field in change.fields)
        if not waits and (not limits or await self.change_limits(agent)):
            return change
        if agent.wish.at_next_start is None:
            agent.wish.change_later(partial(self._become, agent, agent.spec))
        return replace(change, kind="restarted")

    async def _start(self, path: Path, group: GroupSpec, starting: Set[str]) -> None:
        """Start or restart these agents and groups below a group, in the order of the file."""
        start_stop = self.supervision.start_stop
        if self.supervision.tracker.find_supervisor(path) is None:
            if not starting.isdisjoint(list_places(group)):  # it was given up, or waits for its restart
                await self._begin(start_stop.begin_group(path))
            return
        for child in group.children:
            if isinstance(child, GroupSpec) and child.name not in starting:
                await self._start((*path, child.name), child, starting)
            elif isinstance(child, GroupSpec):
                await self._begin(start_stop.begin_group((*path, child.name)))
            elif child.name in starting:
                await self._begin(start_stop.begin_agent(self._find(child.name)))

    async def _begin(self, start: Awaitable[None]) -> None:
        try:
            await start
        except CallError as error:  # the reload has happened; the agent's state shows it
            log.warning("%s", error)


def list_agents(places: Places) -> Mapping[str, AgentSpec]:
    """The specs of the agents among these."""
    return {name: place.spec for name, place in places.items() if isinstance(place.spec, AgentSpec)}
