"""METRICS_*: what they say of real agents, against the files of their control groups and /proc at the same moment."""

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import info, lines, up
from tests.system.jails import cgroups, crippled, group_of, need_cgroups

WORK = """
held = bytearray(b"x" * (64 << 20))
import threading, time
begun = time.process_time()  # a process has used some before it was in its group
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
file = open("/dev/null")
while time.process_time() - begun < {}:
    pass
print("worked", flush=True)
time.sleep(1000)
"""
SOMETIMES_BUSY = """
import time
while True:
    begun = time.process_time()
    while time.process_time() - begun < 0.02:
        pass
    time.sleep(0.1)
"""
MIB = 1 << 20
TICK = os.sysconf("SC_CLK_TCK")
CLOSE = 0.05


def work(client: AgentOSClient, name: str, seconds: float = 0.4, **more: Any) -> dict[str, Any]:
    """An agent that holds 64 MiB and has used CPU time, and now sleeps, as LIST has it."""
    up(client.spawn(name, command=["python3", "-c", WORK.format(seconds)], **more))
    until(lambda: "worked" in lines(client, name, "stdout"), f"{name} has worked")
    return info(client, name)


def metrics(client: AgentOSClient, number: int | None, history: float | None = None) -> dict[str, Any]:
    found: dict[str, Any] = up(client.agent_metrics(number, history))["metrics"]
    return found


def read_group(pid: int) -> dict[str, float]:
    """What the files of a process's control group say, of either version."""
    memory, cpu, pids = (group_of(pid, name) for name in ("memory", "cpu", "pids"))
    if (memory / "memory.current").exists():
        used = dict(line.split() for line in (cpu / "cpu.stat").read_text().splitlines())
        return {
            "memory": float((memory / "memory.current").read_text()),
            "peak": float((memory / "memory.peak").read_text()) if (memory / "memory.peak").exists() else 0.0,
            "cpu": int(used["usage_usec"]) / 1e6,
            "pids": float((pids / "pids.current").read_text()),
        }
    return {
        "memory": float((memory / "memory.usage_in_bytes").read_text()),
        "peak": float((memory / "memory.max_usage_in_bytes").read_text()),
        "cpu": int((group_of(pid, "cpuacct") / "cpuacct.usage").read_text()) / 1e9,
        "pids": float((pids / "pids.current").read_text()),
    }


def read_process(pid: int) -> dict[str, float]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    found: dict[str, float] = {
        "rss": int(status["VmRSS"].split()[0]) << 10,
        "vms": int(status["VmSize"].split()[0]) << 10,
        "threads": int(status["Threads"]),
        "cpu": (int(fields[11]) + int(fields[12])) / TICK,
    }
    with contextlib.suppress(PermissionError):  # only root may see those of the kernel
        found["fds"] = len(os.listdir(f"/proc/{pid}/fd"))
    return found


def read_pss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1].split()[0]) << 10


def test_the_figures_are_those_of_the_control_group_s_files_and_of_proc(kernel: Kernel, client: AgentOSClient) -> None:
    version = need_cgroups(kernel)
    agent = work(client, "worker", limits={"memory": "200M", "max_pids": 20})

    found, files, process = metrics(client, agent["id"]), read_group(agent["pid"]), read_process(agent["pid"])
    whole = up(client.cgroup_metrics(agent["id"]))["metrics"]

    assert (found["name"], found["status"], found["source"]) == ("worker", "running", f"cgroup v{version}")
    group, own = found["cgroup"], found["process"]
    assert group["memory_bytes"] == pytest.approx(files["memory"], rel=CLOSE)
    assert group["cpu_seconds"] == pytest.approx(files["cpu"], rel=CLOSE)
    assert (group["pids"], group["pids_limit"]) == (files["pids"] - 1, 20)  # without the sandbox's PID 1
    assert group["memory_limit_bytes"] == 200 * MIB
    assert group["cpu_seconds"] >= 0.4
    assert own["memory"]["rss"] == pytest.approx(process["rss"], rel=CLOSE)
    assert own["memory"]["pss"] == pytest.approx(read_pss(agent["pid"]), rel=CLOSE)
    assert own["memory"]["vms"] == pytest.approx(process["vms"], rel=CLOSE)
    assert own["cpu_seconds"] == pytest.approx(process["cpu"], rel=CLOSE)
    assert (own["threads"], own["fds"]) == (process["threads"], process["fds"]) == (2, 4)
    assert whole["version"] == version
    assert whole["memory"]["current_bytes"] == pytest.approx(files["memory"], rel=CLOSE)
    assert whole["memory"]["limit_bytes"] == 200 * MIB
    assert whole["cpu"]["usage_seconds"] == pytest.approx(files["cpu"], rel=CLOSE)
    assert (whole["pids"]["current"], whole["pids"]["limit"]) == (group["pids"], 20)
    if files["peak"]:
        assert group["memory_peak_bytes"] == pytest.approx(files["peak"], rel=CLOSE)
        assert whole["memory"]["peak_bytes"] == pytest.approx(files["peak"], rel=CLOSE)


def test_processes_are_counted_as_max_pids_does_whatever_the_sandbox_adds(
    kernel: Kernel, client: AgentOSClient
) -> None:
    need_cgroups(kernel)
    cases: list[tuple[Literal["standard", "none"], int]] = [("standard", 21), ("none", 20)]
    for isolation, allowed in cases:  # by Linux
        up(client.spawn(isolation, command=["sleep", "1000"], isolation=isolation, limits={"max_pids": 20}))
        agent = info(client, isolation)

        group = metrics(client, agent["id"])["cgroup"]
        whole = up(client.cgroup_metrics(agent["id"]))["metrics"]["pids"]

        assert int((group_of(agent["pid"], "pids") / "pids.max").read_text()) == allowed
        assert (group["pids"], group["pids_limit"], whole["current"], whole["limit"]) == (1, 20, 1, 20)
        assert up(client.inspect(isolation))["usage"]["pids"] == 1


