"""SNAPSHOT, ROLLBACK and FORK by agents: on what they spawned, and on no other agent, whatever a rule grants."""

from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel
from tests.system.agents import ask, in_state, info, up

from .conftest import BEFORE, run, see

TOML = """
[kernel]
max_children = 3

[[agents]]
name = "boss"
script = "{place}/relay.py"
ready = "hello"
required = true
isolation = "none"
permissions = {{ level = "sandboxed", allow = {{ send = ["*"] }} }}
llm = {{ budget = [{{ tokens = 1000, per = "1d" }}] }}

[[agents]]
name = "stranger"
script = "{place}/relay.py"
ready = "hello"
required = true
workspace = {{ path = "{place}/project", mode = "overlay" }}
permissions = {{ level = "unrestricted" }}
"""
TALKS = {"level": "sandboxed", "allow": {"send": ["*"]}}


@pytest.fixture
def family(own_kernel: OwnKernel, project: Path) -> Kernel:
    """A kernel whose agent ``boss``, without a jail, has spawned ``kid``, which works in an overlay."""
    kernel = own_kernel(TOML.format(place=project.parent))
    with kernel.client() as client:
        up(
            call(
                client,
                "boss",
                "spawn",
                name="kid",
                script=str(project.parent / "relay.py"),
                ready="hello",
                workspace=str(project),
                workspace_mode="overlay",
                permissions=TALKS,
            )
        )
    return kernel


def call(client: AgentOSClient, name: str, method: str, /, **given: object) -> dict[str, Any]:
    """The reply to a call that the agent makes."""
    in_state(client, name, "running")
    reply: dict[str, Any] = ask(client, info(client, name)["id"], method, **given)
    return reply


def test_a_parent_takes_snapshots_rolls_back_and_forks_what_it_spawned(family: Kernel) -> None:
    with family.client() as client:
        run(client, "open('a.txt', 'w').write('one')\nme.store('k', 'one', scope='agent')", "kid")
        up(call(client, "boss", "snapshot", name="kid", label="one"))
        run(client, "open('a.txt', 'w').write('two')\nme.store('k', 'two', scope='agent')", "kid")
        up(client.set_permissions({**TALKS, "deny": {"calls": ["EMIT"]}}, agent_id=info(client, "kid")["id"]))

        [fork] = up(call(client, "boss", "fork", name="kid", snapshot="one"))["agents"]

        assert fork["name"] == "kid-1"
        assert see(client, "kid-1") == {**BEFORE, "a.txt": "one"}
        assert call(client, "kid-1", "fetch", key="k", scope="agent")["value"] == "one"
        shown = client.inspect("kid-1")
        assert (shown["parent"]["name"], shown["forked_from"]) == ("boss", "boss+kid@one")
        assert call(client, "kid-1", "emit_event", event_type="CUSTOM")["code"] == "permission_denied"
        assert "boss" in [one["name"] for one in shown["llm"]["budgets"]], "it uses its parent's budget"
        assert [one["path"] for one in call(client, "boss", "diff", name="kid-1")["changes"]] == ["a.txt"]

        assert call(client, "boss", "fork", name="kid", count=2)["code"] == "quota_exceeded"
        assert [one["name"] for one in client.list_agents() if one["name"].startswith("kid")] == ["kid", "kid-1"]
        assert up(call(client, "boss", "rollback", name="kid", snapshot="one"))["restarted"] is True
        assert see(client, "kid") == {**BEFORE, "a.txt": "one"}


def test_no_agent_touches_what_it_did_not_spawn_nor_itself(family: Kernel) -> None:
    with family.client() as client:
        run(client, "open('a.txt', 'w').write('one')", "kid")
        up(client.snapshot("kid", "one"))
        up(call(client, "kid", "snapshot", name="kid", label="own"))

        for name in ("kid", "boss", "stranger"):
            for method in ("fork", "rollback"):
                given = {"snapshot": "start"} if method == "rollback" else {}
                told = call(client, "stranger", method, name=name, **given)
                assert told["code"] in ("permission_denied", "bad_request"), (method, name, told)
        for method, given in (("fork", {}), ("rollback", {"snapshot": "one"}), ("rollback", {"snapshot": "start"})):
            for name in ("kid", "boss", "stranger"):
                told = call(client, "kid", method, name=name, **given)
                assert told["code"] in ("permission_denied", "bad_request"), (method, name, told)
        for name in ("boss", "stranger"):
            assert call(client, "kid", "snapshot", name=name)["code"] == "permission_denied"
        assert call(client, "boss", "snapshot", name="stranger")["code"] == "permission_denied"
        assert call(client, "boss", "snapshots")["code"] == "permission_denied"

        assert {one["name"] for one in client.list_agents(all=True)} == {"boss", "stranger", "kid"}
        assert see(client, "kid")["a.txt"] == "one"
        assert [(one["name"], one["label"]) for one in client.snapshots()["snapshots"]] == [
            ("boss+kid", "one"),
            ("boss+kid", "own"),
        ]
