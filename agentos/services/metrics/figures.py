"""What agents, the kernel and the host use, as values. Unknown is None, never 0; ``cpu`` is in cores."""

from collections.abc import Mapping

from msgspec import Struct

from agentos_sdk.values import ResourceUsage


class MeasuredAgent(Struct, frozen=True):
    """An agent as the sampler needs it. ``since`` is when its present life began, on Trio's clock.

    ``limits`` are those in force by resource: ``memory`` and ``disk`` in bytes, ``pids`` processes and threads.
    ``used`` is what its last life used, once that has ended.
    """

    agent_id: int
    name: str
    status: str
    lives: int
    since: float
    runs: bool
    limits: Mapping[str, int] = {}
    used: ResourceUsage | None = None


class Reading(Struct, frozen=True):
    """What a running agent used at a moment, in seconds since the epoch."""

    at: float
    usage: ResourceUsage


class AgentFigures(Struct, frozen=True):
    """An agent at its last sample, ``at`` in seconds since the epoch.

    ``source`` says what counted: ``cgroup v1``, ``cgroup v2`` or /proc; empty: nothing did, and ``reason`` says why.
    ``cpu`` is that since the sample before, or since its life began. ``cpu_seconds`` and the peak are of its present
    or last life, ``total_cpu_seconds`` is that of all its lives in this kernel.
    """

    agent_id: int
    name: str
    status: str
    lives: int
    at: float
    source: str = ""
    reason: str = ""
    cpu: float | None = None
    cpu_seconds: float | None = None
    total_cpu_seconds: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    pids: int | None = None
    pids_limit: int | None = None


class KernelFigures(Struct, frozen=True):
    """The kernel's own process at its last sample, ``at`` in seconds since the epoch.

    ``loop_lag_seconds`` is the longest that a due task had to wait for the event loop since the sample before.
    ``waiting`` are the lengths of queues by name.
    """

    at: float
    loop_lag_seconds: float | None = None
    cpu: float | None = None
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    threads: int | None = None
    fds: int | None = None
    fds_limit: int | None = None
    connections: int | None = None
    connections_limit: int | None = None
    waiting: Mapping[str, int] = {}


class HostFigures(Struct, frozen=True):
    """The host at the kernel's last sample. The disk is the file system of the kernel's state directory.

    The network is all interfaces but the loopback, since the host's start.
    """

    cpu: float | None = None
    cpu_seconds: float | None = None
    cpu_count: int | None = None
    load: tuple[float, float, float] | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None
