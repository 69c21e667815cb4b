"""In whose place agents live a recorded life again: they have the relatives of the agent that lived it.

So what its place in the tree allowed, such as messages to its parent, is allowed again while it is answered from the
recording. It ends when the first call is done live.
"""

from attrs import define, field

from agentos.agents.registry import Registry
from agentos.kernel.caller import Caller


@define(eq=False)
class Places:
    """The relatives of callers, by id."""

    registry: Registry
    _originals: dict[int, int] = field(factory=dict)

    def take(self, number: int, name: str) -> None:
        """Have a caller stand in the place of the agent ``name``, if there is one."""
        original = self.registry.find_by_name(name)
        if original is not None:
            self._originals[number] = original.id

    def leave(self, number: int) -> None:
        """It has its own place again, or has ended."""
        self._originals.pop(number, None)

    def find(self, number: int) -> int:
        """The id of the agent in whose place a caller stands, or its own."""
        return self._originals.get(number, number)

    def is_own(self, caller: Caller, agent: int) -> bool:
        place = self.find(caller.id)
        return self.registry.is_own(caller, agent) or (place != caller.id and self.registry.descends(agent, place))

    def are_siblings(self, one: int, other: int) -> bool:
        return self.registry.are_siblings(self.find(one), self.find(other))
