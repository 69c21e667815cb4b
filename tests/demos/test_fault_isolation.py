"""The fault isolation demo: who misbehaves is dealt with, and its table says only what was so."""

import json
import re
import subprocess
import sys

import pytest

from tests.demos.conftest import ROOT, Run
from tests.support.guest import RunInGuest
from tests.support.wire import PATIENCE


@pytest.fixture(scope="module")
def has_groups() -> bool:
    """Whether this host lets us limit CPU time: as `agentos doctor` tries."""
    doctor = [sys.executable, "-m", "agentos", "doctor", "--json"]
    report = json.loads(subprocess.run(doctor, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE).stdout)
    return bool(report["layers"]["cpu"]["works"])


def rows(shown: str) -> dict[str, str]:
    """The table: what follows each agent's name, on one line."""
    table = shown.partition("Results\n")[2].partition("\n──")[0]
    found = re.findall(r"^   (\S+) +(.*(?:\n {10,}.*)*)", table, re.MULTILINE)
    return {agent: re.sub(r"\s+", " ", text) for agent, text in found}


def test_the_hogs_are_held_and_the_healthy_agent_goes_on_with_its_heartbeat_measured(
    run: Run, has_groups: bool
) -> None:
    shown = run("fault_isolation")

    assert [line for line in shown.splitlines() if len(line) > 100] == []
    table = rows(shown)
    assert list(table) == ["AGENT", "cpu-hog", "mem-hog", "crasher", "healthy"]
    if has_groups:
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
    ended = guest(sys.executable, "-m", "demos.fault_isolation", user=True)

    assert ended.code == 0, ended.out + ended.err
    table = rows(ended.out)
    assert table["cpu-hog"].startswith("THROTTLED 10 % of a CPU by cgroup v2 cpu.max; it got ")
    assert table["mem-hog"] == "KILLED memory limit 50M reached, by cgroup v2 memory.max"
