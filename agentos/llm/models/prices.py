"""Prices of models: those of the configuration, and a table of published ones that ships with the package."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import TypeVar

from msgspec import Struct

from agentos.llm.settings import LLMSettings, Price

CLAUDE_CACHE = (Fraction(1, 10), Fraction(5, 4), Fraction(2))
"""Prices of cached input of every Claude, as parts of that of input: read, written for 5 minutes, and for an hour.

https://platform.claude.com/docs/en/build-with-claude/prompt-caching, "Pricing", read in November 2026.
"""
SNAPSHOT = re.compile(r"-(?:20[0-9]{6}|20[0-9]{2}-[0-9]{2}-[0-9]{2})$")  # at the end of a model's name

T = TypeVar("T")


class PriceTable(Struct, frozen=True):
    """Prices by model; ``date``, as in ``2026-11-23``, is when they were compared with their sources."""

    date: str
    currency: str
    prices: Mapping[str, Price]


@cache
def read_published() -> PriceTable:
    """Read the table of published prices."""
    data = tomllib.loads(files(__package__).joinpath("prices.toml").read_text())
    prices = {model: Price(**price) for vendor in data["sources"] for model, price in data[vendor].items()}
    return PriceTable(str(data["date"]), data["currency"], prices)


def prices_of(settings: LLMSettings) -> Mapping[str, Price]:
    """The prices that apply: the configuration's, and the published ones of other models.

    Without the published ones where they would be wrong: in another currency, and where no vendor is asked.
    """
    if settings.provider == "offline":
        return settings.prices
    published = read_published()
    if settings.currency != published.currency:
        return settings.prices
    return {**published.prices, **settings.prices}


def cache_prices(model: str, price: Price) -> Sequence[Fraction]:
    """The prices of input that is read from a prompt cache, written to it, and written to it for an hour.

    One that isn't set is Anthropic's part of the price of input where the model is a Claude, else that price itself:
    then a cost may be too high, never too low by a discount that the vendor doesn't give.
    """
    parts = CLAUDE_CACHE if "claude" in model.lower() else (Fraction(1),) * 3
    given = (price.cache_read, price.cache_creation, price.cache_creation_1h)
    whole = Fraction(str(price.input))
    return [whole * part if own is None else Fraction(str(own)) for part, own in zip(parts, given, strict=True)]


def find_price(prices: Mapping[str, T], model: str) -> T | None:
    """The entry of a model or, if its name ends with a date, of the model of which it is a snapshot."""
    found = prices.get(model)
    return prices.get(SNAPSHOT.sub("", model)) if found is None else found
