"""OpenAI's ``x-ratelimit-`` headers, from the budgets that apply to an agent. No I/O, no clock."""

import math
from collections.abc import Sequence

from agentos.services.quotas import BudgetState

Headers = Sequence[tuple[str, str]]

NAMES = {"calls": "requests", "tokens": "tokens"}  # OpenAI's, by the resource that a quota limits


def list_headers(states: Sequence[BudgetState], now: float) -> Headers:
    """Limit, rest and time of renewal of requests and of tokens, each of the quota that has the least left.

    ``now`` is seconds since the epoch. What no quota limits has no header.
    """
    found: list[tuple[str, str]] = []
    for what, name in NAMES.items():
        tightest = min((each for each in states if each.quota.what == what), key=_tightness, default=None)
        if tightest is not None:
            found += [
                (f"x-ratelimit-limit-{name}", str(tightest.quota.most)),
                (f"x-ratelimit-remaining-{name}", str(tightest.left)),
                (f"x-ratelimit-reset-{name}", f"{max(0, math.ceil(tightest.renews_at - now))}s"),
            ]
    return found


def _tightness(state: BudgetState) -> tuple[int, float]:
    """Less left is tighter; of equal ones that which renews last."""
    return state.left, -state.renews_at
