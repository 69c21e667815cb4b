"""Model settings in a configuration file: the ``[llm]`` table."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from attrs import evolve, field, frozen
from msgspec.structs import replace

from agentos.agents.builder import NO_PRICES, build_quotas, describe_missing_price
from agentos.config.reader import Reader, ReadTable
from agentos.config.toml_lines import Keys
from agentos.llm.models.prices import find_price, prices_of
from agentos.llm.providers.offline_rules import BadRules, read_rules
from agentos.llm.settings import Count, LLMSettings, OfflineSettings, Patience, Price, ProviderName, Retry, Timeouts
from agentos.services.quotas import Quota
from agentos_sdk.encoding.codec import Rule, Seconds
from agentos_sdk.values import FEW_LINES, Budget, Money

from .llm_routes import Url, read_routes

Context = Annotated[int, Rule(lambda number: 1000 <= number <= 10**9, "a number of tokens from 1000 up")]


@frozen(kw_only=True)
class PriceTable:
    """``[llm.prices]``: the price of a model per million tokens."""

    input: Money | None = None
    output: Money | None = None
    cache_read: Money | None = None
    cache_creation: Money | None = None
    cache_creation_1h: Money | None = None


@frozen(kw_only=True)
class LLMTable:
    """``[llm]``: see ``agentos.llm.settings.LLMSettings``. Nested tables are read separately."""

    provider: ProviderName | None = None
    model: str | None = None
    base_url: Url | None = None
    openai_endpoint: bool | None = None
    concurrency: Annotated[int, Rule(lambda number: 1 <= number <= 1000, "a number from 1 to 1000")] | None = None
    max_tokens: Count | None = None
    per_agent: Count | None = None
    in_all: Count | None = None
    keep_contents: Annotated[int, Rule(lambda number: 0 <= number <= 1000, "a number from 0 to 1000")] | None = None
    cache: Seconds | None = None
    cache_shared: bool | None = None
    prompt_caching: bool | None = None
    budget: Annotated[Sequence[Budget], FEW_LINES] = ()
    default_budget: Annotated[Sequence[Budget], FEW_LINES] | Literal["none"] | None = None
    fallback_after: Patience | None = None
    providers: Mapping[str, object] = field(factory=dict)
    aliases: Mapping[str, object] = field(factory=dict)
    limits: Mapping[str, object] = field(factory=dict)
    context: Mapping[str, Context] = field(factory=dict)
    prices: Mapping[str, object] = field(factory=dict)
    currency: Annotated[str, Rule(lambda code: re.fullmatch("[A-Z]{3}", code), "three capitals, as EUR")] | None = None
    timeouts: object = None
    retry: object = None
    offline: object = None
    cassette: str | None = None


TABLES: Mapping[str, type] = {"timeouts": Timeouts, "retry": Retry, "offline": OfflineSettings}


def read_llm(reader: Reader, data: object) -> LLMSettings:
    """Read the ``[llm]`` table."""
    read = reader.read(LLMTable, data, ("llm",))
    routed = ("providers", "aliases", "limits")
    made: dict[str, Any] = read.present_fields("prices", "budget", "default_budget", *routed, *TABLES)
    made |= read_routes(reader, read)
    for name, cls in TABLES.items():
        if (found := getattr(read.table, name)) is not None:
            made[name] = reader.read(cls, found, ("llm", name)).table
    prices = {}
    for model, price in read.table.prices.items():
        one = reader.read(PriceTable, price, ("llm", "prices", model))
        if all([check_required_field(reader, one, "input"), check_required_field(reader, one, "output")]):
            prices[model] = Price(**one.present_fields())
    budget = build_quotas(read.table.budget, partial(reader.report, read), "budget")
    if (given := read.table.default_budget) is not None:
        lines = () if given == "none" else given
        made["default_budget"] = build_quotas(lines, partial(reader.report, read), "default_budget")
    if "cassette" in made:
        made["cassette"] = reader.resolve_path(made["cassette"])
    settings = LLMSettings(**made, prices=prices, budget=budget)
    rules = reader.resolve_path(settings.offline.rules)
    if rules is not None and rules not in reader.settled:
        check_rules(reader, rules)
    return replace(settings, offline=evolve(settings.offline, rules=rules))


def check_rules(reader: Reader, file: str) -> None:
    """Report mistakes in the offline provider's rules now instead of at the first question."""
    try:
        read_rules(file)
    except BadRules as error:
        reader.mistakes += [(("llm", "offline", "rules"), f"{file}: {mistake}") for mistake in error.mistakes]


def check_required_field(reader: Reader, read: ReadTable, name: str) -> bool:
    """Whether a required field is present; reports a mistake if it is missing."""
    if getattr(read.table, name) is not None:
        return True
    if name not in read.invalid:
        reader.add_mistake(read, "required field missing", name)
    return False


def check_prices(reader: Reader, settings: LLMSettings, budgets: Sequence[tuple[Keys, Sequence[Quota]]]) -> None:
    """Check that every budget of money has the model's price. ``budgets`` are all budgets outside ``[llm]``."""
    prices = prices_of(settings)
    of_llm = [(("llm", "budget"), settings.budget), (("llm", "default_budget"), settings.default_budget)]
    for keys, quotas in (*of_llm, *budgets):
        if not any(quota.what == "money" for quota in quotas):
            continue
        models = settings.aliases.get(settings.model or "", [settings.model or ""])
        if settings.model is not None and not any(find_price(prices, model) for model in models):
            missing = f"[llm.prices] has none for {settings.model!r}"
        elif not prices:
            missing = NO_PRICES
        else:
            continue
        reader.mistakes.append((keys, describe_missing_price(missing)))
