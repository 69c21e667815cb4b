"""Rate limit of audit log entries per caller, call and decision; surplus entries are counted. No I/O.

An agent that calls in a loop must neither fill the disk nor push other agents' entries out of the log. Each caller has,
for each call and decision, a burst and then a fixed rate. Times are arguments, in seconds of one clock.
"""

from attrs import define, field
from msgspec import Struct
from msgspec.structs import replace

from agentos.kernel.ports import Entry

MAX_BURST = 200  # entries
ENTRIES_PER_SECOND = 20.0  # per second
TIDY_AT = 256  # buckets; from there on, those with a full burst are dropped whenever their number has doubled
MAX_BUCKETS = 4096  # combinations of caller, call and decision that are counted separately

_DECISION_WORDS = {"allow": "allowed", "ask": "refused without asking", "deny": "denied"}


class CountedEntries(Struct, frozen=True):
    """Calls that were counted and not written, within ``seconds``; ``sample`` is the first of them."""

    sample: Entry
    count: int
    seconds: float

    @property
    def entry(self) -> Entry:
        times = f"within {self.seconds:.0f} s" if self.seconds >= 1 else "within 1 s"
        about = f"and {self.count} more of {self.sample.call} {_DECISION_WORDS[self.sample.decision]} {times}"
        return replace(self.sample, about=about, duration=None, intent=None)


@define(eq=False)
class _Bucket:
    tokens: float
    at: float
    count: int = 0  # beyond what was written
    since: float = 0.0
    sample: Entry | None = None


@define(eq=False)
class EntryLimiter:
    """The limits of one log."""

    burst: float = MAX_BURST
    rate: float = ENTRIES_PER_SECOND
    counted: bool = False  # `surplus` has something to return
    _buckets: dict[tuple[object, ...], _Bucket] = field(factory=dict)
    _tidy_at: int = TIDY_AT  # buckets

    def admits(self, entry: Entry, now: float) -> bool:
        """Whether the entry may be written; if not, it has been counted."""
        entry, bucket = self._bucket(entry, now)
        bucket.tokens = min(self.burst, bucket.tokens + (now - bucket.at) * self.rate)
        bucket.at = now
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return True
        self._count(bucket, entry, now)
        return False

    def count(self, entry: Entry, now: float) -> None:
        """Count an entry for which there is no room, whatever its caller's limit."""
        entry, bucket = self._bucket(entry, now)
        self._count(bucket, entry, now)

    def _bucket(self, entry: Entry, now: float) -> tuple[Entry, _Bucket]:
        key: tuple[object, ...] = (entry.family or entry.agent, entry.call, entry.decision)
        bucket = self._buckets.get(key)
        if bucket is None and len(self._buckets) >= self._tidy_at:
            self._buckets = {
                other: kept for other, kept in self._buckets.items() if kept.count or not self._is_full(kept, now)
            }
            self._tidy_at = max(TIDY_AT, 2 * len(self._buckets))
        if bucket is None and len(self._buckets) >= MAX_BUCKETS:  # callers above the limit are counted together
            entry = replace(entry, agent=0, name="several", kind="several")
            key = (None, entry.call, entry.decision)
            bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(self.burst, now)
        return entry, bucket

    def _count(self, bucket: _Bucket, entry: Entry, now: float) -> None:
        if bucket.count == 0:
            bucket.sample, bucket.since = entry, now
        bucket.count += 1
        self.counted = True

    def _is_full(self, bucket: _Bucket, now: float) -> bool:
        return bucket.tokens + (now - bucket.at) * self.rate >= self.burst

    def take_counted(self, now: float) -> list[CountedEntries]:
        """All that was counted since the last call, to be written instead; callers with a full burst are dropped."""
        found = [
            CountedEntries(bucket.sample, bucket.count, now - bucket.since)
            for bucket in self._buckets.values()
            if bucket.count and bucket.sample is not None
        ]
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not self._is_full(bucket, now)}
        for bucket in self._buckets.values():
            bucket.count, bucket.sample = 0, None
        self.counted = False
        return found
