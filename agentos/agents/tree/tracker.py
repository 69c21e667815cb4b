"""The state of the agent tree: kept from the reports of the supervisors, and published as events.

Problem: supervisors know children and paths, and nothing of agents; what they do to a child means different things
for an agent, a container, a group, and for an agent that was stopped meanwhile.
Idea: one observer of all supervisors translates each report into events of agents. It also has the tree's index:
which supervisors are up, which groups are declared, where each agent is.
Must stay true: a report leads to the same events whatever asked for what it reports; each agent that ended for good
has exactly one ``AgentOver``, and then what its wish adds (decisions 22 and 100).
"""

import logging
import time
from collections.abc import Sequence

import trio
from attrs import define, field

from agentos.agents.life.failures import MANY, WINDOW, Failures
from agentos.agents.life.lifecycle import AT_END, State, Wanted
from agentos.agents.registry import Agent, Registry
from agentos.agents.spec import GroupSpec
from agentos.agents.workspaces import script_copies
from agentos.services.events import (
    AgentEscalated,
    AgentExited,
    AgentFailed,
    AgentOver,
    AgentRestarting,
    AgentStopped,
    AgentWaiting,
)
from agentos_sdk.encoding.quantities import duration
from supervisors import Exit, Interrupted, StartFailed, Supervisor, reports
from supervisors.exits import IntensityExceeded, TooManyFailures, gave_up
from supervisors.strategy import Restart, comes_back

from .container import Container, Path
from .event_lines import ROOT
from .give_up import describe_give_up

log = logging.getLogger("agentos.agents")


