"""The model that agents share: the choice of provider and model, its queue and its budget."""

import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio
from msgspec import Struct

from agentos.database import Database
from agentos.services.events import Publish
from agentos.services.http.secrets import MIN_LENGTH
from agentos.services.quotas import MONEY_UNITS, Quota
from agentos_sdk.quantities import duration

from .api_keys import read_variables
from .ask import ProviderClient
from .budgets import Budgets
from .contents import Contents
from .line import Line
from .prices import prices_of
from .providers.choose import KEYS, NoProvider, ProviderChoice, choose_provider, connect
from .settings import Account, LLMSettings, Share

log = logging.getLogger(__name__)


class Model(Struct, frozen=True):
    """``account`` is the share of all callers together. ``description`` is for people, None if none is configured.

    ``default_budget`` is one too, None if no model can be asked or agents have none by default.
    """

    line: Line
    account: Account
    description: str | None
    default_budget: str | None = None


async def open_model(settings: LLMSettings, database: Database, publish: Publish) -> Model:
    """Choose the provider and the model, and load what is spent of the budgets. Connects at the first request."""
    choice, keys = await trio.to_thread.run_sync(read_choice, settings)
    provider, model = (choice.provider, choice.model) if isinstance(choice, ProviderChoice) else ("none", "")
    asking = ProviderClient(
        partial(connect, choice, settings), settings.retry, settings.timeouts, name=provider, publish=publish
    )
    budgets = await Budgets.load(prices_of(settings), database, settings.max_tokens, time.time(), publish)
    return Model(
        Line(settings, asking, budgets, model, Contents(settings.keep_contents, keys)),
        Account("kernel", Share(budget=settings.budget)),
        describe_choice(choice) if isinstance(choice, ProviderChoice) or settings != LLMSettings() else None,
        describe_default_budget(settings.default_budget) if isinstance(choice, ProviderChoice) else None,
    )


def read_choice(settings: LLMSettings) -> tuple[ProviderChoice | NoProvider, Sequence[str]]:
    """Choose the provider and the model; reads files. Agents' environments are independent of these variables.

    Returns also the API keys that are set, of at least ``MIN_LENGTH`` characters: a shorter one, such as that of a
    local server, is no secret, and would be redacted in any text.
    """
    variables = read_variables(os.environ, Path.cwd())
    for warning in variables.warnings:
        log.warning("%s", warning)
    choice = choose_provider(settings, variables)
    if isinstance(choice, ProviderChoice) and choice.provider == "offline":
        import agentos.llm.providers.offline  # noqa: F401 - now: later no file descriptor may be left to import it with
    keys = [value for name in KEYS if len(value := variables.get(name) or "") >= MIN_LENGTH]
    return choice, keys


def describe_default_budget(quotas: Sequence[Quota]) -> str | None:
    amounts = ", ".join(
        f"{quota.most / (MONEY_UNITS if quota.what == 'money' else 1):,.10g} {quota.what} per {duration(quota.per)}"
        for quota in quotas
    )
    return f"each agent of level sandboxed without a budget has {amounts} ([llm] default_budget)" if amounts else None


def describe_choice(choice: ProviderChoice | NoProvider) -> str:
    """One sentence on the model for people."""
    if isinstance(choice, ProviderChoice):
        return f"model {choice.model} by {choice.provider}"
    return f"no model can be asked: {choice.why}"
