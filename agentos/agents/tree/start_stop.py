"""Stops, starts and restarts agents and groups on request, through the supervisors that run them.

Problem: OTP restarts a terminated member together with its siblings, and an agent that was stopped must stay so;
requests for one agent come at the same time, are cancelled, and meet groups that are ending.
Idea: a request first changes the agent's wish, by which it declines each start from then on, and then asks its
supervisor; a release comes before a start in the same way.
Must stay true: what was stopped stays so until START or RESTART, whatever its group does; a restart that has begun
isn't left half done (decisions 97 and 100).
"""

import contextlib
from collections.abc import Iterator, Sequence

import trio
from msgspec import Struct

from agentos.agents.life.life import wait_first
from agentos.agents.life.lifecycle import AT_START, State, Step
from agentos.agents.registry import Agent
from agentos.agents.spec import AgentSpec, GroupSpec
from agentos.services.events import AgentFailed, AgentStopped, AgentWoken
from agentos_sdk.errors import BadRequest, NotFound, Unavailable
from supervisors import NoProc, Refused, StartFailed, Supervisor

from .container import Path
from .event_lines import ROOT
from .kept_stops import KeptStops
from .stop_order import Unit, list_agent_units, list_waves
from .tracker import Tracker


class Target(Struct, frozen=True):
    """What one name stands for: a group with the agents below it, or one agent, without a ``group``."""

    agents: Sequence[Agent]
    group: Path | None = None


