"""Counts of calls by opcode and outcome."""

from collections.abc import Iterator

from attrs import define, field

from agentos_sdk.errors import CallError
from agentos_sdk.opcodes import op_name

from .call import Gone


@define(eq=False)
class CallCounts:
    """The calls of one caller, over all its lives, since the kernel started. The counts only grow.

    ``ok`` are those that succeeded, by opcode; ``failed`` the others, by opcode and error code. ``former`` are the
    counts of earlier callers of the same name, None without any. HELLO, CANCEL and EXIT are not counted.
    """

    ok: list[int] = field(factory=lambda: [0] * 256)
    failed: dict[tuple[int, str], int] = field(factory=dict)
    former: "CallCounts | None" = None

    def fail(self, op: int, error: BaseException) -> None:
        """Count a call that failed."""
        key = op, outcome_of(error)
        self.failed[key] = self.failed.get(key, 0) + 1

    def outcomes(self) -> Iterator[tuple[str, str, int]]:
        """The name of each call, ``ok`` or an error code, and how often: those of this caller alone."""
        for op, count in enumerate(self.ok):
            if count:
                yield op_name(op), "ok", count
        for (op, code), count in self.failed.items():
            yield op_name(op), code, count

    def with_former(self) -> "CallCounts":
        """A copy that includes the former ones."""
        total = CallCounts(list(self.ok), dict(self.failed))
        if self.former is not None:
            total.ok = [own + before for own, before in zip(self.ok, self.former.ok, strict=True)]
            for key, count in self.former.failed.items():
                total.failed[key] = total.failed.get(key, 0) + count
        return total


def outcome_of(error: BaseException) -> str:
    """The error code that a failure stands for; ``cancelled`` if its caller has gone or withdrawn it."""
    if isinstance(error, CallError):
        return error.code
    return "internal" if isinstance(error, Exception) and not isinstance(error, Gone) else "cancelled"
