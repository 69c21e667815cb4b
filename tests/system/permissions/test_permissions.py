"""GET_PERMS, SET_PERMS and EXPLAIN, and SPAWN with permissions."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.errors import PermissionDenied
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel
from tests.support.wire import PATIENCE
from tests.system.agents import act, as_agent, up

SLEEP = ["sleep", "1000"]

Told = Mapping[str, Any]


def test_an_agent_sees_what_it_may_and_what_bounds_it(client: AgentOSClient) -> None:
    number = up(client.spawn("a", command=SLEEP))["id"]

    assert up(client.get_permissions(number))["permissions"] == {
        "level": "sandboxed",
        "bounded_by": [],  # the operator spawned it, and he holds all there is
    }
    assert up(client.get_permissions())["permissions"] == {"level": "unrestricted", "bounded_by": []}


def test_without_a_jail_the_default_is_standard(client: AgentOSClient) -> None:
    number = up(client.spawn("a", command=SLEEP, isolation="none"))["id"]

    assert up(client.get_permissions(number))["permissions"]["level"] == "standard"


def test_set_perms_holds_from_the_next_call_on_also_for_those_below(kernel: Kernel, client: AgentOSClient) -> None:
    parent = up(client.spawn("parent", command=SLEEP))["id"]
    child = up(act(kernel, parent, "spawn", name="child", command=SLEEP))["id"]
    up(act(kernel, child, "tree"))

    mine = {"level": "readonly", "deny": {"calls": ["TREE"]}}
    assert up(client.set_permissions(mine, agent_id=parent))["agent_id"] == parent

    for number in (parent, child):
        refused = act(kernel, number, "tree")
        assert (refused["code"], refused["rule"]) == (
            "permission_denied",
            f"deny calls TREE ({refused['rule'].partition('(')[2]}",
        )
    assert up(client.get_permissions(child))["permissions"]["bounded_by"][0]["deny"] == {"calls": ["TREE"]}


def test_an_agent_does_not_set_what_others_may(kernel: Kernel, client: AgentOSClient) -> None:
    one = up(client.spawn("one", command=SLEEP))["id"]
    other = up(client.spawn("other-one", command=SLEEP))["id"]

    refused = act(kernel, one, "set_permissions", level="minimal", agent_id=other)

    assert (refused["code"], refused["rule"]) == ("permission_denied", "only an ancestor sets rights")


@pytest.mark.parametrize(
    "wider",
    [
        {"level": "standard"},
        {"level": "unrestricted"},
        {"permissions": {"level": "unrestricted", "deny": {"calls": ["THINK"]}}},
        {"permissions": {"level": "sandboxed", "allow": {"read": ["/etc/**"]}}},
        {"permissions": {"allow": {"domains": ["example.com"]}}},
    ],
    ids=str,
)
def test_an_agent_does_not_widen_what_it_may_itself(
    kernel: Kernel, client: AgentOSClient, wider: dict[str, Any]
) -> None:
    number = up(client.spawn("low", command=SLEEP))["id"]

    with as_agent(kernel, number) as agent:
        refused = agent.set_permissions(**wider)

        assert (refused["code"], refused["rule"]) == ("permission_denied", "a caller can't grant what it doesn't hold")
        assert up(agent.get_permissions())["permissions"] == {"level": "sandboxed", "bounded_by": []}


def test_an_agent_narrows_what_it_may_itself_until_its_spawner_sets_it_anew(
    kernel: Kernel, client: AgentOSClient
) -> None:
    number = up(client.spawn("modest", command=SLEEP))["id"]

    with as_agent(kernel, number) as agent:
        assert up(agent.set_permissions({"level": "sandboxed"}))["agent_id"] == number  # it has that already
        assert up(agent.set_permissions(level="sandboxed", agent_id=number))["agent_id"] == number
        up(agent.set_permissions({"level": "sandboxed", "deny": {"calls": ["THINK"]}}))
        up(agent.set_permissions(level="sandboxed"))  # not equal, and no more than it has: the denial stays

        assert agent.think("?")["code"] == "permission_denied"
        assert agent.exec("true")["exit_code"] == 0
        up(agent.set_permissions(level="readonly"))
        assert agent.exec("true")["code"] == "permission_denied"
        up(client.set_permissions(level="sandboxed", agent_id=number))
        assert agent.exec("true")["exit_code"] == 0
        assert up(agent.get_permissions())["permissions"]["bounded_by"] == []


def test_an_agent_that_narrows_itself_again_and_again_is_told_to_stop(kernel: Kernel, client: AgentOSClient) -> None:
    number = up(client.spawn("eager", command=SLEEP))["id"]

    with as_agent(kernel, number) as agent:
        sets = [{"level": "sandboxed", "deny": {"commands": [f"no-{each} *"]}} for each in range(12)]
        codes = [agent.set_permissions(one).get("code", "ok") for one in sets]
        again = [agent.set_permissions(sets[7])["success"] for _ in range(100)]

        assert codes == ["ok"] * 8 + ["quota_exceeded"] * 4
        assert all(again)
        assert len(up(agent.get_permissions())["permissions"]["bounded_by"]) == 8
    log = up(client.get_audit_log(agent_id=number, category="permissions", limit=1000))["entries"]
    assert len([entry for entry in log if entry["phase"] == "intent"]) == 8  # what changes nothing isn't announced


def test_an_agents_budget_is_not_renewed_by_a_set_without_one(kernel: Kernel, client: AgentOSClient) -> None:
    quotas = [{"calls": 3, "per": "1d"}]
    number = up(client.spawn("thrifty", command=SLEEP, permissions={"level": "sandboxed", "quotas": quotas}))["id"]

    with as_agent(kernel, number) as agent:
        up(agent.set_permissions(level="sandboxed"))
    [budget] = up(client.inspect("thrifty"))["llm"]["budgets"]

    assert (budget["what"], budget["most"]) == ("calls", 3)


def test_an_operator_that_narrows_itself_is_a_guest(kernel: Kernel) -> None:
    with kernel.client() as operator:
        assert up(operator.set_permissions(level="unrestricted"))
        assert operator.hello()["name"].startswith("operator#")

        up(operator.set_permissions(level="readonly"))

        assert operator.hello()["name"].startswith("guest#")
        assert operator.exec("true")["code"] == "permission_denied"
        assert operator.set_permissions(level="unrestricted")["code"] == "permission_denied"


def test_an_ancestor_gives_no_more_than_it_has(kernel: Kernel, client: AgentOSClient) -> None:
    parent = up(client.spawn("parent", command=SLEEP))["id"]
    child = up(act(kernel, parent, "spawn", name="child", command=SLEEP))["id"]

    refused = act(kernel, parent, "set_permissions", level="unrestricted", agent_id=child)
    assert (refused["code"], refused["error"]) == (
        "permission_denied",
        "level: you can't grant unrestricted, you hold no more than sandboxed yourself",
    )
    up(act(kernel, parent, "set_permissions", permissions={"allow": {"read": ["/**"], "send": ["*"]}}, agent_id=child))
    told = up(client.explain("child", "READ", {"path": "/etc/hostname"}))
    assert (told["decision"], told["rule"]) == ("deny", "no rule (level sandboxed)")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "permissions: expected exactly one of level and permissions"),
        ({"level": "minimal", "permissions": {}}, "permissions: expected exactly one of level and permissions"),
        ({"level": "minmal"}, "level: no level or permission set is called 'minmal', did you mean minimal?"),
        ({"permissions": {"levl": "x"}}, "permissions.levl: unknown field, did you mean level?"),
        (
            {"permissions": {"allow": {"read": ["/a/**", "/a/b"]}}},
            "permissions.allow.read[1]: '/a/b' has no effect: allow.read[0] '/a/**' allows all of it already",
        ),
    ],
)
def test_set_perms_refuses_what_is_no_set(client: AgentOSClient, fields: dict[str, Any], said: str) -> None:
    number = up(client.spawn("a", command=SLEEP))["id"]

    refused = client.request(Op.SET_PERMS, {"agent_id": number, **fields})

    assert (refused["code"], refused["error"]) == ("bad_request", said)


def test_an_unknown_agent_has_no_permissions(client: AgentOSClient) -> None:
    assert client.get_permissions(9999)["code"] == "not_found"
    assert client.set_permissions(level="minimal", agent_id=9999)["code"] == "not_found"
    assert client.explain("nobody", "LIST")["code"] == "not_found"


def test_spawn_takes_a_level_or_a_set(client: AgentOSClient) -> None:
    up(client.spawn("low", command=SLEEP, permissions="minimal"))
    up(client.spawn("own", command=SLEEP, permissions={"level": "readonly", "allow": {"models": ["gemini-*"]}}))

    assert client.explain("low", "LIST")["decision"] == "deny"
    assert client.explain("own", "THINK", {"prompt": "?", "model": "gemini-2"})["decision"] == "allow"
    assert client.explain("own", "THINK", {"prompt": "?", "model": "llama"})["decision"] == "deny"
    refused = client.spawn("bad", command=SLEEP, permissions="lots")
    assert refused["error"] == "permissions: no level or permission set is called 'lots'"


def test_a_child_has_no_more_than_its_parent_whatever_spawn_says(kernel: Kernel, client: AgentOSClient) -> None:
    parent = up(client.spawn("parent", command=SLEEP))["id"]

    refused = act(kernel, parent, "spawn", name="more", command=SLEEP, permissions="unrestricted")
    assert (refused["code"], refused["error"]) == (
        "permission_denied",
        "permissions: you can't grant unrestricted, you hold no more than sandboxed yourself",
    )
    up(act(kernel, parent, "spawn", name="less", command=SLEEP, permissions="readonly"))
    assert client.explain("less", "EXEC", {"command": "ls"})["decision"] == "deny"


def test_what_is_spawned_has_no_more_than_the_limits_of_a_set(kernel: Kernel, client: AgentOSClient) -> None:
    bounds = {"level": "sandboxed", "spawn": {"limits": {"memory": "64M", "max_pids": 16}}}
    parent = up(client.spawn("parent", command=SLEEP, permissions=bounds))["id"]

    up(act(kernel, parent, "spawn", name="child", command=SLEEP, limits={"memory": "128M", "max_pids": 8}))

    limits = up(client.inspect("child"))["limits"]
    assert (limits["memory"], limits["max_pids"]) == (64 << 20, 8)
    assert up(client.inspect("parent"))["limits"]["memory"] > 64 << 20


def test_a_guest_sees_what_it_gave_away(kernel: Kernel) -> None:
    with kernel.client() as guest:
        given = {"level": "readonly", "deny": {"calls": ["TREE"]}}
        up(guest.request(Op.HELLO, {"as": "visitor", "permissions": given}))

        found = up(guest.get_permissions())["permissions"]

        assert {**given, "bounded_by": found["bounded_by"]} == found
        assert found["bounded_by"] == []
        assert guest.tree()["code"] == "permission_denied"
        assert guest.set_permissions(level="minimal")["code"] == "permission_denied"


def test_explain_is_about_calls_that_there_are_and_their_own_requests(client: AgentOSClient) -> None:
    up(client.spawn("a", command=SLEEP))

    def said(call: str, args: Told | None = None) -> tuple[str, str]:
        reply = client.explain("a", call, args)
        return reply["code"], reply["error"]

    assert said("LSIT") == ("bad_request", "call: no call is named 'LSIT', did you mean LIST?")
    assert said("WORLD_CREATE") == ("unknown_call", "this kernel has no call WORLD_CREATE")
    assert said("KILL", {"nam": "a"}) == ("bad_request", "args: nam: unknown field, did you mean name?")
    assert said("KILL", {"name": "nobody"}) == ("not_found", "no agent is called 'nobody'")
    assert client.explain("a", "HELLO")["decision"] == "allow"


def test_explain_is_for_oneself_and_those_below(kernel: Kernel, client: AgentOSClient) -> None:
    parent = up(client.spawn("parent", command=SLEEP))["id"]
    child = up(act(kernel, parent, "spawn", name="child", command=SLEEP))["id"]

    with as_agent(kernel, parent) as me:
        assert up(me.explain("child", "LIST"))["decision"] == "allow"
        assert up(me.explain(parent, "LIST"))["decision"] == "allow"
    with as_agent(kernel, child) as me:
        assert me.explain("parent", "LIST")["code"] == "permission_denied"


async def test_the_trio_client_has_the_same_calls(kernel: Kernel) -> None:
    async with connect(kernel.socket) as operator:
        born = await operator.spawn("typed", command=SLEEP)
        assert (await operator.get_permissions(born.id))["level"] == "sandboxed"
        assert (await operator.set_permissions(level="readonly", agent_id=born.id)).agent_id == born.id
        told = await operator.explain("typed", "EXEC", {"command": "ls"})
        assert (told.decision, told.rule) == ("deny", "no rule (level readonly)")
        with trio.fail_after(PATIENCE):
            await operator.kill("typed", grace=0)
    async with connect(kernel.socket, level="sandboxed") as guest:
        with pytest.raises(PermissionDenied):
            await guest.set_permissions({"level": "standard"})