class StartStop(Struct, frozen=True):
    """The operations on declared agents and groups; ``restart_agent`` also takes agents that were spawned."""

    tracker: Tracker
    kept: KeptStops

    def find(self, name: str) -> Target:
        """The agent or the declared group with that name, not the root. Raises ``NotFound``.

        An agent that has ended for good leaves its name to a group, as to another agent.
        """
        registry = self.tracker.registry
        agent = registry.find_by_name(name)
        if agent is None or not registry.is_taken(name):
            for path in self.tracker.groups:
                if path[-1] == name and len(path) > 1:
                    return Target(self.list_members(path), path)
        if agent is None:
            raise NotFound(f"no agent or group is called {name!r}")
        return Target([agent])

    def list_members(self, path: Path) -> Sequence[Agent]:
        """The agents of a group and of the groups in it, in start order."""
        return [self.tracker.registry.find(None, spec.name) for spec in self._get_group(path).agents()]

    async def stop(self, agents: Sequence[Agent], by: str) -> None:
        """Stop declared agents; they decline to start until they are started. ``by`` is shown.

        They stop at the same time, but what was started after others has ended before these are asked to stop.

        If cancelled, agents that neither it nor another stop has begun to stop, or is about to, stay as they are. Not
        shielded: an agent may stop itself.
        """
        left, this = list(agents), object()
        for agent in agents:
            _stop(agent, by, this)
        try:
            for wave in self._list_waves(agents):
                for agent in wave:
                    left.remove(agent)
                    if agent.over.is_set():
                        self.tracker.registry.change(agent, AgentStopped(agent.id, agent.name, by))
                async with trio.open_nursery() as together:
                    for path in {agent.path for agent in wave}:
                        together.start_soon(self._terminate, path, [one for one in wave if one.path == path], by)
        finally:
            for agent in left:
                agent.wish.cancel_stop(this, agent.over.is_set())

    async def keep_stopped(self, agents: Sequence[Agent], by: str) -> None:
        """Have agents that are stopped stay so when the next kernel starts. Raises ``Unavailable``."""
        await self.kept.add([agent.name for agent in agents], by)
        for agent in agents:
            agent.wish.keep_stopped()

    def hold_back(self, agents: Sequence[Agent]) -> None:
        """Keep from starting what was stopped for good in an earlier run, and what waits; none of these has begun."""
        for agent in agents:
            if (by := self.kept.find(agent.name)) is not None:
                agent.wish.keep_stopped(by)
                self.tracker.finish(agent)
            elif agent.spec.waits:
                self.tracker.rest(agent)

    async def start_agent(self, agent: Agent, now: bool = False) -> None:
        """Start a declared agent that has ended, with its id, name and mailbox; returns when the start is decided.

        Its restart limits begin anew. Nothing is done if it runs or waits for its restart. One that is started only
        for a reason waits for it from then on, unless it is wanted ``now``.
        """
        if not agent.over.is_set():
            return
        supervisor = self._find_supervisor(agent)
        await self._release([agent])
        if AT_START[agent.wanted] is not Step.REST:
            await self._begin(agent, supervisor)
            await _wait_until_settled(agent)
        elif now:
            await self.wake(agent, "START")
        else:
            self.tracker.rest(agent)

    async def wake(self, agent: Agent, reason: str) -> None:
        """Start an agent that waits, or that was given up before; returns when the start is decided.

        Its restart limits begin anew. Nothing is done if it runs, or was stopped. Raises ``BadRequest``,
        ``Unavailable``.
        """
        if agent.wish.woken or agent.wish.stopped_by is not None or not agent.over.is_set():
            return
        supervisor = self._find_supervisor(agent)
        self.tracker.registry.publish(AgentWoken(agent.id, agent.name, reason))
        await self._begin(agent, supervisor)
        await _wait_until_settled(agent)

    async def end_idle(self, agent: Agent) -> None:
        """End an agent that has nothing to do; it waits then. Raises ``BadRequest``, ``Unavailable``."""
        await _terminate_child_to_restart(self._find_supervisor(agent), agent.name)
        if agent.wish.stopped_by is None and not agent.alive:
            self.tracker.rest(agent)

    async def restart_agent(self, agent: Agent) -> None:
        """Stop an agent and start it again, without its siblings; start it if it has ended."""
        supervisor = self._find_supervisor(agent)
        await self._release([agent])
        if not agent.over.is_set():
            with trio.CancelScope(shield=True):  # a caller that goes away must not leave a restart half done
                await _terminate_child_to_restart(supervisor, agent.name)
        await self._begin(agent, supervisor)
        await _wait_until_settled(agent)

    async def start_group(self, path: Path, now: bool = False) -> None:
        """Start the members of a group that have ended, in order; start the group itself if it was given up.

        Also those that wait, if they are wanted ``now``.
        """
        group, supervisor = self._get_group(path), self.tracker.find_supervisor(path)
        if supervisor is None:
            await self._release(self.list_members(path))
            await _wait_until_all_settled(await self.begin_group(path))
            if not now:
                return
        for child in group.children:
            if isinstance(child, AgentSpec):
                await self.start_agent(self.tracker.registry.find(None, child.name), now)
            else:
                await self.start_group((*path, child.name), now)

    async def restart_group(self, path: Path) -> None:
        """Stop a group and start it again. Members that were stopped by request stay so."""
        above = self._find_supervisor_above(path)
        with trio.CancelScope(shield=True):
            await _terminate_child_to_restart(above, path[-1])
        await _wait_until_all_settled(await self.begin_group(path))

    async def begin_agent(self, agent: Agent) -> None:
        """Start an agent that a reload has added or changed, without waiting until it is up; it is stopped before.

        One that was stopped by request stays so. One whose present life began since the reload is left alone.
        """
        if agent.wish.stopped_by is not None or (agent.alive and agent.lives and agent.wish.at_next_start is None):
            return
        supervisor = self._find_supervisor(agent)
        if not agent.over.is_set():
            await _terminate_child_to_restart(supervisor, agent.name)
        agent.wish.take_changes()
        step = AT_START[agent.wanted]  # it may have been stopped meanwhile
        if step is Step.REST:
            self.tracker.rest(agent)
        elif step is Step.BEGIN:
            await self._begin(agent, supervisor)

    async def begin_group(self, path: Path) -> Sequence[Agent]:
        """Start a group that isn't up, without waiting for its members, which are returned. Raises ``Unavailable``."""
        members = self.list_members(path)
        for agent in members:
            agent.unsettle()
        try:
            await _start_by_request(self._find_supervisor_above(path), path[-1], members)
        except (NoProc, StartFailed) as failure:
            for agent in members:
                self.tracker.finish(agent)
            raise Unavailable(f"{path[-1]} did not start: {failure}") from None
        return members

    async def _release(self, agents: Sequence[Agent]) -> None:
        """Let agents start that were stopped, now and when the next kernel starts. Raises ``Unavailable``."""
        await self.kept.remove([agent.name for agent in agents])
        for agent in agents:
            agent.wish.release()

    # -- Its parts -------------------------------------------------------------------------------------------------

    def _get_group(self, path: Path) -> GroupSpec:
        """The group with that path. Raises ``NotFound`` if a reload has removed it."""
        if path not in self.tracker.groups:
            raise NotFound(f"the group {path[-1]!r} was removed, or moved, by a reload of the configuration")
        return self.tracker.groups[path]

    def _find_supervisor(self, agent: Agent) -> Supervisor:
        if not agent.declared:
            if agent.supervisor is None:
                raise NotFound(f"{agent.name} has ended for good")
            return agent.supervisor
        found = self.tracker.find_supervisor(agent.path)
        if found is None:
            raise BadRequest(f"{agent.name}: its group {agent.path[-1]!r} isn't up: start the group")
        return found

    def _find_supervisor_above(self, path: Path) -> Supervisor:
        found = self.tracker.find_supervisor(path[:-1])
        if found is None:
            raise BadRequest(f"{path[-1]}: its group {path[-2]!r} isn't up: start that")
        return found

    async def _begin(self, agent: Agent, supervisor: Supervisor) -> None:
        if agent.over.is_set() and not agent.declared:  # meanwhile: by KILL, or a reload has removed it
            raise NotFound(f"{agent.name} has ended for good")
        if agent.over.is_set():
            agent.renew()
        agent.unsettle()
        agent.wish.wake(agent.spec.waits)
        try:
            await _start_by_request(supervisor, agent.name, [agent])
        except NoProc:
            self.tracker.finish(agent)
            raise _group_ends(agent.name) from None
        except StartFailed as failure:
            if not agent.alive:  # otherwise its group has begun to start it again
                self._record_failed_start(agent, failure)
            raise Unavailable(f"{agent.name} did not start: {failure.root_cause!r}") from None

    def _record_failed_start(self, agent: Agent, failure: StartFailed) -> None:
        self.tracker.registry.change(agent, AgentFailed(agent.id, agent.name, f"START: {failure.root_cause!r}"))
        if not agent.declared and agent.supervisor is not None:
            agent.supervisor.stop()
        else:
            self.tracker.finish(agent)

    def _list_waves(self, agents: Sequence[Agent]) -> Iterator[Sequence[Agent]]:
        """Agents in the order of their stops, each once."""
        named = {agent.name: agent for agent in agents}
        units = {unit.name: unit for unit in list_agent_units(self.tracker.groups, (ROOT,)) if unit.name in named}
        removed = [Unit(agent.path, agent.name) for agent in named.values() if agent.name not in units]
        for wave in list_waves([*units.values(), *removed]):
            yield [named[unit.name] for unit in wave]

    async def _terminate(self, path: Path, agents: Sequence[Agent], by: str) -> None:
        """End declared agents of one group at the same time; they decline to start from now on."""
        while left := [agent for agent in agents if not agent.over.is_set()]:
            for agent in left:
                _stop(agent, by)  # again: a RESTART may have begun it meanwhile
            supervisor = self.tracker.find_supervisor(path)
            if supervisor is not None:
                try:
                    await supervisor.terminate_children([agent.name for agent in left])
                except NoProc:
                    continue  # its group has just ended
            for agent in left:
                if supervisor is not None or agent.life.nursery is None:
                    self.tracker.finish(agent)
            if (running := next((agent for agent in left if not agent.over.is_set()), None)) is not None:
                await wait_first(self.tracker.started.wait, running.over.wait)  # in a group that is still starting


