"""What ``[llm]`` in a configuration file becomes: which provider, how patient, how many, at what price."""

from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import urlsplit

from attrs import field, frozen

from agentos.services.quotas import Quota

from .fair_queue import IN_ALL, PER_AGENT

ProviderName = Literal["offline", "gemini", "openai"]


@frozen
class Price:
    """What a million tokens cost, in the currency that money budgets are in; thoughts count as output."""

    input: float
    output: float


@frozen
class Timeouts:
    """Seconds: to a connection, to the first piece of an answer, between two pieces, and for all of it."""

    connect: float = 10.0
    first_token: float = 120.0
    idle: float = 60.0
    total: float = 600.0


@frozen
class Retry:
    """How often a question is asked in all, and how long the pauses between are: exponential, with jitter.

    ``first`` and ``max`` are seconds. While the provider says to slow down, a question goes on for ``patience`` seconds
    and no attempt is counted. After ``breaker`` failed attempts in a row, whoever asked, nobody is let through for
    ``cooldown`` seconds; then one question tries.
    """

    attempts: int = 5
    patience: float = 120.0
    first: float = 0.5
    factor: float = 2.0
    max: float = 30.0
    jitter: float = 0.25
    breaker: int = 12
    cooldown: float = 10.0


@frozen
class OfflineSettings:
    """How the provider without a network behaves.

    ``rules`` is a TOML file's absolute path. Seconds: ``base`` per request, ``per_input`` and ``per_output`` per
    token. ``faults`` is the share of requests that fail, ``seed`` which of them.
    """

    rules: str | None = None
    base: float = 0.0
    per_input: float = 0.0
    per_output: float = 0.0
    faults: float = 0.0
    seed: int = 0


@frozen
class LLMSettings:
    """``provider=None``: the one whose key is in the environment. ``max_tokens`` is what a question without its own
    may generate at most where a budget has to know; ``budget`` is that of all agents together. ``per_agent`` questions
    may wait of one agent, ``in_all`` of all."""

    provider: ProviderName | None = None
    model: str | None = None
    budget: Sequence[Quota] = ()
    base_url: str | None = None
    openai_endpoint: bool = False
    concurrency: int = 1
    max_tokens: int = 8192
    per_agent: int = PER_AGENT
    in_all: int = IN_ALL
    prices: Mapping[str, Price] = field(factory=dict)
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
    offline: OfflineSettings = OfflineSettings()


@frozen
class Share:
    """What somebody may have of the model: ``weight`` times as much of it as a sibling that weighs 1 and, together
    with all that is beneath it, no more than its ``budget``."""

    weight: float = 1.0
    budget: Sequence[Quota] = ()


@frozen
class Party:
    """An agent, or a group of them, as the line and the budgets know it. ``name`` is unlike any other's, for ever."""

    name: str
    share: Share = Share()


Seat = tuple[Party, ...]
"""Who asks: from the outermost down to the agent itself."""


def is_url(url: str) -> bool:
    """Whether it can be a provider's; one with a password in it would show that in every error."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
        )
    except ValueError:
        return False
