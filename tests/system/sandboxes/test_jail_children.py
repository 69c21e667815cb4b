"""What an agent may give to the agents that it spawns: never more than it has, and nothing of the host's."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import RELAY, SLEEPER, act, ask, in_state, info, lines, relay, up, write
from tests.system.jails import group_of, layers, need_cgroups

SLEEP = ["sleep", "1000"]
HOG = "held = []\nwhile True: held.append(bytearray(1 << 20))\n"


@pytest.fixture(scope="module")
def boss(kernel: Kernel) -> Iterator[tuple[AgentOSClient, int]]:
    """An operator, and a jailed agent that asks what it is told to; at the end it must live on, without children."""
    with kernel.client() as client:
        agent = relay(kernel, client, "the-boss")
        yield client, agent
        assert (info(client, "the-boss")["id"], info(client, "the-boss")["state"]) == (agent, "running")
        assert not [one for one in client.list_agents(all=True) if one["parent"] == agent]


@pytest.mark.parametrize(
    "fields",
    [
        {"sandboxed": False},
        {"isolation": "none"},
        {"network": True},
        {"network": "host"},
        {"network": "filtered"},
        {"script": "/etc/passwd"},
        {"script": "/workspace/../../etc/passwd"},
        {"script": "../etc/passwd"},
        {"code": "/etc"},
        {"code": "../../etc"},
        {"code": "/"},
        {"workspace": "/tmp"},
        {"workspace": "/workspace"},
        {"workspace": "/"},
        {"python": "/usr/bin/python3.99"},
        {"python": "/workspace/python"},
        {"runtime": "fast"},
        {"terminals": True},
    ],
    ids=str,
)
def test_a_jailed_agent_is_refused_what_it_has_not_got(boss: tuple[AgentOSClient, int], fields: dict[str, Any]) -> None:
    client, agent = boss
    program: dict[str, Any] = {} if "script" in fields else {"command": SLEEP}
    if "python" in fields or "runtime" in fields:
        program = {"script": "/agent/relay.py"}

    reply = ask(client, agent, "spawn", **{"name": "greedy", **program, **fields})

    assert (reply["success"], reply["code"]) == (False, "permission_denied"), reply
    assert next(iter(fields)) in ("sandboxed", reply["error"].partition(":")[0])


def test_a_working_directory_of_the_hosts_is_refused(boss: tuple[AgentOSClient, int]) -> None:
    client, agent = boss
    for cwd in ("/etc", "/workspace/../etc", "../.."):
        reply = ask(client, agent, "spawn", name="greedy", command=SLEEP, cwd=cwd)
        assert (reply["success"], reply["error"].partition(":")[0]) == (False, "cwd"), reply


def test_a_command_is_the_jails_and_not_the_hosts(boss: tuple[AgentOSClient, int], kernel: Kernel) -> None:
    client, agent = boss
    secret = kernel.place / "program"
    secret.write_text("#!/bin/sh\nexec sleep 1000\n")
    secret.chmod(0o755)

    reply = ask(client, agent, "spawn", name="greedy", command=[str(secret)])

    assert (reply["success"], reply["error"].partition(":")[0]) == (False, "command"), reply


def test_a_child_may_run_its_parents_script_and_what_its_parent_wrote(kernel: Kernel, client: AgentOSClient) -> None:
    code = """
    from pathlib import Path
    from agentos_sdk import AgentOSClient
    Path("/workspace/made.py").write_text("print('made here', flush=True)\\nimport time; time.sleep(1000)")
    Path("/workspace/link.py").symlink_to("/etc/passwd")
    with AgentOSClient() as me:
        for script in ("made.py", "link.py", "none.py", "/workspace"):
            reply = me.spawn("child-" + str(abs(hash(script))), script, ready=None)
            print(script, reply["success"], reply.get("code"), flush=True)
    import time
    time.sleep(1000)
    """

    up(client.spawn("author", write(kernel, "author.py", code)))

    until(lambda: len(lines(client, "author", "stdout")) == 4, "it has tried all")
    assert lines(client, "author", "stdout") == [
        "made.py True None",
        "link.py False bad_request",
        "none.py False not_found",
        "/workspace False permission_denied",
    ]


def test_a_childs_limits_are_cut_to_its_parents(kernel: Kernel, client: AgentOSClient) -> None:
    bounds = {"memory": "64M", "max_pids": 10, "open_files": 100, "disk": "4M", "inodes": 50, "file_size": "2M"}
    parent = up(client.spawn("bounded", command=SLEEP, limits=bounds))["id"]

    wanted = {"memory": "8G", "max_pids": 1000, "open_files": 5000, "disk": "1G", "file_size": "1G"}
    reply = act(kernel, parent, "spawn", name="greedy", command=SLEEP, limits=wanted)

    found = layers(reply)
    assert [found[name]["asked"] for name in ("memory", "pids", "disk")] == [64 << 20, 10, 4 << 20]
    assert "NOFILE=100 " in found["rlimits"]["evidence"]
    assert f"FSIZE={2 << 20} " in found["rlimits"]["evidence"]
    assert "nr_inodes=50" in found["disk"]["mechanism"]


def test_a_childs_control_group_lies_in_its_parents(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    parent = up(client.spawn("above", command=SLEEP))["id"]
    reply = up(act(kernel, parent, "spawn", name="below", command=SLEEP))

    for controller in ("memory", "pids", "cpu"):
        inner, outer = group_of(reply["pid"], controller), group_of(info(client, "above")["pid"], controller)
        assert outer in inner.parents


def test_a_childs_memory_counts_as_its_parents(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    parent = up(client.spawn("mother", command=SLEEP, limits={"memory": "64M"}))["id"]
    reply = act(kernel, parent, "spawn", name="hog", command=["python3", "-c", HOG], limits={"memory": "512M"})
    if reply["success"]:
        client.wait("hog", timeout=PATIENCE)

    until(lambda: info(client, "hog")["state"] in ("exited", "failed"), "the hog has ended")
    reason = client.wait("hog", timeout=1)["reason"] if reply["success"] else reply["error"]
    assert "memory" in reason, reason


def test_a_parents_processes_bound_those_of_its_children(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    parent = up(client.spawn("small", command=SLEEP, limits={"max_pids": 8}))["id"]
    replies = [act(kernel, parent, "spawn", name=f"leaf-{number}", command=SLEEP) for number in range(8)]

    refused = [reply for reply in replies if not reply["success"]]
    assert 1 <= len([reply for reply in replies if reply["success"]]) < 8
    assert refused
    assert int((group_of(info(client, "small")["pid"], "pids") / "pids.current").read_text()) <= 9
    assert info(client, "small")["state"] == "running"


def test_children_end_with_their_parent_and_leave_no_control_group(kernel: Kernel, client: AgentOSClient) -> None:
    parent = up(client.spawn("mortal", command=SLEEP))["id"]
    child = up(act(kernel, parent, "spawn", name="orphan", command=SLEEP))
    groups: list[Path] = []
    with contextlib.suppress(AssertionError, StopIteration):
        groups = [group_of(child["pid"], name) for name in ("memory", "pids", "cpu")]

    os.kill(info(client, "mortal")["pid"], 9)

    in_state(client, "orphan", "exited")
    in_state(client, "mortal", "exited")
    until(lambda: not any(group.exists() for group in groups if "agentos" in str(group)), "its groups are removed")


def test_a_child_of_an_unjailed_agent_is_jailed(kernel: Kernel, client: AgentOSClient) -> None:
    parent = up(client.spawn("bare", command=SLEEP, isolation="none"))["id"]

    child = up(act(kernel, parent, "spawn", name="walled", script=write(kernel, "s.py", SLEEPER)))
    refused = act(kernel, parent, "spawn", name="bare-too", command=SLEEP, isolation="none")

    assert child["isolation"]["level"] == "standard"
    assert refused["code"] == "permission_denied"


def test_how_others_ended_is_not_a_jailed_agents_to_know(kernel: Kernel, client: AgentOSClient) -> None:
    """It may name the host's paths."""
    parent = up(client.spawn("curious", command=SLEEP))["id"]
    client.spawn("other", command=["true"], workspace=str(kernel.place / "secret"))
    client.spawn("stranger", command=["false"])
    act(kernel, parent, "spawn", name="kid", command=["false"])
    assert client.wait("stranger", timeout=PATIENCE)["success"]
    assert client.wait("kid", timeout=PATIENCE)["success"]

    heard = {agent["name"]: agent["end"] for agent in act(kernel, parent, "list_agents", all=True)}

    assert (heard["stranger"], heard["kid"]) == (None, "exit status 1")
    assert str(kernel.place) not in str(heard)
    assert info(client, "stranger")["end"] == "exit status 1"


def test_what_is_wrong_with_a_child_is_told_in_its_parents_own_paths(kernel: Kernel, client: AgentOSClient) -> None:
    code = kernel.place / "code"
    (code / "sub").mkdir(parents=True)
    (code / "relay.py").write_text(Path(write(kernel, "relay.py", RELAY)).read_text())
    (code / "other.py").touch()
    started = client.spawn("boss", str(code / "relay.py"), code=str(code), ready="hello")

    refused = ask(client, up(started)["id"], "spawn", name="kid", script="/agent/other.py", code="/agent/sub")

    assert not refused["success"]
    assert str(kernel.place) not in str(refused)
    assert "expected a file in code (/agent/sub), " in refused["error"]
    assert "got '/agent/other.py'" in refused["error"]
