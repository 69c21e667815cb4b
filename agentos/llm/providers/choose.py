"""Choice of the LLM provider, model and API key: from the configuration, else by which keys are set."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import trio
from attrs import field, frozen
from msgspec import Struct

from agentos.llm.models.api_keys import Variables
from agentos.llm.settings import LLMSettings, ProviderName, Timeouts, is_url

from .provider import Denied, Failing, Provider

if TYPE_CHECKING:
    from .offline_rules import BadRules, Rule

GEMINI_MODEL = "gemini-2.0-flash"
OPENAI_MODEL = "gpt-5-mini"
ANTHROPIC_MODEL = "claude-haiku-4-5"
KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
PROVIDER_OF_KEY: Mapping[str, ProviderName] = dict(zip(KEYS, ("gemini", "gemini", "openai", "anthropic"), strict=True))
EXTRAS = ("openai", "anthropic")  # providers with an SDK, a package of that name, that isn't in the base install


@frozen
class ProviderChoice:
    """``base_url=None``: the provider's default URL. ``variable`` names the environment variable of the key.

    ``prompt_caching``: see :class:`agentos.llm.settings.LLMSettings`.
    """

    provider: ProviderName
    model: str
    base_url: str | None = None
    key: str | None = field(default=None, repr=False)
    variable: str = ""
    prompt_caching: bool = True


class NoProvider(Struct, frozen=True):
    """No provider can be used; ``why`` says what to do about it."""

    why: str


def choose_provider(settings: LLMSettings, variables: Variables) -> ProviderChoice | NoProvider:
    """Choose by the configuration; if it names no provider, by the first key that is set."""
    provider = settings.provider
    if provider is None:
        if settings.base_url is not None:
            return NoProvider('[llm] base_url needs provider = "gemini", "openai" or "anthropic" beside it')
        key = next((name for name in KEYS if variables.get(name)), None)
        if key is None and not settings.asks_vendor:
            return NoProvider('[llm] cassette needs provider = "…" beside it: its default model is part of a question')
        if key is None:
            return NoProvider(f'no key: set {", ".join(KEYS[:-1])} or {KEYS[-1]}, or [llm] provider = "offline"')
        provider = PROVIDER_OF_KEY[key]
    if provider == "offline":
        return ProviderChoice("offline", settings.model or "offline")
    if provider in EXTRAS and settings.asks_vendor and find_spec(provider) is None:
        return NoProvider(f"provider {provider} needs a package that isn't installed: pip install {provider}")
    choose = {"gemini": _gemini, "openai": _openai, "anthropic": _anthropic}[provider]
    choice = choose(settings, variables)
    if isinstance(choice, ProviderChoice) and choice.base_url is not None and not is_url(choice.base_url):
        # The URL isn't shown: it may contain a password.
        return NoProvider("base_url: expected http:// or https:// and a host, without a user and a password")
    return choice


def _gemini(settings: LLMSettings, variables: Variables) -> ProviderChoice | NoProvider:
    variable = next((name for name in KEYS[:2] if name in variables), KEYS[0])
    key = variables.get(variable)
    if key is None and settings.base_url is None:
        return NoProvider(f'[llm] provider = "gemini" needs a key: set {KEYS[0]} or {KEYS[1]}')
    model = settings.model or variables.get("GEMINI_MODEL") or GEMINI_MODEL
    return ProviderChoice("gemini", model, settings.base_url, key, variable)


def _openai(settings: LLMSettings, variables: Variables) -> ProviderChoice | NoProvider:
    base_url = settings.base_url or variables.get("OPENAI_BASE_URL")
    key = variables.get("OPENAI_API_KEY")
    if key is None and base_url is None:
        return NoProvider(
            '[llm] provider = "openai" needs a key: set OPENAI_API_KEY, or base_url to a server of your own'
        )
    if settings.model is None and base_url is not None:
        return NoProvider('[llm] model = "…" has to say which model of that server is meant')
    return ProviderChoice("openai", settings.model or OPENAI_MODEL, base_url, key, "OPENAI_API_KEY")


def _anthropic(settings: LLMSettings, variables: Variables) -> ProviderChoice | NoProvider:
    variable = "ANTHROPIC_API_KEY"
    key = variables.get(variable)
    if key is None and settings.base_url is None:
        return NoProvider(f'[llm] provider = "anthropic" needs a key: set {variable}')
    model = settings.model or ANTHROPIC_MODEL
    return ProviderChoice("anthropic", model, settings.base_url, key, variable, settings.prompt_caching)


async def connect(
    choice: ProviderChoice | NoProvider, settings: LLMSettings, rules: "Sequence[Rule] | BadRules" = ()
) -> Provider:
    """Make the provider; a vendor's SDK is imported here, in a thread. ``rules`` are the offline provider's.

    Raises :class:`Denied` with what the operator can do, and :class:`Failing` if the SDK can't be loaded at present.
    """
    if isinstance(choice, NoProvider):
        raise Denied(choice.why)
    if choice.provider == "offline":
        from .offline import Offline

        if isinstance(rules, ValueError):
            raise Denied(str(rules))
        return Offline(settings.offline, rules)
    try:
        # Not abandonable: an interpreter that exits while extension modules are initialised may crash.
        return await trio.to_thread.run_sync(_vendor, choice, settings.timeouts)
    except Exception as error:  # file descriptors are used up, a package is broken
        raise Failing(f"the SDK of {choice.provider} can't be loaded: {type(error).__name__}: {error}") from None


def _vendor(choice: ProviderChoice, timeouts: Timeouts) -> Provider:
    """Import the SDK and make the provider; the first call takes a second because the SDKs are large."""
    with _import_wholly():
        from .account import ProviderAccount

        account = ProviderAccount(choice.provider, choice.key, choice.variable)
        if choice.provider == "gemini":
            from .gemini import Gemini

            return Gemini(account, choice.base_url, timeouts)
        if choice.provider == "anthropic":
            from .anthropic import Anthropic

            return Anthropic(account, choice.base_url, timeouts, choice.prompt_caching)
        from .openai import OpenAI

        return OpenAI(account, choice.base_url, timeouts)


@contextmanager
def _import_wholly() -> Iterator[None]:
    """Remove the modules that a failed import leaves: asyncio, for one, can't be imported again over its submodules."""
    before = set(sys.modules)
    try:
        yield
    except BaseException:
        for name in set(sys.modules) - before:
            del sys.modules[name]
            package, _, module = name.rpartition(".")
            if package in before:
                vars(sys.modules[package]).pop(module, None)
        raise
