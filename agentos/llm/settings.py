"""The ``[llm]`` section of a configuration file: provider, timeouts, retries, queue limits, prices and budgets."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from attrs import frozen
from msgspec import Struct

from agentos.services.quotas import Quota, make_quotas
from agentos_sdk.encoding.codec import Rule, Seconds
from agentos_sdk.values import LLMClass

from .queue.fair_queue import MAX_WAITING, MAX_WAITING_PER_AGENT

ProviderName = Literal["offline", "gemini", "openai", "anthropic"]
CassetteMode = Literal["replay", "record", "extend", "prune"]
"""Answers come from the cassette; it is made anew; what it lacks is added; unused answers are removed at the end."""
Count = Annotated[int, Rule(lambda number: number >= 1, "a whole number from 1 up")]
Chance = Annotated[float, Rule(lambda number: 0 <= number <= 1, "a number from 0 to 1")]
Factor = Annotated[float, Rule(lambda factor: 1 <= factor <= 10, "a number from 1 to 10")]
if TYPE_CHECKING:  # settings are made of plain numbers, too
    Pause: TypeAlias = float
    Patience: TypeAlias = float
else:
    Pause, Patience = Seconds, Annotated[Seconds, Rule(lambda seconds: seconds > 0, "a duration above 0s")]


class Price(Struct, frozen=True):
    """Price of a million tokens, in ``LLMSettings.currency``; thoughts count as output.

    The others are those of input that the vendor reads from its prompt cache, writes to it, and writes to it to stay
    for an hour; ``None``: see :func:`agentos.llm.models.prices.cache_prices`.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_creation: float | None = None
    cache_creation_1h: float | None = None


@frozen
class Timeouts:
    """Seconds: to connect, to the first piece of an answer, between two pieces, and for the whole answer."""

    connect: Patience = 10.0
    first_token: Patience = 120.0
    idle: Patience = 60.0
    total: Patience = 600.0


@frozen
class Retry:
    """How often a request is attempted, and how long the pauses between attempts are: exponential, with jitter.

    ``first`` and ``max`` are seconds. While the provider answers 429, a request is retried for ``patience`` seconds and
    no attempt is counted. After ``breaker`` failed attempts of one model in a row, counted as in
    :class:`~agentos.llm.models.circuit_breaker.CircuitBreaker`, no request for that model is sent for ``cooldown``
    seconds; then one request probes the provider.
    """

    attempts: Count = 5
    patience: Pause = 120.0
    first: Patience = 0.5
    factor: Factor = 2.0
    max: Patience = 30.0
    jitter: Chance = 0.25
    breaker: Count = 12
    cooldown: Pause = 10.0


@frozen
class OfflineSettings:
    """Settings of the offline provider.

    ``rules`` is a TOML file's absolute path. Seconds: ``base`` per request, ``per_input`` and ``per_output`` per token.
    ``faults`` is the share of requests that fail, ``seed`` which of them.
    """

    rules: str | None = None
    base: Pause = 0.0
    per_input: Pause = 0.0
    per_output: Pause = 0.0
    faults: Chance = 0.0
    seed: int = 0


class ProviderSettings(Struct, frozen=True):
    """One of several providers. ``keys`` are used in turn, each ``env:NAME`` or ``file:PATH`` with an absolute path.

    Without ``keys`` the key is that of the provider's own variable. ``models`` are names and patterns of
    the models that it is asked for. ``concurrency=None``, ``prompt_caching=None``: that of :class:`LLMSettings`.
    """

    type: ProviderName
    base_url: str | None = None
    keys: Sequence[str] = ()
    models: Sequence[str] = ("*",)
    concurrency: int | None = None
    prompt_caching: bool | None = None


Capability = Literal["images", "tools", "schema"]


@frozen
class ModelLimits:
    """``rpm`` and ``tpm``: requests and tokens per minute at most. ``lacks`` is what the model can't do.

    ``first_token``: seconds to the first piece of an answer; ``idle``: between two pieces; ``None``: that of
    :class:`Timeouts`.
    """

    rpm: Count | None = None
    tpm: Count | None = None
    first_token: Patience | None = None
    idle: Patience | None = None
    lacks: Sequence[Capability] = ()


