"""METRICS_SYSTEM, METRICS_AGENT, METRICS_ALL_AGENTS and METRICS_CGROUP. Unknown is ``None``, never 0.

Names end in their unit; ``cpu`` is in cores: 0.5 is half of one.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from agentos_sdk.calls.inspect import Budget, ModelState
from agentos_sdk.calls.request import Request, SuccessfulReply
from agentos_sdk.encoding.codec import Seconds
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op
from agentos_sdk.values import CgroupMetrics

History: TypeAlias = Mapping[str, Sequence[float | None]]
"""Samples column by column: ``at``, seconds since the epoch, and a value for each of them by name, the oldest first."""


@record
class HostCpu:
    """``used`` and ``count`` are cores; ``load`` is the length of the run queue, over 1, 5 and 15 minutes."""

    used: float | None
    count: int | None
    load: Sequence[float] | None


@record
class HostMemory:
    """``available_bytes`` can be had without swapping; what isn't available is used."""

    total_bytes: int | None
    used_bytes: int | None
    available_bytes: int | None
    swap_total_bytes: int | None
    swap_used_bytes: int | None


@record
class HostDisk:
    """The file system of the kernel's state directory."""

    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None


@record
class HostNetwork:
    """All interfaces but the loopback, since the host's start."""

    received_bytes: int | None
    sent_bytes: int | None


@record
class KernelMetrics:
    """The kernel's own process; ``at`` is when it was measured, in seconds since the epoch.

    ``loop_lag_seconds`` is the longest that a due task had to wait in the five seconds before. ``waiting`` are the
    lengths of queues by name, ``agents`` numbers of agents by state.
    """

    at: float
    up_ms: int
    cpu: float | None
    cpu_seconds: float | None
    memory_bytes: int | None
    threads: int | None
    fds: int | None
    fds_limit: int | None
    connections: int | None
    connections_limit: int | None
    loop_lag_seconds: float | None
    waiting: Mapping[str, int]
    agents: Mapping[str, int]


@record
class WaitingQuestion:
    """A question that waits for the model; its agent's name is that of its budget, such as ``parent/child``.

    ``state`` is ``ready``: it is sent as soon as there is a place, ``position`` 1 next; ``paused``: its model takes
    none at present; ``later``: it waits to be sent again, or for budget that others have reserved. ``class_`` is the
    question's: interactive, normal or batch. ``model`` is the one that it waits for, never an alias.
    """

    agent: str
    model: str
    position: int | None
    class_: str
    state: str
    since_ms: int
    tokens_guess: int


@record
class SentQuestion:
    """A question that the provider is answering, and the tokens that it has used so far."""

    agent: str
    model: str
    since_ms: int
    tokens: int


@record
class LineMetrics:
    """The queue for the model: questions waiting and in flight at the provider, and the budgets shared by all.

    ``jain`` is Jain's index over what the callers that waited throughout the last minute or two got, relative to
    their weights: 1 is entirely fair. ``providers`` are the kernel's own model, and those that can't be called now.
    """

    waiting: Sequence[WaitingQuestion]
    in_flight: Sequence[SentQuestion]
    jain: float
    budgets: Sequence[Budget]
    providers: Sequence[ModelState] = ()


@record
class SystemMetrics:
    """The host, the kernel and the queue for the model; ``history``, if asked for, has samples every five seconds."""

    cpu: HostCpu
    memory: HostMemory
    disk: HostDisk
    network: HostNetwork
    kernel: KernelMetrics
    llm: LineMetrics
    history: History | None = None


@record
class MetricsReply(SuccessfulReply):
    metrics: SystemMetrics


@record
class MetricsSystem(Request[MetricsReply]):
    """Get the metrics of the whole kernel; ``history`` also gets the samples of so many seconds, at most 900."""

    op = Op.METRICS_SYSTEM
    history: Seconds | None = None


@record
class ProcessMemory:
    """Bytes of memory. ``rss`` counts shared memory for each process; ``pss`` divides it among them."""

    rss: int | None
    pss: int | None
    vms: int | None


@record
class ProcessMetrics:
    """The agent's processes together, from /proc: without agents that it spawned, and commands of EXEC beside it.

    ``cpu`` is that since it was asked for before, or since its life began.
    """

    cpu: float | None
    cpu_seconds: float | None
    memory: ProcessMemory
    threads: int | None
    fds: int | None


@record
class CgroupUse:
    """What the agent's control group has counted: of the agent and all that it spawned, as of ``at``.

    ``cpu`` is that between the last two samples, or since the agent's life began.
    """

    at: float
    cpu: float | None
    cpu_seconds: float | None
    memory_bytes: int | None
    memory_peak_bytes: int | None
    memory_limit_bytes: int | None
    pids: int | None
    pids_limit: int | None


@record
class AgentModelUse:
    """Questions asked since the kernel started, with their tokens; and its present questions in the queue.

    ``cache_read`` and ``cache_creation`` are parts of ``input``.
    """

    calls: int
    input: int
    output: int
    thinking: int
    waiting: int
    in_flight: int
    position: int | None
    cache_read: int = 0
    cache_creation: int = 0


@record
class AgentMetrics:
    """What one agent uses. ``source`` is what counts: ``cgroup v1``, ``cgroup v2`` or ``/proc``.

    An empty ``source`` means that nothing does, and ``reason`` says why, or why a figure is unknown. ``process`` is
    ``None`` while it doesn't run, ``cgroup`` without a control group. ``total_cpu_seconds`` is of all its lives in
    this kernel. ``calls`` are its calls since the kernel started: by name, how often with ``ok`` or an error's code.
    """

    agent_id: int
    name: str
    status: str
    uptime_ms: int
    source: str
    reason: str
    total_cpu_seconds: float | None
    process: ProcessMetrics | None
    cgroup: CgroupUse | None
    calls: Mapping[str, Mapping[str, int]]
    llm: AgentModelUse
    history: History | None = None


@record
class AgentMetricsReply(SuccessfulReply):
    metrics: AgentMetrics


@record
class MetricsAgent(Request[AgentMetricsReply]):
    """Get the metrics of one agent, by default of the caller itself.

    ``history`` also gets the samples of so many seconds, at most 900: every second while its metrics are asked for at
    least every ten seconds, else every five.
    """

    op = Op.METRICS_AGENT
    agent_id: int | None = None
    history: Seconds | None = None


@record
class AllAgentsMetrics(SuccessfulReply):
    agents: Sequence[AgentMetrics]
    count: int


@record
class MetricsAllAgents(Request[AllAgentsMetrics]):
    """Get the metrics of all agents that haven't ended for good, and whose metrics the caller may see.

    PSS is not measured for them: it takes half a millisecond for each process.
    """

    op = Op.METRICS_ALL_AGENTS


@record
class CgroupMetricsReply(SuccessfulReply):
    metrics: CgroupMetrics


@record
class MetricsCgroup(Request[CgroupMetricsReply]):
    """Get all that the control group of one agent counts, by default of the caller itself."""

    op = Op.METRICS_CGROUP
    agent_id: int | None = None
