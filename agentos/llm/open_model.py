"""The models that agents share: the choice of providers and models, their queue and their budget."""

import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from agentos.database import Database
from agentos.llm.answers.contents import Contents
from agentos.llm.ask import Connect, ProviderClient
from agentos.llm.budgets import Budgets
from agentos.llm.line import Line
from agentos.llm.providers.choose import KEYS, NoProvider, ProviderChoice, connect
from agentos.llm.providers.keys import Choices, choose_providers, describe_missing
from agentos.llm.settings import Account, LLMSettings, Share
from agentos.services.events import Publish
from agentos.services.http.secrets import MIN_LENGTH
from agentos.services.quotas import MONEY_UNITS, Quota
from agentos_sdk.encoding.quantities import duration

from .models.api_keys import read_variables
from .models.prices import prices_of

if TYPE_CHECKING:
    from agentos.llm.cassettes.cassette import Cassette
    from agentos.llm.providers.offline_rules import BadRules, Rule

log = logging.getLogger(__name__)

CASSETTE_TEXTS = {
    "replay": "answers recorded in",
    "record": "answers are recorded anew in",
    "extend": "answers are recorded, if they aren't yet, in",
    "prune": "unused answers are removed at the end from",
}


class SharedModel(Struct, frozen=True):
    """``account`` is the share of all callers together. ``description`` is for people, None if none is configured.

    ``default_budget`` is one too, None if no model can be asked or agents have none by default.
    """

    line: Line
    account: Account
    description: str | None
    default_budget: str | None = None


async def open_model(settings: LLMSettings, database: Database, publish: Publish) -> SharedModel:
    """Choose the providers and the model, and load what is spent of the budgets. Connects at the first request."""
    choices, keys = await trio.to_thread.run_sync(read_choices, settings)
    usable = [choice for each in choices.values() for choice in each if isinstance(choice, ProviderChoice)]
    rules: Sequence[Rule] | BadRules = ()
    if any(choice.provider == "offline" for choice in usable):
        rules = await trio.to_thread.run_sync(read_offline_rules, settings)
    model = usable[0].model if usable else settings.model if settings.providers else ""
    cassette = None
    if settings.cassette is not None:
        from agentos.llm.cassettes.cassette import Cassette  # for tests alone

        cassette = await trio.to_thread.run_sync(Cassette.read, Path(settings.cassette), settings.cassette_mode)
    first, *others = (make_client(name, each, settings, publish, cassette, rules) for name, each in choices.items())
    budgets = await Budgets.load(prices_of(settings), database, settings.max_tokens, time.time(), publish)
    return SharedModel(
        Line(settings, first, budgets, model or "", Contents(settings.keep_contents, keys), others),
        Account("kernel", Share(budget=settings.budget)),
        describe_choices(choices, settings) if usable or settings != LLMSettings() else None,
        describe_default_budget(settings.default_budget) if usable else None,
    )


def make_client(
    name: str,
    choices: Sequence[ProviderChoice | NoProvider],
    settings: LLMSettings,
    publish: Publish,
    cassette: "Cassette | None",
    rules: "Sequence[Rule] | BadRules",
) -> ProviderClient:
    """The connections to one provider, one for each of the choices."""
    connects: list[Connect] = [partial(connect, choice, settings, rules) for choice in choices]
    if cassette is not None:
        connects = [partial(cassette.connect, each) for each in connects]
    kind = next((choice.provider for choice in choices if isinstance(choice, ProviderChoice)), None)
    return ProviderClient(
        connects[0],
        settings.retry,
        settings.timeouts,
        name=name,
        publish=publish,
        kind=kind,
        further_keys=connects[1:],
        limits=settings.limits,
        concurrency=settings.providers[name].concurrency if name in settings.providers else None,
    )


def read_choices(settings: LLMSettings) -> tuple[Choices, Sequence[str]]:
    """Choose the providers and the model; reads files. Agents' environments are independent of these variables.

    Returns also the API keys that are set, of at least ``MIN_LENGTH`` characters: a shorter one, such as that of a
    local server, is no secret, and would be redacted in any text.
    """
    variables = read_variables(os.environ, Path.cwd())
    for warning in variables.warnings:
        log.warning("%s", warning)
    choices = choose_providers(settings, variables, os.environ)
    found = [choice for each in choices.values() for choice in each if isinstance(choice, ProviderChoice)]
    if any(choice.provider == "offline" for choice in found):
        import agentos.llm.providers.offline  # noqa: F401 - now: later no file descriptor may be left to import it with
    keys = dict.fromkeys([*(variables.get(name) for name in KEYS), *(choice.key for choice in found)])
    return choices, [key for key in keys if key is not None and len(key) >= MIN_LENGTH]


def read_offline_rules(settings: LLMSettings) -> "Sequence[Rule] | BadRules":
    """The offline provider's rules, or why they can't be used; read before agents begin, which may change the file."""
    from agentos.llm.providers.offline_rules import BadRules, read_rules

    try:
        return read_rules(settings.offline.rules) if settings.offline.rules is not None else ()
    except BadRules as error:
        return error


def describe_default_budget(quotas: Sequence[Quota]) -> str | None:
    amounts = ", ".join(
        f"{quota.most / (MONEY_UNITS if quota.what == 'money' else 1):,.10g} {quota.what} per {duration(quota.per)}"
        for quota in quotas
    )
    return f"each agent of level sandboxed without a budget has {amounts} ([llm] default_budget)" if amounts else None


def describe_choices(choices: Choices, settings: LLMSettings) -> str:
    """One sentence on the default model and the providers, or the cassette, for people."""
    missing = "; ".join(describe_missing(choices))
    usable = {name: choice for name, each in choices.items() for choice in each if isinstance(choice, ProviderChoice)}
    if not usable:
        return f"no model can be asked: {missing}"
    text = f"model {next(iter(usable.values())).model} by {', '.join(usable)}"
    if settings.cassette is not None:
        text += f", {CASSETTE_TEXTS[settings.cassette_mode]} {settings.cassette}"
    return f"{text}; can't be asked: {missing}" if missing else text