DEFAULT_CONTEXT = 128_000
"""Tokens that fit into the context of a model without an entry in ``[llm.context]``."""
DEFAULT_BUDGET = make_quotas(86400.0, tokens=200_000)
"""The budget of an agent of level sandboxed without one of its own."""


class LLMSettings(Struct, frozen=True):
    """Settings of the model, its provider and its queue.

    ``provider=None``: chosen by the keys in the environment. ``max_tokens`` is the limit of generated tokens for a
    request without its own, if a budget applies; ``budget`` is that of all agents together, ``default_budget`` that of
    each agent of level sandboxed that has none. At most ``per_agent``
    requests of one agent may wait, and ``in_all`` of all agents. The last ``keep_contents`` questions of each agent are
    kept with their answers, see :class:`agentos.llm.answers.contents.Contents`. ``cache`` and ``cache_shared``: see
    :class:`agentos.llm.answers.response_cache.ResponseCache`. ``prompt_caching``: providers of type anthropic place
    marks for the vendor's prompt cache in questions without any.

    With ``providers``, by name and in the order of the file, ``provider`` and ``base_url`` are None. ``aliases`` map a
    name or a pattern to the models that are asked, the next one if one is unavailable for ``fallback_after`` seconds.
    ``context`` is how many tokens fit into the context of each model; see :data:`DEFAULT_CONTEXT`.

    ``cassette`` is the absolute path of recorded answers; see :mod:`agentos.llm.cassettes.cassette`.
    """

    provider: ProviderName | None = None
    model: str | None = None
    budget: Sequence[Quota] = ()
    default_budget: Sequence[Quota] = DEFAULT_BUDGET
    base_url: str | None = None
    openai_endpoint: bool = False
    concurrency: int = 1
    max_tokens: int = 8192
    per_agent: int = MAX_WAITING_PER_AGENT
    in_all: int = MAX_WAITING
    keep_contents: int = 50
    cache: float = 0.0
    cache_shared: bool = False
    prompt_caching: bool = True
    providers: Mapping[str, ProviderSettings] = {}
    aliases: Mapping[str, Sequence[str]] = {}
    limits: Mapping[str, ModelLimits] = {}
    context: Mapping[str, int] = {}
    fallback_after: float = 2.0
    prices: Mapping[str, Price] = {}
    currency: str = "USD"
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
    offline: OfflineSettings = OfflineSettings()
    cassette: str | None = None
    cassette_mode: CassetteMode = "replay"

    @property
    def asks_vendor(self) -> bool:
        """Whether a provider may be asked; else all answers come from the cassette."""
        return self.cassette is None or self.cassette_mode in ("record", "extend")


class Share(Struct, frozen=True):
    """An agent's share of the model: ``weight`` relative to a sibling with weight 1, in the same class.

    The agent and its descendants together may use at most ``budget``. The SDK's ``Share`` has a budget as it is
    written; here each amount in it is a quota, and the quotas of the agent's permissions are added.
    ``by_default``: the budget is the default one. ``class_=None``: see :func:`agentos.llm.queue.classes.find_class`.
    """

    weight: float = 1.0
    budget: Sequence[Quota] = ()
    by_default: bool = False
    class_: LLMClass | None = None


class Account(Struct, frozen=True):
    """An agent or a group of agents, as the queue and the budgets know it. ``name`` is unique and never reused."""

    name: str
    share: Share = Share()


QueuePath = tuple[Account, ...]
"""The caller: the accounts from the outermost down to the agent itself."""


def queue_names(queue_path: QueuePath) -> tuple[str, ...]:
    return tuple(account.name for account in queue_path)


def is_url(url: str) -> bool:
    """Whether it is a usable provider URL; one with a password is refused: the password would appear in every error."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
        )
    except ValueError:
        return False
