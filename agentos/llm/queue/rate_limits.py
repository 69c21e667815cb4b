"""Requests and tokens per minute of one model, respected before the provider has to refuse.

No I/O: times are arguments, in seconds on any monotonic clock.
"""

import math
from collections import deque

from attrs import define, field

from agentos.llm.settings import ModelLimits

MINUTE = 60.0  # seconds
RECENT = 0.2  # weight of the last answer in the average


@define(eq=False)
class Sent:
    """A request: ``tokens`` is an estimate until it has ended."""

    at: float
    tokens: int


@define(eq=False)
class RateLimit:
    """The requests of the last minute. ``opens_at`` is when the next one may be sent, as far as that is known."""

    limits: ModelLimits
    opens_at: float = -math.inf
    _kept_for: object = None  # the request that the next room is kept for
    _kept_since: float = -math.inf
    _overtaken: dict[str, float] = field(factory=dict)  # accounts for which no room is kept, and until when
    _sent: deque[Sent] = field(factory=deque)
    _generated: float = 0.0  # tokens of an answer, on average

    def check(
        self, input_tokens: int, max_tokens: int | None, now: float, request: object = None, account: str = ""
    ) -> float | None:
        """When a request of this size may be sent; ``None``: now. Until then no other is, unless this one leaves.

        Requests of an account whose last one has left are overtaken by others for as long as these have waited for it.
        """
        opens = self._find_room(self._estimate(input_tokens, max_tokens), now)
        if opens <= now:
            return None
        if self._overtaken.get(account, now) <= now:
            self.opens_at = max(self.opens_at, opens)
            self._kept_for, self._kept_since = request, now
        return opens

    def keeps_room_for(self, request: object) -> bool:
        """Whether no other request is sent until this one is, or leaves."""
        return self._kept_for is request

    def leave(self, request: object, now: float, account: str = "") -> bool:
        """Keep no room for a request that isn't sent after all; returns whether any was kept."""
        if self._kept_for is not request:
            return False
        self._kept_for = None
        self._overtaken = {each: until for each, until in self._overtaken.items() if until > now}
        self._overtaken[account] = now + (now - self._kept_since)
        self.opens_at = self._find_room(1, now)
        return True

    def begin(self, input_tokens: int, max_tokens: int | None, now: float) -> Sent:
        """Count a request that is sent now."""
        sent = Sent(now, self._estimate(input_tokens, max_tokens))
        self._sent.append(sent)
        self._kept_for = None
        self.opens_at = self._find_room(1, now)
        return sent

    def end(self, sent: Sent, tokens: int, generated: int, now: float) -> None:
        """Correct the estimate: the request has used so many tokens, ``generated`` of them for its answer."""
        sent.tokens = tokens
        if generated:
            self._generated += (generated - self._generated) * (RECENT if self._generated else 1)
        self.opens_at = self._find_room(1, now)

    def _estimate(self, input_tokens: int, max_tokens: int | None) -> int:
        return input_tokens + math.ceil(min(self._generated, math.inf if max_tokens is None else max_tokens))

    def _find_room(self, tokens: int, now: float) -> float:
        """When there is room for a request; a request that is larger than the limit needs an empty minute."""
        while self._sent and self._sent[0].at + MINUTE <= now:
            self._sent.popleft()
        rpm, tpm = self.limits.rpm or math.inf, self.limits.tpm or math.inf
        count, total, opens = len(self._sent), sum(sent.tokens for sent in self._sent), now
        for sent in self._sent:
            if count < rpm and total + tokens <= tpm:
                break
            count, total, opens = count - 1, total - sent.tokens, sent.at + MINUTE
        return opens
