"""Which request a key answers: one that was on the screen before the key was pressed. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import define

SETTLE_SECONDS = 0.5  # without a key after something appears; a key before that may be for what was there earlier

Request = Mapping[str, Any]
Answer = Literal["allow", "deny", "always"]
KEYS: Mapping[str, Answer] = {"y": "allow", "n": "deny", "a": "always"}


@define
class Desk:
    """One request at a time: ``current`` stays until it is answered, skipped or gone, whatever arrives.

    Times are seconds of one clock. ``since`` is when the current request appeared.
    """

    pending: Sequence[Request] = ()
    current: Request | None = None
    since: float = 0.0

    def update(self, pending: Sequence[Request], now: float) -> bool:
        """Take a new list; whether another request is current now, or none."""
        self.pending = pending
        before = self.current
        if before is not None:
            self.current = next((one for one in pending if is_same(one, before)), None)
            if self.current is not None:
                return False
        self._show(pending[0] if pending else None, now)
        return before is not None or self.current is not None

    def skip(self, now: float) -> None:
        """Show the next one in the list, after the last one the first."""
        at = next((place for place, one in enumerate(self.pending) if one is self.current), -1)
        if self.pending:
            self._show(self.pending[(at + 1) % len(self.pending)], now)

    def takes_key(self, now: float) -> bool:
        """Whether a key pressed now is for what is shown. If not, the time begins anew: a key may be held down."""
        if now - self.since >= SETTLE_SECONDS:
            return self.current is not None
        self.since = now
        return False

    def settle_again(self, now: float) -> None:
        """Something was asked about the current request: the next key is for that."""
        self.since = now

    def _show(self, request: Request | None, now: float) -> None:
        self.current, self.since = request, now


def is_same(one: Request, other: Request) -> bool:
    """Whether both show the same call to a person."""
    return all(one[name] == other[name] for name in ("id", "agent", "call", "shown", "rule"))