def _stop(agent: Agent, by: str, stop: object = None) -> None:
    agent.wish.stop(by, stop if not agent.over.is_set() else None)
    agent.dismiss()


async def _terminate_child_to_restart(supervisor: Supervisor, name: str) -> None:
    """Stop a child, unless it has ended by itself and the supervisor has forgotten it.

    Raises ``Unavailable`` if the supervisor is ending.
    """
    try:
        with contextlib.suppress(Refused):
            await supervisor.terminate_child(name)
    except NoProc:
        raise _group_ends(name) from None


def _group_ends(name: str) -> Unavailable:
    return Unavailable(f"{name} can't be started now: its group is ending, or the configuration is being reloaded")


async def _wait_until_settled(agent: Agent) -> None:
    """Wait for the result of its start, unless another caller, or its supervisor, has brought it up meanwhile."""
    if agent.state not in (State.RUNNING, State.PAUSED):
        await agent.settled.wait()


async def _wait_until_all_settled(members: Sequence[Agent]) -> None:
    for agent in members:
        if agent.wish.stopped_by is None:
            await _wait_until_settled(agent)


async def _start_by_request(supervisor: Supervisor, name: str, agents: Sequence[Agent]) -> None:
    """Start a child; the lives of its agents that this begins count as no restarts."""
    before = [agent.wish.requested for agent in agents]
    for agent in agents:
        agent.wish.request_start()
    begun = False
    try:
        begun = await _start_child(supervisor, name)
    finally:
        if not begun:
            for agent, was in zip(agents, before, strict=True):
                agent.wish.request_start(agent.wish.requested and was)


async def _start_child(supervisor: Supervisor, name: str) -> bool:
    """Start a child that is stopped; one that runs, or waits for its restart, is left alone: False.

    Shielded: a caller that goes away must not leave a restart half done.
    """
    with trio.CancelScope(shield=True):
        try:
            await supervisor.restart_child(name)
        except Refused as refusal:
            if refusal.code != "not_found":
                return False
            # A temporary one, which the supervisor has forgotten.
            spec = next((child for child in supervisor.spec.children if child.id == name), None)
            if spec is None:  # a reload has removed it, or is about to put it elsewhere
                raise NoProc(name) from None
            try:
                await supervisor.start_child(spec)
            except Refused:  # another caller has started it meanwhile
                return False
    return True