def test_a_watched_agent_s_history_adds_up_to_the_cpu_time_that_was_used(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    up(client.spawn("busy", command=["python3", "-c", SOMETIMES_BUSY]))
    agent = info(client, "busy")

    first, *before = next_sample(client, agent)
    for _ in range(3):
        history, *after = next_sample(client, agent)

    at, cpu = history["at"], history["cpu"]
    assert at == sorted(at)
    seconds = sum(
        cores * (later - earlier)
        for cores, earlier, later in zip(cpu[1:], at, at[1:], strict=False)
        if earlier >= first["at"][-1]
    )
    assert after[0] - before[1] - 0.01 <= seconds <= after[1] - before[0] + 0.01
    assert all(cores >= 0 for cores in cpu)


def next_sample(client: AgentOSClient, agent: dict[str, Any]) -> tuple[dict[str, Any], float, float]:
    """The history with one more sample, and what the group's file said before and after that was taken."""
    before = read_group(agent["pid"])["cpu"]
    known = len(metrics(client, agent["id"], 900)["history"]["at"])
    deadline = time.monotonic() + PATIENCE
    while True:
        later = read_group(agent["pid"])["cpu"]
        history = metrics(client, agent["id"], 900)["history"]
        if len(history["at"]) > known:
            return history, before, read_group(agent["pid"])["cpu"]
        assert time.monotonic() < deadline, history
        before = later


@pytest.mark.usefixtures("kernels")
def test_without_a_control_group_proc_is_read_and_the_source_says_so() -> None:
    with crippled("--hide", "/sys/fs/cgroup") as kernel, kernel.client() as client:
        assert cgroups(kernel) is None
        agent = work(client, "worker")

        found = metrics(client, agent["id"], 60)
        until(lambda: metrics(client, agent["id"], 60)["history"]["at"], "it is sampled")
        history = metrics(client, agent["id"], 60)["history"]

        assert found["source"].startswith("/proc")
        assert found["cgroup"] is None
        assert 64 * MIB < found["process"]["memory"]["rss"] < 200 * MIB
        assert found["process"]["cpu_seconds"] >= 0.3
        assert history["memory_bytes"][-1] > 64 * MIB
        assert client.cgroup_metrics(agent["id"])["code"] == "not_found"


def test_an_ended_agent_keeps_its_total_and_what_is_unknown_is_null(client: AgentOSClient) -> None:
    up(client.spawn("short", command=["python3", "-c", "import time\nwhile time.process_time() < 0.2: pass"]))
    until(lambda: info(client, "short")["state"] == "exited", "it has ended")

    found = metrics(client, info(client, "short")["id"])

    assert found["total_cpu_seconds"] >= 0.15
    assert (found["process"], found["cgroup"], found["uptime_ms"]) == (None, None, 0)
    assert client.cgroup_metrics(found["agent_id"])["code"] == "not_found"


def test_an_agent_sees_itself_and_what_it_spawned(kernel: Kernel, client: AgentOSClient) -> None:
    boss, other = kernel.spawn("boss"), kernel.spawn("other")
    with kernel.connect_as(boss) as wire:
        child = up(wire.call(Op.SPAWN, {"name": "child", "command": ["sleep", "1000"]}))["id"]

        own = wire.call(Op.METRICS_AGENT, {})
        of_child = wire.call(Op.METRICS_AGENT, {"agent_id": child})
        refused = [wire.call(op, {"agent_id": other}) for op in (Op.METRICS_AGENT, Op.METRICS_CGROUP)]
        seen = wire.call(Op.METRICS_ALL_AGENTS, {})
        system = wire.call(Op.METRICS_SYSTEM, {})

    assert own["metrics"]["name"] == "boss"
    assert own["metrics"]["calls"]["SPAWN"] == {"ok": 1}
    assert of_child["metrics"]["name"] == "child"
    assert [reply["code"] for reply in (*refused, system)] == ["permission_denied"] * 3
    assert sorted(agent["name"] for agent in seen["agents"]) == ["boss", "child"]
    assert seen["count"] == 2
    assert {"boss", "child", "other"} <= {agent["name"] for agent in up(client.all_agent_metrics())["agents"]}
    assert client.agent_metrics()["code"] == "bad_request"


def test_the_kernel_s_own_figures_are_those_of_proc(kernel: Kernel, client: AgentOSClient) -> None:
    began = time.time()
    until(lambda: up(client.metrics())["metrics"]["kernel"]["at"] > began, "a sample of now")
    found = up(client.metrics(900))["metrics"]
    own, process = found["kernel"], read_process(kernel.pid)

    assert own["memory_bytes"] == pytest.approx(process["rss"], rel=CLOSE)
    assert own["fds"] == pytest.approx(process.get("fds", own["fds"]), abs=10)
    assert own["cpu_seconds"] == pytest.approx(process["cpu"], rel=0.1, abs=0.2)
    assert own["connections"] >= 1
    assert own["loop_lag_seconds"] is not None
    assert found["cpu"]["count"] == os.cpu_count()
    total = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) << 10
    assert found["memory"]["total_bytes"] == total
    assert len(found["history"]["at"]) == len(found["history"]["kernel_cpu"]) >= 1
