"""Spaces and accounts of state by caller, and the end of an agent's session."""

from attrs import frozen

from agentos.kernel.caller import Caller
from agentos.services.events import AgentEvent
from agentos.services.state.spaces import GLOBAL
from agentos.services.state.state import State
from agentos_sdk.values import Scope

from .registry import Registry

OPERATOR = "operator"  # all its connections share one private space; no agent can have the name


@frozen
class StateSpaces:
    """The spaces of each caller by scope, in the order in which a key without a scope is looked for."""

    registry: Registry
    state: State

    def of(self, caller: Caller) -> dict[Scope, str]:
        account = self.account(caller)
        is_owner = caller.kind != "operator"  # all its connections are, and one may become a guest
        session = self.state.session(caller.id, account, is_owner=is_owner)
        return {"session": session, "agent": account, "global": GLOBAL}

    def of_agent(self, name: str) -> dict[Scope, str]:
        """The private space of the agent that got this name last, or of that account, such as ``boss/worker``."""
        agent = self.registry.find_by_name(name)
        return {"agent": agent.queue_path[-1].name if agent is not None else name}

    def account(self, caller: Caller) -> str:
        """The account that owns a caller's private state: that of an agent names its parent, too."""
        if caller.kind == "agent":
            return self.registry.find(caller.id, None).queue_path[-1].name
        return OPERATOR if caller.kind == "operator" else f"guest {caller.name}"

    def end_session(self, event: AgentEvent) -> None:
        """End the session of an agent that has ended for good or was given up; one that was stopped keeps it.

        If a reload then removes the stopped agent, the kernel ends its session.
        """
        agent = self.registry.get(event.agent_id)
        if agent is None or agent.wish.stopped_by is None:
            self.state.end_session(event.agent_id)
