"""Jails built ahead: the next agent and a killed agent's successor get them, and a killed kernel leaves none."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from agentos.sandbox.cgroups.discover import V2Scope, discover_here
from agentos.sandbox.report.doctor import kernel_cgroup
from agentos_sdk import AgentOSClient
from tests.support import fork_server
from tests.support.kernel import Kernel, descendants, is_zygote, running, stat_of, until
from tests.system.agents import up, write
from tests.system.jails import cgroups, need_cgroups

# Any mount on the host makes a waiting jail stale, and other tests mount.
pytestmark = pytest.mark.usefixtures("both_cores")

WAITS = "import time\ntime.sleep(1000)\n"


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    """With control groups of version 2, if they are delegated to us."""
    fork_server.shared()  # a child of ours when the scope is divided: it stays in our part
    with kernel_cgroup() as group, running(group=group) as kernel:
        assert cgroups(kernel) == 2 or not isinstance(discover_here(), V2Scope)
        yield kernel


def waiting(kernel: Kernel) -> set[int]:
    """The pids of waiting jails' processes."""
    zygotes = [one.pid for one in descendants(kernel.pid) if is_zygote(one.pid)]
    found = set()
    for pid in zygotes:
        with suppress(FileNotFoundError, ProcessLookupError):
            if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid"):
                found.add(pid)
    return found


def pid_1(pid: int) -> int:
    """The parent of a program."""
    stat = stat_of(pid)
    assert stat is not None
    return stat[1]


def spawn(kernel: Kernel, name: str, **fields: Any) -> Mapping[str, Any]:
    with kernel.client() as client:
        return up(client.spawn(name, write(kernel, "waits.py", WAITS), runtime="fast", **fields))


def find_pid(client: AgentOSClient, name: str) -> int | None:
    return next((agent["pid"] for agent in client.list_agents() if agent["name"] == name), None)


def has_plan(pid: int) -> bool:
    """Whether it does the first steps of a plan, or has done them: with a low priority until it gets the rest."""
    with suppress(ProcessLookupError):
        return os.sched_getscheduler(pid) == os.SCHED_BATCH
    return False


def one_waits(kernel: Kernel) -> set[int]:
    """The pids of waiting jails' processes, once the kernel would give one away."""
    until(lambda: any(map(has_plan, waiting(kernel))), "a jail waits")
    return waiting(kernel)


def test_the_next_agent_gets_it_with_the_same_layers(kernel: Kernel) -> None:
    on_demand = spawn(kernel, "on-demand")
    ready = one_waits(kernel)

    ahead = spawn(kernel, "ahead")

    assert pid_1(on_demand["pid"]) not in ready
    assert pid_1(ahead["pid"]) in ready
    evidence = (str(reply["isolation"]["layers"]) for reply in (ahead, on_demand))
    scrubbed = [re.sub(r"\[\d+\]|16106\d+|/agentos[^ ']*", "", text) for text in evidence]
    assert "seccomp" in scrubbed[0]
    assert scrubbed[0] == scrubbed[1]


def test_the_successor_of_a_killed_agent_gets_it(kernel: Kernel) -> None:
    former = spawn(kernel, "agent", restart="permanent")
    ready = one_waits(kernel)

    os.kill(former["pid"], signal.SIGKILL)

    with kernel.client() as client:
        until(lambda: find_pid(client, "agent") not in (None, former["pid"]), "it was restarted")
        assert pid_1(find_pid(client, "agent") or 0) in ready


def test_a_memory_limit_that_the_jail_exceeds_itself_is_named(kernel: Kernel) -> None:
    """Control groups of version 2 count what the jail had before the program; Linux may kill it at any step."""
    version = need_cgroups(kernel)
    spawn(kernel, "first")
    script, limit = write(kernel, "small.py", WAITS), 2 << 20

    for number in range(3):
        one_waits(kernel)
        with kernel.client() as client:
            reply = client.spawn(f"small-{number}", script, runtime="fast", limits={"memory": limit})
        assert reply["success"] == (version == 1)
        if not reply["success"]:
            assert f"limits.memory: {limit} is too little to begin with" in reply["error"]
            assert reply["code"] == "bad_request"


def test_none_outlives_a_killed_kernel(kernel: Kernel) -> None:
    spawn(kernel, "last")
    ready = one_waits(kernel)

    kernel.kill()

    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ready), "no waiting jail is left")
