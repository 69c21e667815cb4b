"""Values of the wire that the kernel's own rooms use as well: one class per idea, without any request or reply."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from agentos_sdk.quantities import CpuShare, Size

MAX_TOKENS = 10**9  # largest count of tokens; a provider that names more is not believed


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


@frozen
class Line:
    """One line of an agent's output.

    ``at`` is seconds since the epoch, ``stream`` is stdout, stderr or kernel.
    """

    at: float
    stream: str
    text: str


@frozen
class ToolCall:
    """A tool call requested by the model; ``signature``, if present, must be sent back with the call."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    signature: str | None = None


@frozen
class Usage:
    """Tokens of the question, of the answer without thoughts, and of the thoughts."""

    input: int = 0
    output: int = 0
    thinking: int = 0

    @property
    def generated(self) -> int:
        return self.output + self.thinking

    @property
    def total(self) -> int:
        return self.input + self.generated

    def __add__(self, other: "Usage") -> "Usage":
        sums = (self.input + other.input, self.output + other.output, self.thinking + other.thinking)
        return Usage(*(min(each, MAX_TOKENS) for each in sums))
