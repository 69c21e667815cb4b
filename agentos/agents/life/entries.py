"""Lives of agents in the audit log: when they were up, how they ended, restarts, failed checks, giving up, reloads.

They are notes, not announcements: an agent starts and ends also when the log can't be written.
"""

import trio
from attrs import define, field
from msgspec.structs import replace

from agentos.agents.registry import Agent, Registry
from agentos.kernel.ports import Entry
from agentos.services.audit.flood import EntryLimiter
from agentos.services.audit.log import Audit
from agentos.services.events import (
    AgentEscalated,
    AgentEvent,
    AgentExited,
    AgentFailed,
    AgentReady,
    AgentRestarting,
    AgentStopped,
    AgentUnhealthy,
    ConfigReloaded,
    Event,
)

# Of each kind of entry, for an agent with all its descendants. An agent that crashes each second for ever writes 15 MB
# a day so: the log holds two months of it.
MAX_BURST, ENTRIES_PER_SECOND = 100, 0.1


@define(eq=False)
class LifeEntries:
    """A subscriber of events that writes them to the audit log; surplus ones are counted."""

    registry: Registry
    audit: Audit
    _limiter: EntryLimiter = field(factory=lambda: EntryLimiter(MAX_BURST, ENTRIES_PER_SECOND))

    def record(self, event: Event) -> None:
        """Note a start, an end, a restart, a failed check, giving up, a stop, or a reload."""
        if isinstance(event, AgentEscalated) and event.agent_id is None:  # otherwise there is an AgentFailed
            self._note_kernel("AGENT_ESCALATED", f"{event.supervisor}: {event.reason}", "failed")
        if isinstance(event, ConfigReloaded):  # a RELOAD has an entry, too; SIGHUP and --watch have only this one
            about = ", ".join(f"{name} {kind}" for kind, name, _ in event.changes) or "no agent and no group changed"
            self._note_kernel("CONFIG_RELOADED", about, "ok")
        agent = self.registry.get(event.agent_id) if isinstance(event, AgentEvent) else None
        if agent is None:
            return
        match event:
            case AgentReady(pid=pid):
                self._note(agent, "AGENT_READY", f"life {agent.lives}, pid {pid}", timed=True)
            case AgentUnhealthy(reason=reason):
                self._note(agent, "AGENT_UNHEALTHY", reason, "unhealthy")
            case AgentExited(reason=reason):
                is_clean = agent.end is not None and agent.end.exit_code == 0
                outcome = "ok" if is_clean or reason.startswith("stopped") else "failed"
                self._note(agent, "AGENT_EXITED", reason, outcome, timed=True)
            case AgentRestarting(delay=delay, failures=failures):
                self._note(agent, "AGENT_RESTARTING", f"in {delay:.1f} s, failure {failures} in a row")
            case AgentFailed(reason=reason):
                self._note(agent, "AGENT_FAILED", reason, "failed")
            case AgentStopped(by=by):
                self._note(agent, "AGENT_STOPPED", f"by {by}")

    def flush(self) -> None:
        """Write how many entries were only counted."""
        for counted in self._limiter.take_counted(trio.current_time()):
            about = f"and {counted.count} more of {counted.sample.call} within {counted.seconds:.0f} s"
            self.audit.note(replace(counted.sample, about=about, duration=None), counted.count)

    def _note_kernel(self, call: str, about: str, outcome: str) -> None:
        self.audit.note(Entry(0, "kernel", "kernel", call, about, "allow", "", "outcome", outcome))

    def _note(self, agent: Agent, call: str, about: str, outcome: str = "ok", timed: bool = False) -> None:
        """``timed``: with the seconds since the present life began."""
        now, family = trio.current_time(), agent.caller.family
        duration = now - agent.life.since if timed and agent.lives else None
        entry = Entry(
            agent.id, agent.name, "agent", call, about, "allow", "", "outcome", outcome, duration, family=family
        )
        if self._limiter.admits(entry, now):
            self.audit.note(entry)
