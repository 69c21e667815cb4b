"""An authorizer that refuses what it was told to, and a log that keeps what it was told."""

from collections.abc import Collection

from attrs import define, field

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Entry, Right
from agentos.kernel.prepared import Prepared, require
from agentos_sdk.errors import Unavailable


@define
class Grants:
    """Everything is granted but the ``denied`` actions, and those for which a person would be ``asked``."""

    denied: Collection[str] = ()
    asked: Collection[str] = ()

    def decide(self, caller: Caller, right: Right) -> Decision:
        if right.action in self.denied:
            return Decision("deny", "the rule", f"nobody may {right.action}")
        if right.action in self.asked:
            return Decision("ask", "the rule", f"somebody has to agree to {right.action}")
        return Decision("allow", "the rule", "")


@define
class Notebook:
    """A log in memory; ``full``: nothing can be announced in it any more."""

    full: bool = False
    entries: list[Entry] = field(factory=list)

    async def intend(self, entry: Entry) -> int:
        if self.full:
            raise Unavailable("the notebook is full")
        self.entries.append(entry)
        return len(self.entries)

    def note(self, entry: Entry) -> None:
        self.entries.append(entry)


def require_right(caller: Caller, right: Right) -> None:
    """Raise what a call that needs this right would, if the caller lacks it."""
    require(caller, Prepared((right,), print))
