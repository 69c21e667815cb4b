"""Rate limit of intents (announced acts) in the audit log: a family of callers above its burst waits for its turn.

Intents are never refused for their number, and each is written. So one agent that acts in a loop would push all other
entries out of the log. Each caller has a burst and then a fixed rate. Other callers don't wait.
"""

import trio
from attrs import define, field

# A burst is more than a busy agent does at once: unpacking files, rewriting a tree, a test run. The steady 50 per
# second are a hundred rows of at most 700 bytes: one agent needs four hours to fill the log (16 segments of 64 MiB) and
# can be noticed long before. Neither a person nor a model acts that fast.
BURST = 1000  # acts
STEADY = 50.0  # per second
TIDY = 64  # callers before idle ones are first removed


@define(eq=False)
class _Bucket:
    full: float  # when its burst will be full again
    turn: trio.Lock = field(factory=trio.Lock)  # fair: a caller's calls continue in order of arrival


@define(eq=False)
class Pace:
    """The limits of one log."""

    burst: float = BURST
    steady: float = STEADY
    _buckets: dict[str, _Bucket] = field(factory=dict)
    _tidy_at: int = TIDY

    def __len__(self) -> int:
        return len(self._buckets)

    async def turn(self, caller: str) -> None:
        """Wait until ``caller`` may announce one more act. If cancelled, none was taken."""
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
        """Drop callers with a full burst: they are as good as new."""
        now = trio.current_time()
        self._buckets = {
            caller: bucket for caller, bucket in self._buckets.items() if bucket.full > now or bucket.turn.locked()
        }
        self._tidy_at = max(TIDY, 2 * len(self._buckets))