@define(eq=False)
class Tracker:
    """Observes all supervisors of a kernel.

    ``groups`` are the declared groups by the path of their supervisor. ``containers`` are the children that run in a
    container, by the path of the supervisor above it and their name.
    """

    registry: Registry
    groups: dict[Path, GroupSpec] = field(factory=dict)
    containers: dict[tuple[Path, str], Container] = field(factory=dict)
    _agents: dict[tuple[Path, str], Agent] = field(factory=dict)  # by the path of the supervisor that restarts it
    _supervisors: dict[Path, Supervisor] = field(factory=dict)  # those that are up
    started: trio.Event = field(factory=trio.Event)  # set when a supervisor is up, then replaced

    def add_agent(self, agent: Agent, supervisor: Path) -> None:
        """Add an agent that the supervisor with that path restarts; raises ``AlreadyExists``."""
        self.registry.add(agent)
        self._agents[supervisor, agent.name] = agent

    def place_agent(self, agent: Agent, path: Path, supervisor: Path) -> None:
        """Record the place of a declared agent: the path of its group, and that of the supervisor that restarts it."""
        agent.path = path
        if self._agents.get((supervisor, agent.name)) is not agent:
            self._drop_place(agent)
            self._agents[supervisor, agent.name] = agent

    def remove_agent(self, agent: Agent) -> None:
        """Forget a declared agent that has ended, and is declared no more. What it was stays like a spawned one's."""
        if agent.state is State.WAITING:
            self.registry.change(agent, AgentOver(agent.id, agent.name))
        agent.wish.remove()
        self._drop_place(agent)
        self.registry.retire(agent)

    def _drop_place(self, agent: Agent) -> None:
        self._agents = {place: other for place, other in self._agents.items() if other is not agent}

    def add_supervisor(self, supervisor: Supervisor) -> None:
        """Record a supervisor that is up, so that its children can be terminated."""
        self._supervisors[supervisor.path] = supervisor
        self.started.set()
        self.started = trio.Event()

    def find_supervisor(self, path: Path) -> Supervisor | None:
        """The supervisor with that path if it is up."""
        return self._supervisors.get(path)

    def observe(self, report: reports.Report) -> None:
        """Update the registry from a supervisor's report."""
        match report:
            case reports.ChildStarted(path, id, Supervisor() as supervisor) if supervisor.path == (*path, id):
                self.add_supervisor(supervisor)
            case reports.ChildStartFailed(path, id):
                if agent := self._agents.get((path, id)):
                    self._record_exit(agent)
            case reports.ChildDeclined(path, id):
                agent = self._agents.get((path, id))
                # Neither a stopped agent nor one that RESTART is about to start.
                if agent is not None and agent.wanted is not Wanted.STOP and agent.state is not State.STOPPED:
                    self._record_exit(agent)
                    self.finish(agent)
            case reports.ChildEnded(path, id, exit) | reports.ChildTerminated(path, id, exit):
                self._record_child_end(path, id, exit, isinstance(report, reports.ChildEnded))
            case reports.RestartScheduled(path, id, delay, attempt):
                if (agent := self._agents.get((path, id))) and agent.wanted is not Wanted.STOP:
                    agent.failures = attempt
                    self.registry.change(agent, AgentRestarting(agent.id, agent.name, delay, attempt))
            case reports.SupervisorGaveUp(path, exit):
                self._record_failure(path, exit)
            case reports.SupervisorEnded(path):
                self._supervisors.pop(path, None)
                if path == (ROOT,):
                    self._finish_all(path)

    def _record_child_end(self, path: Path, id: str, exit: Exit, unasked: bool) -> None:
        child_path = (*path, id)
        if agent := self._agents.get((path, id)):
            self._record_exit(agent)
            final = agent.path == path and is_final_exit(agent.spec.restart, exit, unasked)  # else its container's
            if agent.declared and (final or agent.wish.dismissed):
                self.finish(agent)
        elif (path, id) in self.containers:
            if unasked and exit.clean:
                self._finish_all(child_path)
        elif path in self.groups and id == path[-1]:  # a group in its container; some of its agents may not have begun
            if isinstance(exit.detail, StartFailed) and is_final_exit(self.groups[path].restart, exit, unasked):
                self._record_failure(path, exit)  # no supervisor has given up: a temporary group has one start
            for agent in self._find_declared(path):
                agent.settle()
        elif (group := self.groups.get(child_path)) is not None and is_final_exit(group.restart, exit, unasked):
            self._finish_all(child_path)

    def _find_declared(self, path: Path) -> Sequence[Agent]:
        """The declared agents below the supervisor with that path, or the one in the container with that path."""
        return [one for one in self.registry if one.declared and (*one.path, one.name)[: len(path)] == path]

    def _finish_all(self, path: Path) -> None:
        for agent in self._find_declared(path):
            self.finish(agent)

    def _record_exit(self, agent: Agent) -> None:
        # In these nothing has run: it has declined, also one that was given up before, or had yet to begin.
        if agent.state not in (State.STOPPED, State.WAITING, State.FAILED):
            reason = agent.end.reason if agent.end is not None else "did not start"
            self.registry.change(agent, AgentExited(agent.id, agent.name, reason))
            self._note_failure(agent)
        if agent.declared:
            agent.settle()

    def _note_failure(self, agent: Agent) -> None:
        """Note that a life failed, and log a crash loop that no limit ends, once in ten minutes."""
        end, now = agent.end, time.monotonic()
        if end is None or end.exit_code == 0 or end.reason.startswith("stopped"):
            return
        agent.failed = agent.failed or Failures()
        agent.failed.add(now, end)
        if agent.failed.are_due(now):
            text = f"{MANY} lives failed within {duration(WINDOW)}; the last time: {end.reason}"
            log.warning("%s: %s", agent.name, text)
            agent.output.add("kernel", text)

    def _record_failure(self, path: Path, exit: Exit) -> None:
        agent, reason, supervisor = self._find_cause(path, exit), str(exit.detail), "/".join(path)
        if agent is None and gave_up(exit):
            reason = describe_give_up(exit, self._counts_escalations(path, exit))
        if agent is None:
            self.registry.publish(AgentEscalated(supervisor, reason))
            return
        if agent.end is not None:
            member = "" if agent.name == path[-1] else f"{agent.name}: "
            reason = f"{reason.partition(';')[0]}; the last time: {member}{agent.end.reason}"
        self.registry.change(agent, AgentFailed(agent.id, agent.name, reason))
        self.registry.publish(AgentEscalated(supervisor, reason, agent.id, agent.name, agent.spawner))

    def _counts_escalations(self, path: Path, exit: Exit) -> bool:
        """Whether its intensity counts escalations: that of a ``one_for_one`` group does, not that of a container."""
        group, child = self.groups.get(path), getattr(exit.detail, "child", None)
        return group is not None and group.strategy == "one_for_one" and child != path[-1]

    def explain_root_exit(self, exit: Exit) -> str | None:
        """Why the root supervisor ended, for people; None if it was asked to."""
        if isinstance(exit.detail, StartFailed):
            if isinstance(exit.detail.root_cause, Interrupted):
                return None
            return f"the root supervisor gave up: {'/'.join(exit.detail.path)} did not start: {exit.detail.root_cause}"
        if gave_up(exit):
            reason = describe_give_up(exit, self._counts_escalations((ROOT,), exit))
            return f"the root supervisor gave up: {reason}"
        return None

    def _find_cause(self, path: Path, exit: Exit) -> Agent | None:
        """The agent that made a supervisor give up: its child, or the member of its child's group that failed."""
        if isinstance(exit.detail, IntensityExceeded | TooManyFailures):
            name, failure = exit.detail.child, exit.detail.last.detail
        elif isinstance(exit.detail, StartFailed):
            name, failure = path[-1], exit.detail
        else:
            return None
        if isinstance(failure, StartFailed):
            group = path if name == path[-1] else (*path, name)  # a container has its group's path
            *within, name = failure.path
            path = (*group, *within)
        return self._agents.get((path, name))

    def finish(self, agent: Agent) -> None:
        """Record that an agent has ended for good, or until it is started again."""
        if agent.over.is_set():
            return
        agent.over.set()
        agent.wish.wake(False)
        wanted = agent.wanted
        if agent.declared:
            agent.supervisor = None
            agent.wish.renew()
            agent.settle()
        else:
            del self._agents[agent.path, agent.name]
            agent.failed = None
            script_copies.discard(agent.spec)
            self.registry.retire(agent)
        self.registry.change(agent, AgentOver(agent.id, agent.name))
        follows = AT_END[agent.state].get(wanted)
        if follows is AgentStopped and agent.wish.stopped_by is not None:
            self.registry.change(agent, AgentStopped(agent.id, agent.name, agent.wish.stopped_by))
        elif follows is AgentWaiting:
            self.registry.change(agent, AgentWaiting(agent.id, agent.name))

    def rest(self, agent: Agent) -> None:
        """Record that an agent waits: it has no process, and what is started after it goes on."""
        self.finish(agent)
        agent.settle()
        self.registry.change(agent, AgentWaiting(agent.id, agent.name))


def is_final_exit(restart: Restart, exit: Exit, unasked: bool) -> bool:
    """Whether the supervisor won't restart a child that ended, or was stopped with its group."""
    return not comes_back(restart, exit) if unasked else restart == "temporary"
