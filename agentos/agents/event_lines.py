"""Events as lines of text: in the kernel's log, and in the output of the agent, which LOGS returns and follows."""

import logging
import time
from collections.abc import Sequence

from agentos.services.events import (
    AgentEscalated,
    AgentExited,
    AgentFailed,
    AgentReady,
    AgentRestarting,
    AgentStopped,
    AgentUnhealthy,
    ApprovalRequested,
    BudgetExhausted,
    ConfigReloaded,
    Event,
    IsolationProbed,
    KernelKilled,
    KernelStarted,
    KernelStopping,
)
from agentos.services.logs.log import Logs
from agentos_sdk.quantities import duration

from .registry import Agent, Registry

log = logging.getLogger("agentos.agents")

MAX_LAST_STATES = 50  # agents
ROOT = "root"  # name of the root supervisor
REMEDIES = '. So that one agent can\'t end all: strategy = "one_for_one" and on_give_up = "fail"'


def log_event(event: Event) -> None:
    """Log starts, ends, failed health checks, restarts, escalations, and calls that wait for a person."""
    match event:
        case AgentReady(name=name, pid=pid):
            log.info("%s: running (pid %s)", name, pid)
        case AgentExited(name=name, reason=reason):
            log.info("%s: %s", name, reason)
        case AgentRestarting(name=name, delay=delay, failures=failures):
            log.info("%s: will be restarted in %.1f s (failure %d in a row)", name, delay, failures)
        case AgentStopped(name=name, by=by):
            log.info("%s: stopped by %s, until it is started", name, by)
        case KernelKilled(text=text):
            log.warning("%s", text)
        case KernelStopping():
            log.info("stopping, agents first; once more to hurry")
        case AgentUnhealthy(name=name, reason=reason):
            log.warning("%s: unhealthy: %s", name, reason)
        case BudgetExhausted(name, what, used, most, per, renews_at):
            renewed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(renews_at))
            log.warning(
                "the budget of %s is used up: %s of %s %s per %s; it refuses questions until %s",
                *(name, f"{used:,.10g}", f"{most:,.10g}", what, duration(per), renewed),
            )
        case ApprovalRequested(id=number, name=name, call=call):
            log.info("approval %d: %s waits with %s for a person: see `agentos approvals`", number, name, call)
        case AgentEscalated(supervisor=supervisor, reason=reason):
            log.warning("%s: given up: %s%s", supervisor, reason, REMEDIES if supervisor == ROOT else "")

        case ConfigReloaded(changes, settings, kernel_restart):
            lines = [f"{kind} {name}{describe_fields(fields)}" for kind, name, fields in changes]
            lines += [f"changed {key}" for key in settings]
            log.info("%s", "\n".join(["configuration reloaded:", *lines] if lines else ["configuration reloaded"]))
            if kernel_restart:
                log.warning("not changed until the kernel is started anew: %s", ", ".join(kernel_restart))


def describe_fields(fields: Sequence[str]) -> str:
    return f" ({', '.join(fields)})" if fields else ""


def add_to_output(registry: Registry, event: Event) -> None:
    """Add the line ``unhealthy``, ``ended`` or ``given up`` to the output of the event's agent."""
    match event:
        case AgentUnhealthy(agent_id=number, reason=reason):
            text = f"unhealthy: {reason}"
        case AgentExited(agent_id=number, reason=reason):
            text = f"ended: {reason}"
        case AgentFailed(agent_id=number, reason=reason):
            text = f"given up: {reason}"
        case _:
            return
    agent = registry.get(number)
    if agent is not None:
        agent.output.add("kernel", text)


def log_kernel_event(logs: Logs, event: Event) -> None:
    """Add the kernel's start to its log on disk; the console prints it by itself."""
    match event:
        case KernelStarted(missing=missing):
            logs.take_kernel_text("ready" + (f"; not up yet: {', '.join(missing)}" if missing else ""))
        case IsolationProbed(isolation=isolation):
            logs.take_kernel_text(f"isolation {isolation}")


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
    top = _find_top_ancestor(agent)
    return agent.declared, f"guest {top.guest}" if top.guest is not None else top.name


def _find_top_ancestor(agent: Agent) -> Agent:
    return agent if agent.parent is None else _find_top_ancestor(agent.parent)
