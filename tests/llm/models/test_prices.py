"""Which prices apply, and the table of published ones."""

import datetime

import pytest

from agentos.llm.models.prices import find_price, prices_of, read_published
from agentos.llm.providers.choose import ANTHROPIC_MODEL, GEMINI_MODEL, OPENAI_MODEL
from agentos.llm.settings import LLMSettings, Price
from tests.support.runs.rows import each_row

OWN = Price(7.0, 9.0)


def test_the_table_is_dated_and_has_the_default_model_of_each_vendor() -> None:
    table = read_published()

    assert datetime.date.fromisoformat(table.date) >= datetime.date(2026, 11, 23)
    assert table.currency == "USD"
    assert table.prices.keys() >= {ANTHROPIC_MODEL, GEMINI_MODEL, OPENAI_MODEL}
    assert all(0 < price.input < price.output < 1000 for price in table.prices.values())
    assert all(0 < (price.cache_read or 0.01) < price.input for price in table.prices.values())


def test_a_price_in_the_file_replaces_a_published_one_and_adds_others() -> None:
    prices = prices_of(LLMSettings(prices={"gpt-5-mini": OWN, "llama": OWN}))

    assert (prices["gpt-5-mini"], prices["llama"]) == (OWN, OWN)
    assert prices["claude-haiku-4-5"] == Price(1.0, 5.0)


@pytest.mark.parametrize(
    "settings",
    [LLMSettings(currency="EUR", prices={"llama": OWN}), LLMSettings(provider="offline", prices={"llama": OWN})],
)
def test_published_prices_count_in_their_currency_and_where_a_vendor_is_asked(settings: LLMSettings) -> None:
    assert prices_of(settings) == {"llama": OWN}


@each_row(
    ("model", "found"),
    [
        ("claude-haiku-4-5", True),
        ("claude-haiku-4-5-20251001", True),
        ("gpt-5-mini-2025-08-07", True),
        ("gpt-5-mini-2025", False),
        ("gpt-5-mini-fast", False),
        ("claude-haiku-4", False),
        ("claude-haiku-5-5", False),
    ],
)
def test_a_name_stands_for_its_snapshots_and_for_no_other_model(model: str, found: bool) -> None:
    assert (find_price(read_published().prices, model) is not None) == found


def test_a_price_of_a_snapshot_comes_before_that_of_its_model() -> None:
    assert find_price({"gpt-5": Price(1.0, 2.0), "gpt-5-2025-08-07": OWN}, "gpt-5-2025-08-07") == OWN
