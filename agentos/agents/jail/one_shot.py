"""One-shot jails: the stand-in for an agent when a jail is made for a single command."""

from attrs import field, frozen

from agentos.agents.life.output import Output
from agentos.agents.spec import AgentSpec
from agentos.sandbox.policy import Program


@frozen(eq=False)
class OneShot:
    """The properties of an agent that a jail needs, with an agent's default limits and isolation.

    ``number`` is unique among the present one-shot jails, and ``lives`` is unique per command: each host uid and each
    cgroup belongs to one of them at a time.
    """

    program: Program
    number: int
    lives: int
    output: Output = field(factory=Output)

    @property
    def spec(self) -> AgentSpec:
        return AgentSpec(name="guest", command=self.program.argv, restart="temporary")

    @property
    def id(self) -> int:
        """An id that no agent has."""
        return -self.number

    @property
    def name(self) -> str:
        """A name that no agent may have."""
        return f"command+{self.number}"

    @property
    def parent(self) -> None:
        """It has no parent."""
