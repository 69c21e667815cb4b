"""How far a replay has come, and what it has found."""

from collections.abc import Sequence
from typing import Literal, Protocol

from attrs import define, field

from agentos.recordings.matching import Difference

State = Literal["IDLE", "RUNNING", "COMPLETED", "ERROR"]
Verdict = Literal["identical", "drifted", "diverged", "exhausted", "unfinished", "can't"]
How = Literal["exact", "masked", "drifted", "diverged"]


@define
class Made:
    """How a recorded call was made again, and what differs."""

    how: How
    differences: list[Difference] = field(factory=list)


@define
class Progress:
    """The state of a replay. ``replayed`` and ``skipped`` count recorded calls; ``current`` is their sum.

    ``divergence`` says in lines for people which call had no answer or another one, and how it differs. ``drift`` are
    differences that answers were found in spite of; ``masks`` the names of those that made calls equal. ``sealed``
    counts attempts to reach the network, ``made`` has the recorded calls that were made again, by the number of their
    begin, ``notes`` are sentences about what wasn't compared, and ``recording`` is the directory of the one that is
    made of it. ``lives``: of several lives, that of each by its name; ``agent`` is the one
    that goes on live in its place.
    """

    total: int = 0
    replayed: int = 0
    skipped: int = 0
    state: State = "IDLE"
    verdict: Verdict | None = None
    divergence: str | None = None
    error: str | None = None
    drift: list[Difference] = field(factory=list)
    masks: dict[str, int] = field(factory=dict)
    made: dict[int, Made] = field(factory=dict)
    sealed: int = 0
    notes: list[str] = field(factory=list)
    recording: str | None = None
    agent: str | None = None
    lives: "dict[str, Progress]" = field(factory=dict)

    def note(self, number: int, how: How, differences: Sequence[Difference] = ()) -> None:
        """Note how a recorded call was made again; what differs comes to what is known."""
        made = self.made.setdefault(number, Made(how))
        made.how = how
        made.differences += differences

    @property
    def current(self) -> int:
        return self.replayed + self.skipped

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return 1.0 if self.state == "COMPLETED" else self.current / self.total if self.total else 0.0


class Replay(Protocol):
    """A replay that can be run once. It ends by itself, and sets the verdict. A fork goes on live."""

    @property
    def name(self) -> str: ...

    @property
    def is_fork(self) -> bool: ...

    @property
    def progress(self) -> Progress: ...

    async def run(self) -> None:
        """Raises ``ReplayFailed`` if it can't go on."""


class ReplayFailed(Exception):
    """The replay can't be run; the text says why."""


def describe_differences(differences: Sequence[Difference]) -> list[str]:
    """A line for each."""
    return [f"{one.where}: recorded {one.recorded!r}, now {one.now!r}" for one in differences]
