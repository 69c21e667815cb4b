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
    BudgetExhausted,
    ConfigReloaded,
    Event,
    KernelStopping,
)
from agentos_sdk.quantities import duration

from .registry import Registry

log = logging.getLogger("agentos.agents")

ROOT = "root"  # name of the root supervisor
REMEDIES = '. So that one agent can\'t end all: strategy = "one_for_one" and on_give_up = "fail"'


def log_event(event: Event) -> None:
    """Log starts, ends, failed health checks, restarts and escalations."""
    match event:
        case AgentReady(name=name, pid=pid):
            log.info("%s: running (pid %s)", name, pid)
        case AgentExited(name=name, reason=reason):
            log.info("%s: %s", name, reason)
        case AgentRestarting(name=name, delay=delay, failures=failures):
            log.info("%s: will be restarted in %.1f s (failure %d in a row)", name, delay, failures)
        case AgentStopped(name=name, by=by):
            log.info("%s: stopped by %s, until it is started", name, by)
        case KernelStopping():
            log.info("stopping, agents first; once more to hurry")
        case AgentUnhealthy(name=name, reason=reason):
            log.warning("%s: unhealthy: %s", name, reason)
        case BudgetExhausted(name, what, used, most, per, renews_at):
            renewed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(renews_at))
            log.warning(
                "the budget of %s refuses questions: %.10g of %.10g %s per %s are used; it renews at %s",
                *(name, used, most, what, duration(per), renewed),
            )
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
