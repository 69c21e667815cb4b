"""Values of the wire that the kernel's own rooms use as well: one class per idea, without any request or reply."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from attrs import astuple, field, frozen

from agentos_sdk.encoding.quantities import CpuShare, Seconds, Size
from agentos_sdk.encoding.strict import Rule, Text

MAX_TOKENS = 10**9  # largest count of tokens; a provider that names more is not believed
MAX_BUDGET_LINES = 16  # lines of one budget: each is checked with every question
MAX_USAGE_ROWS = 10_000  # of USAGE in one reply

Amount = Annotated[int, Rule(lambda number: 0 <= number <= 10**15, "a whole number from 0 to 10^15")]
Money = Annotated[float, Rule(lambda money: 0 <= money <= 1e9, "a number from 0 to a billion")]
Weight = Annotated[float, Rule(lambda weight: 0.01 <= weight <= 100, "a weight from 0.01 to 100")]
Window = Annotated[
    Seconds,
    Rule(lambda per: 1 <= per <= 31 * 86400 and per % 1 == 0, "a window of whole seconds, such as 1h, up to 31d"),
]
ThinkingLevel: TypeAlias = Literal["low", "medium", "high"]
LLMClass: TypeAlias = Literal["interactive", "normal", "batch"]  # of agents and questions, the foremost first
ToolChoice: TypeAlias = Literal["auto", "none", "required"]
Scope: TypeAlias = Literal["global", "agent", "session"]  # of a key of the state
ToolName = Annotated[str, Rule(re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch, "1 to 64 letters, digits, _ and -")]
FEW_LINES = Rule(lambda lines: len(lines) <= MAX_BUDGET_LINES, f"at most {MAX_BUDGET_LINES} lines")


@frozen(kw_only=True)
class Limits:
    """Resource limits of an agent and all that it starts; ``None``: not set, so the kernel's default applies.

    ``memory``, ``file_size``, ``disk`` and ``tmp`` are bytes, on the wire also ``"256M"``. ``cpu_quota`` is a share of
    one CPU (0.5 is half of one), on the wire ``"50%"`` or microseconds per 100 ms. ``cpu_weight`` is 1 to 10,000, as in
    cgroup v2.
    """

    memory: Size | None = None
    max_pids: int | None = None
    cpu_quota: CpuShare | None = None
    cpu_weight: int | None = None
    open_files: int | None = None
    file_size: Size | None = None
    disk: Size | None = None
    inodes: int | None = None
    tmp: Size | None = None


@frozen(kw_only=True)
class Backoff:
    """The delay before a restart, in seconds: ``first``, then ``min`` times ``factor`` each time, up to ``max``.

    ``jitter`` is a fraction of the delay. After ``reset_after`` of healthy uptime (default twice ``max``) earlier
    failures are forgotten. After ``max_failures`` failures in a row there are no more attempts.
    """

    first: Seconds = Seconds(0.0)
    min: Seconds = Seconds(0.2)
    factor: float = 2.0
    max: Seconds = Seconds(30.0)
    jitter: float = 0.2
    reset_after: Seconds | None = None
    max_failures: int | None = None


@frozen(kw_only=True)
class Budget:
    """Maximum use in each window of ``per`` seconds; ``money`` is in the currency of ``[llm]``."""

    tokens: Amount | None = None
    calls: Amount | None = None
    money: Money | None = None
    per: Window

    def __attrs_post_init__(self) -> None:
        if self.tokens is None and self.calls is None and self.money is None:
            raise ValueError("expected at least one of tokens, calls and money")


@frozen(kw_only=True)
class Share:
    """The share of the model for an agent and all that it spawns; limited by that of its parent.

    ``class_=None``: that of its parent or supervisor, else normal.
    """

    weight: Weight = 1.0
    class_: LLMClass | None = None
    budget: Annotated[Sequence[Budget], FEW_LINES] = ()


@frozen
class Layer:
    """One layer of isolation: whether it was requested and is active, by which mechanism, the evidence, or why not.

    ``asked`` of a limit is its amount.
    """

    asked: object
    active: bool
    mechanism: str = ""
    evidence: str = ""
    reason: str = ""


@frozen
class HostIds:
    """An agent's uid and gid on the host. Never root's; if the kernel runs as root, not the kernel's either."""

    uid: int
    gid: int


@frozen(kw_only=True)
class ResourceUsage:
    """The resources used by an agent and all that it started and spawned; after its end, of its last life.

    ``memory`` and ``peak`` are bytes, ``pids`` processes and threads. ``source`` is where the figures come from.
    ``None``: not measured, and ``reason`` says why.
    """

    memory: int | None = None
    peak: int | None = None
    pids: int | None = None
    cpu_seconds: float | None = None
    source: str = ""
    reason: str = ""


@frozen
class End:
    """How a life of an agent ended: ``exit_code``, or the number of the ``signal``; ``reason`` is for people.

    Both numbers are ``None`` if the program never ran.
    """

    exit_code: int | None
    signal: int | None
    reason: str


@frozen
class Line:
    """One line of an agent's output.

    ``at`` is seconds since the epoch, ``stream`` is stdout, stderr or kernel.
    """

    at: float
    stream: str
    text: str


@frozen
class LogLine(Line):
    """A line from a log. ``name`` is its agent's, or ``kernel``; None: the request named one agent."""

    name: str | None = None


