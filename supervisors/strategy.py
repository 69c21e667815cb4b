"""Which children are restarted when one ends, and when the supervisor ends, too."""

from collections.abc import Sequence
from typing import Literal

from supervisors.exits import Exit

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one", "simple_one_for_one"]
Restart = Literal["permanent", "transient", "temporary"]
AutoShutdown = Literal["never", "any_significant", "all_significant"]


def comes_back(restart: Restart, ending: Exit) -> bool:
    """Whether a child of this type is restarted after ``ending``: a transient one only after an abnormal end."""
    return restart == "permanent" or (restart == "transient" and not ending.clean)


def affected(strategy: Strategy, children: Sequence[str], ended: str) -> Sequence[str]:
    """The ids to restart after ``ended`` ended, in start order; ``children`` are all of them, in start order."""
    match strategy:
        case "one_for_all":
            return tuple(children)
        case "rest_for_one":
            return tuple(children[children.index(ended) :])
        case _:
            return (ended,)


def shuts_down(policy: AutoShutdown, *, significant: bool, others: bool) -> bool:
    """Whether the final end of a child also ends its supervisor.

    ``significant``: the child is. ``others``: a significant sibling runs or waits for its restart.
    """
    match policy:
        case "any_significant":
            return significant
        case "all_significant":
            return significant and not others
        case _:
            return False
