"""The fault isolation demo: who misbehaves is dealt with, and its table says only what was so."""

import re
import sys

from tests.demos.conftest import Run
from tests.support.guest import RunInGuest

# Where no more is needed than the kernel of a demo, and one agent of it.
LIMITED = """
from agentos_sdk import AgentOSClient
from demos import stage

with stage.kernel() as running, AgentOSClient(running.socket) as client:
    limits = {"memory": "50M", "cpu_quota": "10%"}
    layers = client.spawn("one", command=["sleep", "1000"], limits=limits)["isolation"]["layers"]
    print(layers["memory"]["mechanism"], layers["cpu"]["mechanism"], sep=", ")
"""


def rows(shown: str) -> dict[str, str]:
    """The table: what follows each agent's name, on one line."""
    table = shown.partition("Results\n")[2].partition("\n──")[0]
    found = re.findall(r"^   (\S+) +(.*(?:\n {10,}.*)*)", table, re.MULTILINE)
    return {agent: re.sub(r"\s+", " ", text) for agent, text in found}


def test_the_hogs_are_held_and_the_healthy_agent_goes_on_with_its_heartbeat_measured(
    run: Run,
) -> None:
    shown = run("fault_isolation")

    assert [line for line in shown.splitlines() if len(line) > 100] == []
    table = rows(shown)
    assert list(table) == ["AGENT", "cpu-hog", "mem-hog", "crasher", "healthy"]
    if "isolation, layer cpu: active" in shown:
        assert re.match(r"THROTTLED 10 % of a CPU by cgroup v[12] \S+; it got [\d.]+ %: throttled \d", table["cpu-hog"])
    else:
        assert table["cpu-hog"].startswith("RUNNING not limited: no cgroup delegated; it got ")
    assert table["mem-hog"].startswith("KILLED memory limit 50M reached")
    assert re.match(r"RESTARTED \d+ times, after SIGSEGV each", table["crasher"])
    pid = re.search(r"'name': 'healthy', 'pid': (\d+)", shown)
    assert pid is not None
    assert table["healthy"] == f"RUNNING nothing: process {pid[1]} as at first, 0 restarts"

    for phase in ("before", "with the hogs"):
        found = re.search(rf"   {phase} +(\d+) +([\d.]+) ms +([\d.]+) ms +([\d.]+) ms", shown)
        assert found is not None
        beats, *late = (float(number) for number in found.groups())
        assert beats >= 100
        assert late == sorted(late)


def test_under_version_2_the_kernel_is_in_a_group_of_its_own_and_so_can_limit(guest: RunInGuest) -> None:
    ended = guest(sys.executable, "-c", LIMITED, user=True)

    assert ended.code == 0, ended.out + ended.err
    assert ended.out == "cgroup v2 memory.max, cgroup v2 cpu.max\n"