@frozen
class InLine:
    """Counts of an agent's questions to the model: waiting, and in flight at the provider.

    ``position`` is the place of the first one in the queue: 1 is next, ``None`` if none is queued. ``paused`` counts
    the waiting ones for a model that the provider has asked not to call for now.
    """

    waiting: int = 0
    in_flight: int = 0
    position: int | None = None
    paused: int = 0


@frozen
class Waits:
    """How long the last ``count`` questions waited in the queue until chosen; withdrawn ones don't count."""

    count: int
    p50_ms: float
    p95_ms: float


@frozen
class Tool:
    """A tool that the model may call; ``parameters`` is a JSON schema of an object.

    ``strict``: the vendor is to make the model's calls match it, if it can.
    """

    name: ToolName
    description: Text = Text("")
    parameters: Mapping[str, Any] = field(factory=dict)
    strict: bool = False


@frozen
class ToolCall:
    """A tool call requested by the model; ``signature``, if present, must be sent back with the call.

    ``arguments`` are the model's text where that is no JSON object: tell it, so that it can make the call again.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | Text
    signature: str | None = None


@frozen
class Fallback:
    """A model of an alias that a question was not answered by, and why."""

    model: str
    reason: str


@frozen
class Usage:
    """Tokens of the question, of the answer without thoughts, and of the thoughts.

    Of ``input``, the vendor has read ``cache_read`` from its prompt cache and written ``cache_creation`` to it; of
    these ``cache_creation_1h`` to stay for an hour.
    """

    input: int = 0
    output: int = 0
    thinking: int = 0
    cache_read: int = 0
    cache_creation: int = 0
    cache_creation_1h: int = 0

    @property
    def generated(self) -> int:
        return self.output + self.thinking

    @property
    def total(self) -> int:
        return self.input + self.generated

    def __add__(self, other: "Usage") -> "Usage":
        sums = (mine + others for mine, others in zip(astuple(self), astuple(other), strict=True))
        return Usage(*(min(each, MAX_TOKENS) for each in sums))

    def with_input(self, input: int) -> "Usage":
        """The same with another ``input``, of which no more was cached than there is."""
        read = min(self.cache_read, input)
        creation = min(self.cache_creation, input - read)
        return Usage(input, self.output, self.thinking, read, creation, min(self.cache_creation_1h, creation))


@frozen(kw_only=True)
class CalledTool:
    """A tool call requested by the model; long texts in ``arguments`` are cut."""

    name: str
    arguments: Mapping[str, Any] | Text


@frozen(kw_only=True)
class KeptMessage:
    """One turn of a conversation; ``images`` is their number."""

    role: Literal["user", "assistant", "tool", "system"]
    text: Text
    images: int = 0
    tool_calls: Sequence[CalledTool] = ()


@frozen(kw_only=True)
class KeptQuestion:
    """A question to the model and its answer, with secrets redacted and long texts cut.

    ``at`` is when it was asked, seconds since the epoch. ``digest`` is the one in the audit log's entry of the call.
    ``left_out`` is the number of older messages that were not kept. ``outcome`` is ``ok`` or an error code.
    ``queued_ms`` and ``latency_ms`` are as in the reply of THINK. ``first_token_ms`` is the time until the first piece
    of the answer arrived, ``None`` if none did. ``cost`` is in the currency of ``[llm]``, ``None`` without a
    price. ``answered_by`` is the model that the provider names.
    """

    id: int
    at: float
    agent_id: int
    name: str
    model: str
    digest: str
    system: Text | None
    messages: Sequence[KeptMessage]
    left_out: int
    tools: Sequence[str]
    answer: Text
    tool_calls: Sequence[CalledTool]
    answered_by: str | None
    finish_reason: str | None
    outcome: str
    error: Text | None
    usage: Usage
    cost: float | None
    attempts: int
    queued_ms: float
    first_token_ms: float | None
    latency_ms: float


@frozen(kw_only=True)
class CgroupMemory:
    """``events`` are counts by Linux's names: ``max`` the limit was reached, ``oom_kill`` a process was killed."""

    current_bytes: int | None
    peak_bytes: int | None
    limit_bytes: int | None
    events: Mapping[str, int] | None


@frozen(kw_only=True)
class CgroupCpu:
    """``limit`` is in cores. In ``throttled_periods`` of ``periods`` the limit was reached."""

    usage_seconds: float | None
    throttled_seconds: float | None
    throttled_periods: int | None
    periods: int | None
    limit: float | None
    weight: int | None


@frozen(kw_only=True)
class CgroupPids:
    """Processes and threads; ``refused`` counts forks that the limit refused."""

    current: int | None
    peak: int | None
    limit: int | None
    refused: int | None


@frozen(kw_only=True)
class CgroupIo:
    read_bytes: int | None
    written_bytes: int | None


@frozen(kw_only=True)
class CgroupPressure:
    """Shares of the last 10, 60 and 300 seconds, 0 to 1, in which at least one task, or all, waited for a resource."""

    some: Sequence[float]
    some_seconds: float
    full: Sequence[float] | None
    full_seconds: float | None


@frozen(kw_only=True)
class CgroupMetrics:
    """The counters and limits of one agent's control group, with those of the agents that it spawned in it.

    ``io`` and ``pressure``, by resource, are of version 2, where the host has them.
    """

    agent_id: int
    name: str
    version: int
    memory: CgroupMemory
    cpu: CgroupCpu
    pids: CgroupPids
    io: CgroupIo
    pressure: Mapping[str, CgroupPressure] | None
