"""Metrics as text, read back with the library's own parsers."""

from agentos.kernel.call_counts import CallCounts
from agentos.llm.models.counts import ModelUse
from agentos.services.metrics.figures import AgentFigures, KernelFigures
from agentos.telemetry.prometheus import wants_openmetrics, write_metrics
from agentos.telemetry.snapshot import NamedCounts, Snapshot
from agentos_sdk.errors import Busy
from agentos_sdk.opcodes import Op

HOSTILE = 'a"} 9\nagentos_calls_total{agent="b\\'


def make_snapshot(name: str) -> Snapshot:
    calls = CallCounts(former={(Op.NOOP, "ok"): 3})
    calls.ok[Op.NOOP] = 2
    calls.fail(Op.READ, Busy("full"))
    return Snapshot(
        version="1",
        kernel=KernelFigures(1.0, memory_bytes=5, waiting={"model": 4}),
        agents=[AgentFigures(1, name, "running", 2, 1.0, total_cpu_seconds=0.5, memory_bytes=1 << 20)],
        failed=3,
        counts=[NamedCounts(name, calls, {"m\n": ModelUse(1, 10, 4, 2, 3_000_000_000, 0.25, 1.5, 7, 8)})],
    )


def samples(name: str, openmetrics: bool) -> dict[tuple[str, ...], float]:
    return samples_of(make_snapshot(name), openmetrics)


def samples_of(snapshot: Snapshot, openmetrics: bool = True) -> dict[tuple[str, ...], float]:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
    from prometheus_client.parser import text_string_to_metric_families as parse_text

    data, _ = write_metrics(snapshot, openmetrics)
    families = (parse_openmetrics if openmetrics else parse_text)(data.decode())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_both_formats_say_the_same() -> None:
    assert samples("a", True) == samples("a", False)


def test_names_of_agents_and_models_end_no_label() -> None:
    for openmetrics in (True, False):
        found = samples(HOSTILE, openmetrics)

        assert {key: value for key, value in found.items() if key[0].startswith("agentos_calls")} == {
            ("agentos_calls_total", HOSTILE, "NOOP", "ok"): 5,
            ("agentos_calls_total", HOSTILE, "READ", "busy"): 1,
        }
        assert found["agentos_think_tokens_total", HOSTILE, "m\n", "thinking"] == 2
        assert found["agentos_think_cached_tokens_total", HOSTILE, "m\n", "read"] == 7
        assert found["agentos_think_cached_tokens_total", HOSTILE, "m\n", "creation"] == 8
        assert found["agentos_think_cost_total", HOSTILE, "m\n"] == 3
        assert found["agentos_think_waiting_seconds_total", HOSTILE, "m\n"] == 1.5


def test_each_figure_is_the_sample_of_its_name() -> None:
    kernel = KernelFigures(1.0, 0.5, 2.0, 3.0, 4, 5, 6, 7, 8, 9, {"model": 10, "audit": 11})
    worker = AgentFigures(1, "w", "running", 12, 1.0, "", "", 13.0, 14.0, 15.0, 16, 17, 18, 19, 20)
    failed = AgentFigures(2, "f", "failed", 21, 1.0)

    found = samples_of(Snapshot("22", kernel, [worker, failed], failed=23, counts=[]))

    of_worker = {
        "running": 1, "starts_total": 12, "cpu_seconds_total": 15, "memory_bytes": 16, "memory_peak_bytes": 17,
        "memory_limit_bytes": 18, "processes": 19, "processes_limit": 20,
    }  # fmt: skip
    of_kernel = {
        "loop_lag_seconds": 0.5, "cpu_seconds_total": 3, "memory_bytes": 4, "threads": 5, "fds": 6, "fds_limit": 7,
        "connections": 8, "connections_limit": 9,
    }  # fmt: skip
    expected: dict[tuple[str, ...], float] = {
        ("agentos_build_info", "22"): 1,
        ("agentos_agents", "running"): 1,
        ("agentos_agents", "failed"): 23,
        **{(f"agentos_kernel_{name}",): value for name, value in of_kernel.items()},
        ("agentos_kernel_queue_length", "model"): 10,
        ("agentos_kernel_queue_length", "audit"): 11,
        **{(f"agentos_agent_{name}", "w"): value for name, value in of_worker.items()},
        ("agentos_agent_running", "f"): 0,
        ("agentos_agent_starts_total", "f"): 21,
    }
    assert found == expected


def test_what_is_unknown_is_left_out() -> None:
    found = samples("a", True)

    assert ("agentos_agent_memory_peak_bytes", "a") not in found
    assert ("agentos_kernel_loop_lag_seconds",) not in found


def test_the_accept_header_selects_the_format() -> None:
    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"

    assert wants_openmetrics(prometheus)
    assert wants_openmetrics("Application/OpenMetrics-Text; version=x; escaping=\xff")
    assert not wants_openmetrics("text/plain, application/openmetrics-text")
    assert not wants_openmetrics("text/html,*/*")
    assert write_metrics(make_snapshot("a"), True)[0].endswith(b"# EOF\n")
    assert write_metrics(make_snapshot("a"), True)[1].startswith("application/openmetrics-text; version=1.0.0")
    assert write_metrics(make_snapshot("a"), False)[1].startswith("text/plain; version=0.0.4")
