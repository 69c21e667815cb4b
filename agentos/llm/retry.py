"""Retry delays for LLM providers: exponential backoff with jitter. No I/O; times are seconds."""

import math
from random import Random

from .settings import Retry

MAX_RETRY_AFTER = 600.0  # seconds; a provider that says "in a week", or has a wrong clock, is tried every ten minutes


def retry_delay(retry: Retry, attempt: int, after: float | None, random: Random) -> float:
    """Seconds to wait once attempt number ``attempt`` (the first is 1) has failed.

    Exponential, with a random factor of ± ``jitter``. If the provider said ``after``, at least that long, and the
    jitter only adds to it; an ``after`` above :data:`MAX_RETRY_AFTER` is reduced to that.
    """
    plain = _exponential(retry, attempt)
    if after is None or math.isnan(after):
        return plain * (1 + random.uniform(-retry.jitter, retry.jitter))
    return max(plain, min(after, MAX_RETRY_AFTER)) * (1 + random.uniform(0, retry.jitter))


def _exponential(retry: Retry, attempt: int) -> float:
    # The exponent is bounded: a float to the power of a thousand attempts overflows.
    growth = math.exp(min((attempt - 1) * math.log(retry.factor), 700.0))
    return min(retry.first * growth, retry.max)
