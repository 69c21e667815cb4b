"""The schema of a permission set: one class for each of its tables."""

from collections.abc import Sequence
from typing import Annotated, Final

from attrs import asdict, field, frozen

from agentos_sdk.encoding.codec import CpuShare, Rule, Size
from agentos_sdk.values import FEW_LINES, Amount, Money, Window

MAX_EXAMPLES: Final = 100  # per effect

Text = Annotated[str, Rule(lambda text: len(text) <= 1000, "at most 1000 characters")]
Example = Annotated[str, Rule(lambda text: len(text) <= 4096, "at most 4096 characters")]
Examples = Annotated[Sequence[Example], Rule(lambda texts: len(texts) <= MAX_EXAMPLES, f"at most {MAX_EXAMPLES}")]
Count = Annotated[int, Rule(lambda number: number >= 1, "a whole number from 1 up")]
Weight = Annotated[int, Rule(lambda weight: 1 <= weight <= 10_000, "a weight from 1 to 10000")]


@frozen(kw_only=True)
class RulesTable:
    """The tables ``allow``, ``ask`` and ``deny``: patterns by kind."""

    calls: Sequence[Text] = ()
    read: Sequence[Text] = ()
    write: Sequence[Text] = ()
    commands: Sequence[Text] = ()
    domains: Sequence[Text] = ()
    models: Sequence[Text] = ()
    tools: Sequence[Text] = ()
    send: Sequence[Text] = ()
    agents: Sequence[Text] = ()
    events: Sequence[Text] = ()
    state_read: Sequence[Text] = ()
    state_write: Sequence[Text] = ()


@frozen(kw_only=True)
class ExamplesTable:
    """The examples by expected decision, such as ``READ /data/x`` or ``EXEC git status``."""

    allow: Examples = ()
    ask: Examples = ()
    deny: Examples = ()


@frozen(kw_only=True)
class LimitsTable:
    """``spawn.limits = {...}``: upper bounds for agents that an agent spawns; the SDK's ``Limits``, with ranges."""

    memory: Size | None = None
    max_pids: Count | None = None
    cpu_quota: CpuShare | None = None
    cpu_weight: Weight | None = None
    open_files: Count | None = None
    file_size: Size | None = None
    disk: Size | None = None
    inodes: Count | None = None
    tmp: Size | None = None


@frozen(kw_only=True)
class SpawnTable:
    limits: object = field(factory=dict)


@frozen(kw_only=True)
class QuotaLine:
    """A line of ``quotas``: a budget of the model, or of HTTP requests and the bytes of their bodies."""

    tokens: Amount | None = None
    calls: Amount | None = None
    money: Money | None = None
    http_requests: Amount | None = None
    http_bytes: Size | None = None
    per: Window

    def __attrs_post_init__(self) -> None:
        if not any(value is not None for name, value in asdict(self).items() if name != "per"):
            raise ValueError("expected at least one of tokens, calls, money, http_requests and http_bytes")


@frozen(kw_only=True)
class SetTable:
    """The whole set. Its parts are decoded one by one, so that a mistake in one doesn't hide mistakes in another."""

    level: str | None = None
    allow: object = field(factory=dict)
    ask: object = field(factory=dict)
    deny: object = field(factory=dict)
    spawn: object = field(factory=dict)
    quotas: Annotated[Sequence[object], FEW_LINES] = ()
    secrets: Annotated[Sequence[Text], FEW_LINES] = ()
    examples: object = field(factory=dict)
