"""The supervision tree as TREE shows it."""

from typing import Any

from supervisors import Supervisor
from supervisors.children import ChildInfo

from .registry import Agent, Registry


def picture(supervisor: Supervisor, registry: Registry) -> dict[str, Any]:
    """A supervisor with all that is below it, in start order, as plain values."""
    places = {(agent.path, agent.name): agent for agent in registry}
    return _supervisor(supervisor, places)


def _supervisor(supervisor: Supervisor, places: dict[tuple[tuple[str, ...], str], Agent]) -> dict[str, Any]:
    spec = supervisor.spec
    return {
        "name": supervisor.id,
        "type": "supervisor",
        "strategy": spec.strategy,
        "intensity": spec.intensity,
        "period": spec.period,
        "children": [_child(child, supervisor.path, places) for child in reversed(supervisor.children())],
    }


def _child(child: ChildInfo, path: tuple[str, ...], places: dict[tuple[tuple[str, ...], str], Agent]) -> dict[str, Any]:
    common = {"restart": child.restart, "significant": child.significant}
    if isinstance(child.child, Supervisor):
        return _supervisor(child.child, places) | common
    agent = places.get((path, child.id))
    if agent is None:
        return {"name": child.id, "type": "supervisor", "state": str(child.state), "children": [], **common}
    below = _supervisor(agent.children, places)["children"] if agent.children is not None else []
    return {
        "name": agent.name,
        "type": "agent",
        "id": agent.id,
        "pid": agent.pid,
        "state": str(agent.state),
        "restarts": max(0, agent.lives - 1),
        **common,
        "children": below,
    }
