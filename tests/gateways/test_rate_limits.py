"""OpenAI's headers from the budgets of an agent and those above it."""

from agentos.gateways.rate_limits import list_headers
from agentos.services.quotas import BudgetState, Quota

NOW = 1_700_000_000.0


def left(what: str, most: int, used: int, renews_in: float, per: float = 60.0) -> BudgetState:
    return BudgetState("agent", Quota(what, most, per), used, 0, NOW + renews_in)


def test_what_no_budget_limits_has_no_header() -> None:
    assert list_headers([left("money", 10**9, 0, 5)], NOW) == []


def test_requests_and_tokens_have_limit_rest_and_renewal() -> None:
    assert dict(list_headers([left("calls", 10, 4, 29.2), left("tokens", 5000, 5200, 29.2)], NOW)) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "6",
        "x-ratelimit-reset-requests": "30s",
        "x-ratelimit-limit-tokens": "5000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "30s",
    }


def test_the_quota_with_the_least_left_is_told_and_of_equal_ones_that_which_renews_last() -> None:
    states = [left("calls", 100, 98, 5), left("calls", 3, 1, 3600, 86400.0), left("calls", 1000, 0, 7)]

    assert dict(list_headers(states, NOW))["x-ratelimit-limit-requests"] == "3"
    assert dict(list_headers(states, NOW))["x-ratelimit-reset-requests"] == "3600s"
