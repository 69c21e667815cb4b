"""Which isolation an agent gets: what was asked for, or a refusal with the reason; never less, never in silence."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row
from tests.system.agents import ask, relay, up
from tests.system.jails import cgroups, crippled, layers, need_cgroups

SLEEP = ["sleep", "1000"]
NEED_A_GROUP = {"cpu_quota": "50%", "cpu_weight": 50}
NEED_NONE = {
    "memory": "64M",
    "max_pids": 9,
    "open_files": 99,
    "file_size": "1M",
    "disk": "1M",
    "inodes": 99,
    "tmp": "1M",
}


@pytest.fixture(scope="module")
def ungrouped(kernels: None) -> Iterator[AgentOSClient]:
    """An operator of a kernel without control groups."""
    with crippled("--hide", "/sys/fs/cgroup") as kernel, kernel.client() as client:
        yield client


@each_row("fields", [{}, {"isolation": "standard"}, {"isolation": "best_effort"}], ids=str)
def test_standard_is_what_one_gets_and_best_effort_means_the_same(
    client: AgentOSClient, fields: dict[str, Any]
) -> None:
    reply = up(client.spawn("usual", command=SLEEP, **fields))
    client.kill("usual", grace=0)

    assert reply["isolation"]["level"] == "standard"


def test_strict_is_granted_where_every_layer_stands_and_refused_where_one_is_missing(
    kernel: Kernel, client: AgentOSClient
) -> None:
    usual = layers(client.spawn("usual", command=SLEEP))
    missing = [name for name, layer in usual.items() if layer["asked"] and not layer["active"]]

    reply = client.spawn("strict", command=SLEEP, isolation="strict")

    if missing:
        assert reply["code"] == "isolation_unavailable"
        assert all(f"{name}: " in reply["error"] for name in missing)
    else:
        assert up(reply)["isolation"]["level"] == "strict"
        assert all(layer["active"] for layer in layers(reply).values() if layer["asked"])


def test_strict_without_control_groups_is_refused_with_what_to_do(ungrouped: AgentOSClient) -> None:
    reply = ungrouped.spawn("strict", command=SLEEP, isolation="strict")

    assert (reply["success"], reply["code"]) == (False, "isolation_unavailable")
    assert "cpu: no cgroup delegated" in reply["error"]
    assert "agentos doctor" in reply["error"]
    up(ungrouped.spawn("strict", command=SLEEP))  # the name is free, and no limit that wasn't named refuses


@each_row("limit", NEED_A_GROUP)
def test_a_named_limit_that_nothing_enforces_refuses(ungrouped: AgentOSClient, limit: str) -> None:
    reply = ungrouped.spawn("refused", command=SLEEP, limits={limit: NEED_A_GROUP[limit]})

    assert reply["code"] == "isolation_unavailable"
    assert "cpu" in reply["error"]


def test_all_other_limits_hold_without_control_groups(ungrouped: AgentOSClient) -> None:
    up(ungrouped.spawn("limited", command=SLEEP, limits=NEED_NONE))


@pytest.mark.usefixtures("kernels")
def test_the_operator_can_waive_a_limit_but_not_a_layer_of_strict() -> None:
    toml = '[kernel]\nwaive = ["cpu_quota"]\n'
    with crippled("--hide", "/sys/fs/cgroup", toml=toml) as kernel, kernel.client() as client:
        reply = up(client.spawn("waived", command=SLEEP, limits={"cpu_quota": "50%"}))
        assert layers(reply)["cpu"]["active"] is False
        assert client.spawn("weighed", command=SLEEP, limits={"cpu_weight": 50})["code"] == "isolation_unavailable"
        assert client.spawn("strict", command=SLEEP, isolation="strict")["code"] == "isolation_unavailable"


@pytest.mark.parametrize(
    "options",
    [
        ["--refuse", "clone3=ENOSYS", "--refuse-namespaces"],
        ["--sysctl", "user.max_user_namespaces=0"],
    ],
    ids=["seccomp", "sysctl"],
)
@pytest.mark.usefixtures("kernels")
def test_without_user_namespaces_a_spawn_is_refused_with_the_knob_and_none_works(options: list[str]) -> None:
    with crippled(*options) as kernel, kernel.client() as client:
        kernel.wait_line("isolation none: .*no agent can start in a sandbox")
        for _ in range(2):
            reply = client.spawn("walled", command=SLEEP)
            assert (reply["success"], reply["code"]) == (False, "isolation_unavailable")
            assert "user.max_user_namespaces" in reply["error"] or "seccomp" in reply["error"], reply["error"]
        up(client.spawn("bare", command=SLEEP, isolation="none"))


@pytest.mark.usefixtures("kernels")
def test_without_landlock_standard_stands_and_says_so() -> None:
    with crippled("--refuse", "landlock_create_ruleset=ENOSYS") as kernel, kernel.client() as client:
        kernel.wait_line("isolation standard: .*no Landlock")
        layer = layers(client.spawn("walled", command=SLEEP))["landlock"]
        assert (layer["asked"], layer["active"]) == (True, False)
        assert layer["reason"]
        assert "landlock: " in client.spawn("strict", command=SLEEP, isolation="strict")["error"]


def test_strict_and_not_sandboxed_contradict_each_other(client: AgentOSClient) -> None:
    reply = client.spawn("torn", command=SLEEP, isolation="strict", sandboxed=False)

    assert reply["code"] == "bad_request"


def test_not_sandboxed_and_none_are_the_same(client: AgentOSClient) -> None:
    asked: list[dict[str, Any]] = [{"sandboxed": False}, {"isolation": "none"}]
    for number, fields in enumerate(asked):
        assert up(client.spawn(f"bare-{number}", command=SLEEP, **fields))["isolation"]["level"] == "none"


def test_a_limit_on_an_unjailed_agent_holds_where_a_control_group_can_hold_it(
    kernel: Kernel, client: AgentOSClient
) -> None:
    reply = client.spawn("bare", command=SLEEP, isolation="none", limits={"memory": "64M"})

    if cgroups(kernel) is not None:
        assert layers(reply)["memory"]["active"]
    else:
        assert (reply["success"], reply["code"]) == (False, "isolation_unavailable")
        assert "memory: " in reply["error"]


def test_a_child_of_a_strict_parent_is_strict(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    if os.geteuid() != 0:
        assert client.spawn("probe", command=SLEEP, isolation="strict")["success"]
    parent = relay(kernel, client, "parent", isolation="strict")

    reply = up(ask(client, parent, "spawn", name="child", command=SLEEP))

    assert reply["isolation"]["level"] == "strict"


def test_a_file_may_ask_for_strict_as_well(own_kernel: OwnKernel, kernel: Kernel) -> None:
    need_cgroups(kernel)
    kernel = own_kernel(
        '[[supervisor.children]]\nname = "tight"\ncommand = ["sleep", "1000"]\nisolation = "strict"\n'
        'limits = {memory = "64M"}\n'
    )
    with kernel.client() as client:
        [agent] = [agent for agent in client.list_agents() if agent["name"] == "tight"]
        assert agent["state"] == "running"
