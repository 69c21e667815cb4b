"""Rate limit of intents (announced acts) in the audit log: a family of callers above its burst waits for its turn.

Intents are never refused for their number, and each is written. So one agent that acts in a loop would push all other
entries out of the log. Each caller has a burst and then a fixed rate. Other callers don't wait.
"""

from contextlib import nullcontext

import trio
from attrs import define, field

# A burst is more than a busy agent does at once: unpacking files, rewriting a tree, a test run. The steady 50 per
# second are a hundred rows of at most 700 bytes: one agent needs four hours to fill the log (16 segments of 64 MiB) and
# can be noticed long before. Neither a person nor a model acts that fast.
MAX_BURST = 1000  # acts
INTENTS_PER_SECOND = 50.0  # per second
MIN_PRUNE_CALLERS = 64  # callers before idle ones are first removed


@define(eq=False)
class _Bucket:
    full_at: float  # when its burst will be full again
    lock: trio.Lock = field(factory=trio.Lock)  # fair: a caller's calls continue in order of arrival


@define(eq=False)
class IntentPacer:
    """The limits of one log."""

    burst: float = MAX_BURST
    rate: float = INTENTS_PER_SECOND
    _buckets: dict[str, _Bucket] = field(factory=dict)
    _prune_at: int = MIN_PRUNE_CALLERS

    def __len__(self) -> int:
        return len(self._buckets)

    async def wait_turn(self, caller: str) -> None:
        """Wait until ``caller`` may announce one more act. If cancelled, none was taken.

        If it may at once, that takes no pass of the event loop.
        """
        bucket = self._bucket(caller)
        waits = bucket.lock.locked() or trio.current_time() < self._due(bucket)
        async with bucket.lock if waits else nullcontext():
            if waits:
                await trio.sleep_until(self._due(bucket))
            bucket.full_at = max(bucket.full_at, trio.current_time()) + 1 / self.rate

    def _due(self, bucket: _Bucket) -> float:
        """When its next act may be announced."""
        return bucket.full_at - (self.burst - 1) / self.rate

    def _bucket(self, caller: str) -> _Bucket:
        bucket = self._buckets.get(caller)
        if bucket is None:
            if len(self._buckets) >= self._prune_at:
                self._prune()
            bucket = self._buckets[caller] = _Bucket(trio.current_time())
        return bucket

    def _prune(self) -> None:
        """Drop callers with a full burst: they are as good as new."""
        now = trio.current_time()
        self._buckets = {
            caller: bucket for caller, bucket in self._buckets.items() if bucket.full_at > now or bucket.lock.locked()
        }
        self._prune_at = max(MIN_PRUNE_CALLERS, 2 * len(self._buckets))
