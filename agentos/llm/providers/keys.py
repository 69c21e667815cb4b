"""The providers that are configured, each with its API keys."""

import logging
from collections.abc import Mapping, Sequence

from attrs import evolve
from msgspec.structs import replace

from agentos.llm.models.api_keys import Variable, Variables
from agentos.llm.settings import LLMSettings, ProviderSettings
from agentos.services.http.secrets import read_source

from .choose import KEYS, NoProvider, ProviderChoice, choose_provider

log = logging.getLogger(__name__)

Choices = Mapping[str, Sequence[ProviderChoice | NoProvider]]
"""For each provider by its name, one choice for each of its keys, at least one."""


def choose_providers(settings: LLMSettings, variables: Variables, environment: Mapping[str, str]) -> Choices:
    """Choose the providers. A key that can't be read is left out, with a warning, if there are others. Reads files."""
    if not settings.asks_vendor:
        variables = Variables({name: Variable("") for name in KEYS} | dict(variables.found))
    if not settings.providers:
        choice = choose_provider(settings, variables)
        return {choice.provider if isinstance(choice, ProviderChoice) else "none": [choice]}
    return {name: _choose(name, one, settings, variables, environment) for name, one in settings.providers.items()}


def describe_missing(choices: Choices) -> Sequence[str]:
    """Why providers can't be asked."""
    return [choice.why for each in choices.values() for choice in each if isinstance(choice, NoProvider)]


def _choose(
    name: str, provider: ProviderSettings, settings: LLMSettings, variables: Variables, environment: Mapping[str, str]
) -> Sequence[ProviderChoice | NoProvider]:
    caching = settings.prompt_caching if provider.prompt_caching is None else provider.prompt_caching
    own = replace(settings, provider=provider.type, base_url=provider.base_url, prompt_caching=caching, providers={})
    if not provider.keys or not settings.asks_vendor:
        return [_name(name, choose_provider(own, variables))]
    found: list[ProviderChoice | NoProvider] = []
    unreadable: list[NoProvider] = []
    for source in provider.keys:
        try:
            key = read_source(source, environment)
        except ValueError as error:
            unreadable.append(NoProvider(f"[llm.providers.{name}] keys: {error}"))
            continue
        choice = choose_provider(own, Variables({f"{provider.type.upper()}_API_KEY": Variable(key)}))
        if isinstance(choice, ProviderChoice):
            choice = evolve(choice, key=key, variable=source.partition(":")[2])
        found.append(_name(name, choice))
    for each in unreadable if found else ():
        log.warning("%s", each.why)
    return found or unreadable[:1]


def _name(name: str, choice: ProviderChoice | NoProvider) -> ProviderChoice | NoProvider:
    return choice if isinstance(choice, ProviderChoice) else NoProvider(f"[llm.providers.{name}]: {choice.why}")
