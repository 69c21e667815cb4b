"""INSPECT: what is known of an agent, by whom it may be asked for, and what LIST says of isolation and ends."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.userland.cli.agents.inspect import start_facts
from agentos_sdk import AgentOSClient, connect
from tests.support.kernel import Kernel, shared, until
from tests.support.wire import PATIENCE
from tests.system.agents import SLEEPER, act, in_state, info, known, up, write

SLEEP = ["sleep", "1000"]


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared('[http]\nupstream_proxy = "http://proxy.test:3128"\n') as started:
        yield started


def test_it_tells_what_an_agent_was_started_with_and_what_it_is(kernel: Kernel, client: AgentOSClient) -> None:
    script = kernel.place / "s.py"
    script.write_text("import time; time.sleep(1000)\n")
    env = {"TOKEN": "secret", "MODE": "x"}
    number = up(client.spawn("a", str(script), args=["-v"], env=env, restart="transient", shutdown=2))["id"]

    found = up(client.inspect("a"))

    assert (found["id"], found["name"], found["state"], found["pid"]) == (number, "a", "running", known(client, "a"))
    assert (found["lives"], found["restarts"], found["end"], found["parent"]) == (1, 0, None, None)
    assert found["supervisor"] == "root/spawned/a"
    assert abs(found["since"] - time.time()) < 60
    spec = found["spec"]
    assert (spec["script"], spec["args"], spec["cwd"]) == (str(script), ["-v"], "/workspace")
    assert (spec["restart"], spec["shutdown"], spec["workspace"]) == ("transient", 2.0, "tmp")
    assert spec["env"] == ["MODE", "TOKEN"]
    assert "secret" not in str(found)


def test_its_isolation_is_what_spawn_answered(client: AgentOSClient) -> None:
    spawned = up(client.spawn("a", command=SLEEP))

    assert up(client.inspect("a"))["isolation"] == spawned["isolation"]


def test_limits_are_the_effective_ones_and_the_named_are_known(client: AgentOSClient) -> None:
    up(client.spawn("a", command=SLEEP, limits={"max_pids": 20, "file_size": "1M"}))
    up(client.spawn("bare", command=SLEEP, isolation="none", limits={"open_files": 99}))

    found, bare = up(client.inspect("a")), up(client.inspect("bare"))

    assert found["named"] == ["file_size", "max_pids"]
    assert (found["limits"]["max_pids"], found["limits"]["file_size"]) == (20, 1 << 20)
    assert (found["limits"]["memory"], found["limits"]["cpu_quota"]) == (512 << 20, 100_000)
    assert {name: value for name, value in bare["limits"].items() if value is not None} == {"open_files": 99}


def test_usage_is_counted_or_it_says_why_not(client: AgentOSClient) -> None:
    code = "x = bytearray(b'x' * (64 << 20)); print(len(x), flush=True); import time; time.sleep(1000)"
    up(client.spawn("a", command=["python3", "-c", code]))
    until(lambda: client.logs("a")["lines"], "it has what it wants")

    usage = up(client.inspect("a"))["usage"]

    assert 64 << 20 <= usage["memory"] < 200 << 20
    assert usage["pids"] == 1  # without the sandbox's PID 1
    assert 0 < usage["cpu_seconds"] < 60
    if usage["source"].startswith("/proc, "):
        assert "no cgroup is delegated" in usage["reason"]
    else:
        assert usage["peak"] >= usage["memory"] or usage["peak"] is None
        assert usage["source"].startswith("cgroup v")


def test_the_operator_sees_its_user_and_its_control_groups_on_the_host(client: AgentOSClient) -> None:
    up(client.spawn("a", command=SLEEP))
    pid = known(client, "a")

    found = up(client.inspect("a"))

    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    uid = int(status["Uid"].split()[0])
    assert found["outer"] == ({"uid": uid, "gid": uid} if os.geteuid() == 0 else None)
    for directory in found["cgroups"] or []:
        places = (Path(directory), Path(directory, "self"))
        assert any(str(pid) in (place / "cgroup.procs").read_text().split() for place in places if place.is_dir())


def test_of_one_that_has_ended_the_end_and_the_last_evidence_stay(client: AgentOSClient) -> None:
    spawned = up(client.spawn("a", command=["sh", "-c", "sleep 1; exit 7"]))
    client.wait("a", timeout=PATIENCE)

    found = up(client.inspect("a"))

    assert (found["state"], found["pid"], found["since"], found["uptime_ms"]) == ("exited", None, None, 0)
    assert found["end"] == {"exit_code": 7, "signal": None, "reason": "exit status 7"}
    assert found["isolation"] == spawned["isolation"]
    usage = found["usage"]
    assert (usage["memory"], usage["pids"]) == (None, None)
    assert (usage["cpu_seconds"] is not None) or usage["reason"] == "no cgroup has counted"
    assert (found["outer"], found["cgroups"]) == (None, None)


async def test_on_trio_it_is_typed(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("a", command=SLEEP, limits={"file_size": "1M"}, shutdown="brutal_kill"))

    async with connect(kernel.socket) as operator:
        found = await operator.inspect("a")

    assert (found.limits.cpu_quota, found.limits.memory, found.named) == (1.0, 512 << 20, ("file_size",))
    assert (found.spec.shutdown, found.spec.command) == ("brutal_kill", tuple(SLEEP))
    assert found.isolation.layers["rlimits"].active


def test_family_is_shown_with_states(kernel: Kernel, client: AgentOSClient) -> None:
    boss = up(client.spawn("boss", command=SLEEP))["id"]
    child = up(act(kernel, boss, "spawn", name="child", command=SLEEP))["id"]
    up(act(kernel, boss, "spawn", name="over", command=SLEEP))
    client.kill("over", grace=0)

    assert up(client.inspect("boss"))["children"] == [{"id": child, "name": "child", "state": "running"}]
    assert up(client.inspect("child"))["parent"] == {"id": boss, "name": "boss", "state": "running"}


def test_an_agent_sees_itself_and_its_descendants_without_what_is_the_hosts(
    kernel: Kernel, client: AgentOSClient
) -> None:
    boss = up(client.spawn("boss", write(kernel, "sleeper.py", SLEEPER)))["id"]
    child = up(act(kernel, boss, "spawn", name="child", script="/agent/sleeper.py"))["id"]

    for who in (boss, child):
        found = up(act(kernel, boss, "inspect", agent_id=who))
        assert (found["outer"], found["cgroups"], found["spec"]["script"]) == (None, None, None)
        assert str(kernel.place) not in str(found)


def test_an_agent_cant_inspect_its_parent_or_a_sibling(kernel: Kernel, client: AgentOSClient) -> None:
    boss = up(client.spawn("boss", command=SLEEP))["id"]
    child = up(act(kernel, boss, "spawn", name="child", command=SLEEP))["id"]
    other = up(client.spawn("other", command=SLEEP))["id"]

    for forbidden in (boss, other):
        reply = act(kernel, child, "inspect", agent_id=forbidden)
        assert reply["code"] == "permission_denied"
        assert "it is neither you nor an agent that you spawned" in reply["error"]


def test_an_unknown_name_is_not_found_and_a_name_with_an_id_is_refused(client: AgentOSClient) -> None:
    assert client.inspect("nobody")["code"] == "not_found"
    assert client.inspect("a", agent_id=1)["code"] == "bad_request"
    assert client.inspect()["code"] == "bad_request"


def test_list_says_what_is_missing_and_how_it_ended(client: AgentOSClient) -> None:
    spawned = up(client.spawn("a", command=SLEEP))
    up(client.spawn("bare", command=SLEEP, isolation="none"))
    up(client.spawn("brief", command=["sh", "-c", "sleep 1; exit 3"]))
    client.wait("brief", timeout=PATIENCE)

    layers = spawned["isolation"]["layers"]
    missing = [name for name, layer in layers.items() if layer["asked"] and not layer["active"]]
    assert (info(client, "a")["isolation"], info(client, "a")["missing"]) == ("standard", missing)
    assert (info(client, "bare")["isolation"], info(client, "bare")["missing"]) == ("none", [])
    assert info(client, "a")["end"] is None
    assert in_state(client, "brief", "exited")["end"] == "exit status 3"


def test_a_memory_hog_is_listed_with_the_limit_that_it_reached(client: AgentOSClient) -> None:
    code = "import time; time.sleep(1); x = []\nwhile True: x.append(b'x' * (1 << 20)); time.sleep(0.002)"
    up(client.spawn("hog", command=["python3", "-c", code], limits={"memory": "48M"}))
    client.wait("hog", timeout=PATIENCE)

    assert "memory limit 48M reached" in info(client, "hog")["end"] or info(client, "hog")["end"] == "exit status 1"
    assert up(client.inspect("hog"))["end"]["reason"] == info(client, "hog")["end"]


def test_it_says_that_a_proxy_judges_addresses(client: AgentOSClient) -> None:
    up(client.spawn("a", command=SLEEP))

    found = up(client.inspect("a"))

    assert found["upstream_proxy"] == "proxy.test:3128"
    assert dict(start_facts(found))["proxy"] == "proxy.test:3128 resolves names, and judges their addresses"
