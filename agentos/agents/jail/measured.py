"""Agents as the sampler of metrics needs them."""

from collections.abc import Sequence

from agentos.agents.registry import Agent, Registry
from agentos.services.metrics.figures import MeasuredAgent


def list_agents(registry: Registry) -> Sequence[MeasuredAgent]:
    """The agents that haven't ended for good."""
    return [describe(agent) for agent in registry if not agent.over.is_set()]


def find_agent(registry: Registry, number: int) -> MeasuredAgent | None:
    """A present or recent agent."""
    agent = registry.get(number)
    return describe(agent) if agent is not None else None


def describe(agent: Agent) -> MeasuredAgent:
    jail = agent.jail
    return MeasuredAgent(
        agent_id=agent.id,
        name=agent.name,
        status=str(agent.state),
        lives=agent.lives,
        since=agent.since,
        runs=jail is not None,
        memory_limit=jail.limits.memory if jail is not None and agent.spec.jailed else None,
        pids_limit=jail.limits.max_pids if jail is not None and agent.spec.jailed else None,
    )
