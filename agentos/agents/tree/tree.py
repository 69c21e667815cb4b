"""The reply of TREE: the supervision tree as plain values."""

import math
from typing import Any

from agentos.agents.life.lifecycle import State
from agentos.agents.registry import Agent, Registry
from supervisors import Supervisor
from supervisors.children import ChildInfo

from .container import Container

AgentsByPath = dict[tuple[tuple[str, ...], str], Agent]


def describe_tree(supervisor: Supervisor, registry: Registry) -> dict[str, Any]:
    """A supervisor with everything below it, in start order, as plain values.

    Containers aren't shown; their child takes their place.
    """
    agents = {(agent.path, agent.name): agent for agent in registry}
    return _describe_supervisor(supervisor, agents)


def _describe_supervisor(supervisor: Supervisor, agents: AgentsByPath) -> dict[str, Any]:
    spec = supervisor.spec
    containers = {child.id: child.start for child in spec.children if isinstance(child.start, Container)}
    return {
        "name": supervisor.id,
        "type": "supervisor",
        "strategy": spec.strategy,
        "intensity": spec.intensity,
        "period": spec.period,
        "restarts_in_period": supervisor.restarts_in_period(),
        "children": [
            _describe_child(child, containers.get(child.id), supervisor.path, agents)
            for child in reversed(supervisor.children())
        ],
    }


def _describe_child(
    child: ChildInfo, container: Container | None, path: tuple[str, ...], agents: AgentsByPath
) -> dict[str, Any]:
    restart, state, group = child.restart, child.state, child.child
    if container is not None:
        restart, group = container.child.restart, container.group
        state = "restarting" if state == "running" else state  # a group without a supervisor waits for its restart
    common = {"restart": restart, "significant": child.significant}
    if isinstance(group, Supervisor):
        return _describe_supervisor(group, agents) | common
    agent = agents.get((path, child.id))
    if agent is None:
        return {"name": child.id, "type": "supervisor", "state": state, "children": [], **common}
    below = _describe_supervisor(agent.life.children, agents)["children"] if agent.life.children is not None else []
    return {
        "name": agent.name,
        "type": "agent",
        "id": agent.id,
        "pid": agent.pid,
        "state": str(agent.state),
        **({"stopped_by": agent.wish.stopped_by, "kept": agent.wish.kept} if agent.state is State.STOPPED else {}),
        **({"wakes_on": agent.spec.wakes_on, "next_at": agent.due_at} if agent.spec.waits else {}),
        **({"failed_checks": agent.life.health.failures} if agent.life.health.failures and agent.alive else {}),
        "restarts": agent.restarts,
        **_describe_limit(container),
        **common,
        "children": below,
    }


def _describe_limit(container: Container | None) -> dict[str, Any]:
    """How many restarts a declared agent has left of its own limit, if it has one."""
    if container is None or container.supervisor is None or container.spec.intensity == math.inf:
        return {}
    used = container.supervisor.restarts_in_period() if container.supervisor.exit is None else 0
    return {"intensity": container.spec.intensity, "period": container.spec.period, "restarts_in_period": used}
