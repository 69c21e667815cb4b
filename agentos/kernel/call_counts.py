"""Counts of calls by opcode and outcome."""

from collections.abc import Mapping

from attrs import define, field

from agentos_sdk.errors import CallError
from agentos_sdk.opcodes import Op

from .call import Gone

OK = "ok"
_UNREAD = [0] * 256  # shared by all ended callers: a call in the background that ends later is not counted

Outcomes = Mapping[tuple[int, str], int]
"""Number of calls by opcode and outcome: ``ok`` or the error code."""
NONE: Outcomes = {}  # of a caller whose name nobody had before


@define(eq=False)
class CallCounts:
    """The calls of one caller over all its lives, since the kernel started. HELLO, CANCEL and EXIT are not counted.

    ``ok`` are those that succeeded, by opcode. ``former`` are the outcomes of earlier callers of the same name.
    ``noops`` are counted apart, because an attribute costs a NOOP less than the item of a list.
    """

    noops: int = 0
    ok: list[int] = field(factory=lambda: [0] * 256)
    former: Outcomes = NONE
    _others: dict[tuple[int, str], int] = field(factory=dict)

    def fail(self, op: int, error: BaseException) -> None:
        """Count a call that failed."""
        key = int(op), outcome_of(error)
        self._others[key] = self._others.get(key, 0) + 1

    def own(self) -> Outcomes:
        """The outcomes of this caller alone."""
        if self.ok is _UNREAD:
            return self._others
        noops = {(int(Op.NOOP), OK): self.noops} if self.noops else {}
        return {**self._others, **noops, **{(op, OK): count for op, count in enumerate(self.ok) if count}}

    def all(self) -> Outcomes:
        """The outcomes of this caller and of earlier ones of its name; they never decrease."""
        own = self.own()
        return {key: own.get(key, 0) + self.former.get(key, 0) for key in {**self.former, **own}}

    def copy(self) -> "CallCounts":
        """The counts as they are now, for another thread."""
        ok = self.ok if self.ok is _UNREAD else list(self.ok)
        return CallCounts(self.noops, ok, self.former, dict(self._others))

    def shrink(self) -> None:
        """Free memory that only a caller that still makes calls needs."""
        self._others = dict(self.own())
        self.ok = _UNREAD


def outcome_of(error: BaseException) -> str:
    """The error code that a failure stands for; ``cancelled`` if its caller has gone or withdrawn it."""
    if isinstance(error, CallError):
        return error.code
    return "internal" if isinstance(error, Exception) and not isinstance(error, Gone) else "cancelled"
