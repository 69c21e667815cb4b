"""How fast a family of callers may announce acts: who goes on beyond a burst waits for its turn, and nobody else does.

An announced act is never refused for there being many, and each is written down. So one agent that does little things
in a loop would push what all others did out of the log. Each caller has a burst, and then so many in a second.
"""

import trio
from attrs import define, field

# A burst is more than a busy agent does at once: files unpacked, a tree rewritten, a test run. For good, 50 in a second
# are a hundred rows of 700 bytes at most: one agent needs four hours to fill the log (16 segments of 64 MiB); it can be
# seen at it long before. Neither a person nor a model acts that fast.
BURST = 1000  # acts
STEADY = 50.0  # a second
TIDY = 64  # callers before it is first looked who has gone


@define(eq=False)
class _Bucket:
    full: float  # when its burst will be whole again
    turn: trio.Lock = field(factory=trio.Lock)  # fair: its calls go on in the order in which they came


@define(eq=False)
class Pace:
    """One log's."""

    burst: float = BURST
    steady: float = STEADY
    _buckets: dict[str, _Bucket] = field(factory=dict)
    _tidy_at: int = TIDY

    def __len__(self) -> int:
        return len(self._buckets)

    async def turn(self, caller: str) -> None:
        """Wait until ``caller`` may announce one more. Cancelled, it hasn't taken any."""
        bucket = self._bucket(caller)
        async with bucket.turn:
            await trio.sleep_until(bucket.full - (self.burst - 1) / self.steady)
            bucket.full = max(bucket.full, trio.current_time()) + 1 / self.steady

    def _bucket(self, caller: str) -> _Bucket:
        bucket = self._buckets.get(caller)
        if bucket is None:
            if len(self._buckets) >= self._tidy_at:
                self._tidy()
            bucket = self._buckets[caller] = _Bucket(trio.current_time())
        return bucket

    def _tidy(self) -> None:
        """Forget whose burst is whole: they have gone, or it is as if they were new."""
        now = trio.current_time()
        self._buckets = {
            caller: bucket for caller, bucket in self._buckets.items() if bucket.full > now or bucket.turn.locked()
        }
        self._tidy_at = max(TIDY, 2 * len(self._buckets))
