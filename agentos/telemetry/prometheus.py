"""Metrics in Prometheus' text format and in OpenMetrics."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from agentos.services.metrics.figures import AgentFigures, KernelFigures
from agentos.services.quotas import MONEY_UNITS
from agentos_sdk.opcodes import op_name

from .snapshot import NamedCounts, Snapshot

OPENMETRICS = "application/openmetrics-text"

# Name without ``_total``, help, unit, whether it only grows, the value: None is left out.
Column = tuple[str, str, str, bool, Callable[[AgentFigures], float | None]]
OF_AGENTS: Sequence[Column] = (
    ("agentos_agent_running", "1 while the agent's program runs", "", False, lambda one: one.status == "running"),
    ("agentos_agent_starts", "Lives begun since the kernel started", "", True, lambda one: one.lives),
    ("agentos_agent_cpu_seconds", "CPU time of all lives", "seconds", True, lambda one: one.total_cpu_seconds),
    ("agentos_agent_memory_bytes", "Memory in use", "bytes", False, lambda one: one.memory_bytes),
    ("agentos_agent_memory_peak_bytes", "Peak of the present life", "bytes", False, lambda one: one.memory_peak_bytes),
    ("agentos_agent_memory_limit_bytes", "Memory limit", "bytes", False, lambda one: one.memory_limit_bytes),
    ("agentos_agent_processes", "Processes and threads", "", False, lambda one: one.pids),
    ("agentos_agent_processes_limit", "Limit of processes and threads", "", False, lambda one: one.pids_limit),
)
OF_KERNEL: Sequence[tuple[str, str, str, bool, Callable[[KernelFigures], float | None]]] = (
    (
        "agentos_kernel_loop_lag_seconds",
        "Longest wait for the event loop",
        "seconds",
        False,
        lambda k: k.loop_lag_seconds,
    ),
    ("agentos_kernel_cpu_seconds", "CPU time of the kernel", "seconds", True, lambda k: k.cpu_seconds),
    ("agentos_kernel_memory_bytes", "Resident memory of the kernel", "bytes", False, lambda k: k.memory_bytes),
    ("agentos_kernel_threads", "Threads of the kernel", "", False, lambda k: k.threads),
    ("agentos_kernel_fds", "Open file descriptors of the kernel", "", False, lambda k: k.fds),
    ("agentos_kernel_fds_limit", "Limit of file descriptors", "", False, lambda k: k.fds_limit),
    ("agentos_kernel_connections", "Connections to the kernel", "", False, lambda k: k.connections),
    ("agentos_kernel_connections_limit", "Limit of connections", "", False, lambda k: k.connections_limit),
)


def write_metrics(snapshot: Snapshot, openmetrics: bool) -> tuple[bytes, str]:
    """The text, and its content type."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    encode, content_type = choose_encoder(f"{OPENMETRICS}; version=1.0.0" if openmetrics else "text/plain")
    return encode(registry), content_type


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics before plain text. The library's own parser fails on odd versions."""
    kinds = [each.partition(";")[0].strip().lower() for each in accept.split(",")]
    return next((kind == OPENMETRICS for kind in kinds if kind in (OPENMETRICS, "text/plain")), False)


@define(eq=False)
class SnapshotCollector(Collector):
    """The metrics of one snapshot."""

    snapshot: Snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self.snapshot
        info = GaugeMetricFamily("agentos_build_info", "The kernel's version; always 1", labels=["version"])
        info.add_metric([snapshot.version], 1)
        yield info
        yield from collect_kernel(snapshot.kernel)
        yield from collect_agents(snapshot.agents, snapshot.failed)
        yield collect_calls(snapshot.counts)
        yield from collect_models(snapshot.counts)


def make_metric(
    name: str, text: str, unit: str, grows: bool, labels: Sequence[str]
) -> CounterMetricFamily | GaugeMetricFamily:
    return (CounterMetricFamily if grows else GaugeMetricFamily)(name, text, labels=labels, unit=unit)


def collect_kernel(kernel: KernelFigures) -> Iterator[Metric]:
    for name, text, unit, grows, value in OF_KERNEL:
        metric = make_metric(name, text, unit, grows, ())
        if (found := value(kernel)) is not None:
            metric.add_metric([], found)
        yield metric
    waiting = GaugeMetricFamily("agentos_kernel_queue_length", "What waits in the kernel, by queue", labels=["queue"])
    for queue, length in kernel.waiting.items():
        waiting.add_metric([queue], length)
    yield waiting


def collect_agents(agents: Sequence[AgentFigures], failed: int) -> Iterator[Metric]:
    text = "Agents that haven't ended for good or were given up (failed), by state"
    states = GaugeMetricFamily("agentos_agents", text, labels=["state"])
    for state, count in sorted({**Counter(one.status for one in agents), "failed": failed}.items()):
        states.add_metric([state], count)
    yield states
    for name, text, unit, grows, value in OF_AGENTS:
        metric = make_metric(name, text, unit, grows, ["agent"])
        for one in agents:
            if (found := value(one)) is not None:
                metric.add_metric([one.name], found)
        yield metric


def collect_calls(counts: Iterable[NamedCounts]) -> Metric:
    labels = ["agent", "call", "code"]
    metric = CounterMetricFamily("agentos_calls", "System calls by outcome: ok, or an error code", labels=labels)
    for one in counts:
        for (op, code), count in one.calls.all().items():
            metric.add_metric([one.name, op_name(op), code], count)
    return metric


def collect_models(counts: Iterable[NamedCounts]) -> Iterator[Metric]:
    labels = ["agent", "model"]
    calls = CounterMetricFamily("agentos_think_calls", "Calls of a model that used any tokens", labels=labels)
    tokens = CounterMetricFamily("agentos_think_tokens", "Tokens of models by type", labels=[*labels, "type"])
    cached = CounterMetricFamily(
        "agentos_think_cached_tokens",
        "Tokens of the input that vendors read from their prompt caches (read) or wrote to them (creation)",
        labels=[*labels, "type"],
    )
    cost = CounterMetricFamily("agentos_think_cost", "Cost by the models' prices, in [llm] currency", labels=labels)
    seconds = CounterMetricFamily(
        "agentos_think_seconds", "Time that the provider worked", labels=labels, unit="seconds"
    )
    waiting = CounterMetricFamily("agentos_think_waiting_seconds", "Time in the queue", labels=labels, unit="seconds")
    for one in counts:
        for model, use in one.models.items():
            calls.add_metric([one.name, model], use.calls)
            for kind, count in (("input", use.input), ("output", use.output), ("thinking", use.thinking)):
                tokens.add_metric([one.name, model, kind], count)
            for kind, count in (("read", use.cache_read), ("creation", use.cache_creation)):
                cached.add_metric([one.name, model, kind], count)
            cost.add_metric([one.name, model], use.cost / MONEY_UNITS)
            seconds.add_metric([one.name, model], use.seconds)
            waiting.add_metric([one.name, model], use.waiting_seconds)
    yield from (calls, tokens, cached, cost, seconds, waiting)
