"""Whose calls are recorded, by the settings of a kernel and by the operator's wish."""

from collections.abc import Collection, Sequence

from attrs import frozen

from agentos.agents.registry import Agent


@frozen
class RecordingSettings:
    """``max_total``: bytes of all recordings together. ``agents`` are recorded in all their lives, by name.

    ``masks``: the user's patterns of what differs between two runs.
    """

    max_total: int = 1 << 30
    agents: Collection[str] = ()
    masks: Sequence[str] = ()


@frozen
class Selection:
    """Whose calls a recording has: callers by id, all without; and agents by name, in their later lives, too.

    ``tree``: also all agents that these have spawned, and theirs.
    """

    callers: Collection[int] | None = None
    agents: Collection[str] = ()
    tree: bool = False

    def covers(self, number: int, name: str, above: Agent | None = None) -> bool:
        """Whether a caller is recorded; ``above`` is the agent that spawned it."""
        if self.callers is None:
            return True
        while number not in self.callers and name not in self.agents:
            if above is None or not self.tree:
                return False
            number, name, above = above.id, above.name, above.parent
        return True

    def covers_agent(self, agent: Agent) -> bool:
        return self.covers(agent.id, agent.name, agent.parent)
