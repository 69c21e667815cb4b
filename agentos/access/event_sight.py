"""The events that a caller may see, by its place in the tree and its rules."""

from collections.abc import Callable

from attrs import frozen

from agentos.agents.registry import Agent, Registry
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.permissions.authorizer import PermissionAuthorizer
from agentos.services.event_log.record import OPERATOR, Party
from agentos.services.event_log.subscription import Sight
from agentos_sdk.errors import NotFound

EVERYTHING = Sight(frozenset(), sees_all=True)  # one value for all connections: each event looks at it


def list_above(registry: Registry, number: int) -> tuple[Party, ...]:
    """The ancestors of an agent, nearest first, and the guest that spawned the topmost of them."""
    found: list[Party] = []
    agent = registry.get(number)
    while agent is not None:
        if agent.parent is None and agent.guest is not None:
            found.append(f"guest {agent.guest}")
        agent = agent.parent
        if agent is not None:
            found.append(agent.id)
    return tuple(found)


def find_family(registry: Registry, find_guest: Callable[[int], Caller | None], charged: Party) -> Party:
    """The name of an agent's outermost ancestor or of a guest, which all its connections and agents share.

    ``charged`` is the id of a caller or the name of an account. The id itself is the family of any other caller.
    """
    if isinstance(charged, str):
        return charged.partition("/")[0]
    if (agent := registry.get(charged)) is not None:
        return agent.queue_path[-1].name.partition("/")[0]
    guest = find_guest(charged)
    return family_of(guest) if guest is not None else charged


def family_of(caller: Caller) -> str:
    """The party of all connections of the operator, or of one guest; empty for an agent."""
    return "" if caller.kind == "agent" else OPERATOR if caller.kind == "operator" else f"guest {caller.name}"


def find_end_sight(caller: Caller, registry: Registry, authorizer: PermissionAuthorizer) -> Callable[[Agent], bool]:
    """Whether the caller is told how an agent ended: one of its own, or one whose events, which say it, rules show."""
    granted = caller.kind != "operator" and authorizer.holds_grant(caller.id, "events")
    return lambda agent: (
        registry.is_own(caller, agent.id) or (granted and authorizer.shows_events(caller.id, agent.name))
    )


@frozen
class CallerRules:
    """Implements :class:`agentos.services.event_log.subscription.Judge`."""

    caller: Caller
    registry: Registry
    authorizer: PermissionAuthorizer

    def sight(self) -> Sight:
        caller = self.caller
        if caller.kind == "operator":
            return EVERYTHING
        try:
            granted, reads = (self.authorizer.holds_grant(caller.id, kind) for kind in ("events", "state_read"))
        except NotFound:  # it has ended
            return Sight(frozenset())
        if caller.kind == "guest":
            family = family_of(caller)
            return Sight(frozenset({caller.id, family, f"account {family}"}), frozenset(), granted, reads)
        account = self.registry.find(caller.id, None).queue_path[-1].name
        above = frozenset((*list_above(self.registry, caller.id), OPERATOR))
        return Sight(frozenset({caller.id, f"account {account}"}), above, granted, reads)

    def shows_events(self, name: str) -> bool:
        return self.authorizer.shows_events(self.caller.id, name)

    def may_read(self, key: str) -> bool:
        return self.authorizer.decide(self.caller, Right("fetch", key)).effect == "allow"
