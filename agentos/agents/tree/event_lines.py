"""Events as lines of text: in the kernel's log, and in the output of the agent, which LOGS returns and follows."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

from agentos.agents.registry import Registry
from agentos.services.events import (
    AgentEscalated,
    AgentExited,
    AgentFailed,
    AgentReady,
    AgentRestarting,
    AgentStopped,
    AgentUnhealthy,
    AgentWoken,
    ApprovalRequested,
    BudgetExhausted,
    ConfigReloaded,
    Event,
    IsolationProbed,
    KernelKilled,
    KernelStarted,
    KernelStopping,
    RunSkipped,
)
from agentos.services.logs.log import Logs
from agentos_sdk.encoding.quantities import duration

log = logging.getLogger("agentos.agents")

MAX_LAST_STATES = 50  # agents
ROOT = "root"  # name of the root supervisor
REMEDIES = '. So that one agent can\'t end all: strategy = "one_for_one" and on_give_up = "fail"'
OUTPUT_WORDS: Mapping[type[AgentUnhealthy | AgentExited | AgentFailed], str] = {
    AgentUnhealthy: "unhealthy",
    AgentExited: "ended",
    AgentFailed: "given up",
}


def log_event(event: Event) -> None:
    """Log starts, ends, failed health checks, restarts, escalations, and calls that wait for a person."""
    for level, text in describe_event(event):
        log.log(level, "%s", text)


def describe_event(event: Event) -> Iterator[tuple[int, str]]:
    """The lines for a person, each with its level, of an event that is logged."""
    match event:
        case AgentReady(name=name, pid=pid):
            yield logging.INFO, f"{name}: running (pid {pid})"
        case AgentExited(name=name, reason=reason):
            yield logging.INFO, f"{name}: {reason}"
        case AgentRestarting(name=name, delay=delay, failures=failures):
            yield logging.INFO, f"{name}: will be restarted in {delay:.1f} s (failure {failures} in a row)"
        case AgentWoken(name=name, reason=reason):
            yield logging.INFO, f"{name}: started by {reason}"
        case RunSkipped(name=name, due_at=due_at, next_at=next_at, skipped=skipped):
            so_far = f", as {skipped - 1} before it" if skipped > 1 else ""
            yield (
                logging.WARNING,
                (
                    f"{name}: its run of {format_time(due_at)} is left out{so_far}, because the last one still works; "
                    f"the next one: {format_time(next_at)}"
                ),
            )
        case AgentStopped(name=name, by=by):
            yield logging.INFO, f"{name}: stopped by {by}, until it is started"
        case KernelKilled(text=text):
            yield logging.WARNING, text
        case KernelStopping():
            yield logging.INFO, "stopping, agents first; once more to hurry"
        case AgentUnhealthy(name=name, reason=reason):
            yield logging.WARNING, f"{name}: unhealthy: {reason}"
        case BudgetExhausted(name, what, used, most, per, renews_at):
            spent = f"{used:,.10g} of {most:,.10g} {what} per {duration(per)}"
            yield (
                logging.WARNING,
                f"the budget of {name} is used up: {spent}; it refuses questions until {format_time(renews_at)}",
            )
        case ApprovalRequested(id=number, name=name, call=call):
            yield logging.INFO, f"approval {number}: {name} waits with {call} for a person: see `agentos approvals`"
        case AgentEscalated(supervisor=supervisor, reason=reason):
            yield logging.WARNING, f"{supervisor}: given up: {reason}{REMEDIES if supervisor == ROOT else ''}"
        case ConfigReloaded(changes, settings, kernel_restart):
            lines = [f"{kind} {name}{describe_fields(fields)}" for kind, name, fields in changes]
            lines += [f"changed {key}" for key in settings]
            yield logging.INFO, "\n".join(["configuration reloaded:", *lines] if lines else ["configuration reloaded"])
            if kernel_restart:
                yield logging.WARNING, f"not changed until the kernel is started anew: {', '.join(kernel_restart)}"


def format_time(at: float) -> str:
    """``2026-01-31 18:00:00``, local, of seconds since the epoch."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def describe_fields(fields: Sequence[str]) -> str:
    return f" ({', '.join(fields)})" if fields else ""


def add_to_output(registry: Registry, event: AgentUnhealthy | AgentExited | AgentFailed) -> None:
    """Add a line to the output of the event's agent."""
    agent = registry.get(event.agent_id)
    if agent is not None:
        agent.output.add("kernel", f"{OUTPUT_WORDS[type(event)]}: {event.reason}")


def log_start(logs: Logs, event: KernelStarted) -> None:
    """Add the kernel's start to its log on disk; the console prints it by itself."""
    logs.take_kernel_text("ready" + (f"; not up yet: {', '.join(event.missing)}" if event.missing else ""))


def log_isolation(logs: Logs, event: IsolationProbed) -> None:
    """Add what the host's isolation is to the kernel's log on disk."""
    logs.take_kernel_text(f"isolation {event.isolation}")


def log_last_state(registry: Registry, reason: str) -> None:
    """Log why the root gave up, and what became of each agent: with the kernel LIST and LOGS end, too."""
    log.error("the kernel ends: %s", reason)
    agents = list(registry)
    for agent in agents[:MAX_LAST_STATES]:
        why = agent.end.reason if agent.end is not None else "it never started"
        log.error("last state of %s: %s, restarts: %d, last end: %s", agent.name, agent.state, agent.restarts, why)
    if len(agents) > MAX_LAST_STATES:
        log.error("and %d agents more", len(agents) - MAX_LAST_STATES)


def identify_log(registry: Registry, number: int) -> tuple[bool, str]:
    """Whether an agent is declared, and the owner of its log's room: the first of its ancestors, or its guest."""
    agent = registry.get(number)
    if agent is None:
        return False, ""
    return agent.declared, f"guest {agent.top.guest}" if agent.top.guest is not None else agent.top.name
