"""Who gets a jail for one command: no agent, known to nobody, and nothing of it stays."""

from attrs import field, frozen

from agentos.sandbox.policy import Program

from .output import Output
from .spec import AgentSpec


@frozen(eq=False)
class Visitor:
    """What a jail has to know of whoever lives in it, with the limits and walls that an agent has by default.

    ``number`` is nobody else's meanwhile, and ``lives`` how many before it had that number: each user on the host and
    each control group is one visitor's at a time.
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
        """One that no agent has."""
        return -self.number

    @property
    def name(self) -> str:
        """One that no agent may have."""
        return f"command+{self.number}"

    @property
    def parent(self) -> None:
        """It stands for itself."""
