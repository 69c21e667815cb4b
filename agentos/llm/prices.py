"""Prices of models: those of the configuration, and a table of published ones that ships with the package."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TypeVar

from msgspec import Struct

from .settings import LLMSettings, Price

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
    published = read_published()
    if settings.provider == "offline" or settings.currency != published.currency:
        return settings.prices
    return {**published.prices, **settings.prices}


def find_price(prices: Mapping[str, T], model: str) -> T | None:
    """The entry of a model or, if its name ends with a date, of the model of which it is a snapshot."""
    found = prices.get(model)
    return prices.get(SNAPSHOT.sub("", model)) if found is None else found
