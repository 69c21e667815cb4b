"""Types of the values in a budget, wherever budgets are written."""

from typing import Annotated

from agentos_sdk.codec import Rule, Seconds

Amount = Annotated[int, Rule(lambda number: 0 <= number <= 10**15, "a whole number from 0 to 10^15")]
Money = Annotated[float, Rule(lambda money: 0 <= money <= 1e9, "a number from 0 to a billion")]
Window = Annotated[
    Seconds,
    Rule(lambda per: 1 <= per <= 31 * 86400 and per % 1 == 0, "a window of whole seconds, such as 1h, up to 31d"),
]
MAX_BUDGET_LINES = 16  # lines of one budget: each is checked with every question
