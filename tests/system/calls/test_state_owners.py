"""Owners of keys, mail, workspaces and budgets: how long these last, and agents that get the name of another."""

import os
import signal

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.wire import DELETE, FETCH, HELLO, KEYS, RECV, SPAWN, THINK, Wire
from tests.system.agents import in_state, info, up
from tests.system.state_calls import CHILD, SLEEP, acting_as, child_of, code, end, found, stores


def test_an_agents_own_keys_outlive_its_restart_and_its_kernels(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(CHILD)
    with acting_as(kernel, "kept") as wire:
        stores(wire, "own", 1)
        stores(wire, "now", 2, "session")
        stores(wire, "gone", 3, ttl=0.2)
    with kernel.client() as client:
        os.kill(info(client, "kept")["pid"], signal.SIGKILL)
        until(lambda: info(client, "kept")["restarts"] == 1, "it is back")
        in_state(client, "kept", "running")
    with acting_as(kernel, "kept") as wire:
        assert (found(wire, "own"), found(wire, "now", "session")) == ((1, "agent"), (2, "session"))

    kernel.kill()
    kernel.start_again()

    with acting_as(kernel, "kept") as wire:
        assert (found(wire, "own"), found(wire, "now", "session"), found(wire, "gone")) == ((1, "agent"), None, None)
        assert stores(wire, "own", 2) == 3


def test_a_session_outlives_stop_and_start_and_ends_with_the_agent(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(CHILD)
    with kernel.client() as client:
        with acting_as(kernel, "kept") as wire:
            stores(wire, "now", 1, "session")
        up(client.restart("kept"))
        up(client.stop("kept"))
        up(client.start("kept"))
        with acting_as(kernel, "kept") as wire:
            assert found(wire, "now", "session") == (1, "session")

        with acting_as(kernel, "once") as wire:
            stores(wire, "now", 1, "session")
            stores(wire, "own", 1)
        os.kill(info(client, "once")["pid"], signal.SIGKILL)
        in_state(client, "once", "exited")
        up(client.start("once"))
        with acting_as(kernel, "once") as wire:
            assert (found(wire, "now", "session"), found(wire, "own")) == (None, (1, "agent"))


def test_the_session_of_a_stopped_agent_ends_when_a_reload_removes_it(own_kernel: OwnKernel) -> None:
    limit = "[kernel]\nmax_state_keys = 1\n"
    kernel = own_kernel(limit + CHILD)
    with kernel.client() as client:
        with acting_as(kernel, "kept") as wire:
            stores(wire, "now", 1, "session")
        up(client.stop("kept"))
        for text in (limit, limit + CHILD):
            (kernel.place / "agentos.toml").write_text(text)
            up(client.reload())
        in_state(client, "kept", "running")

        with acting_as(kernel, "kept") as wire:  # an agent of its own, with the former's account
            assert found(wire, "now", "session") is None
            stores(wire, "own", 1)  # the removed session takes no room


def test_a_session_of_the_operator_is_one_connection(kernel: Kernel) -> None:
    with kernel.connect() as one, kernel.connect() as other:
        stores(one, "here", 1, "session")
        stores(one, "kept", 1, "agent")
        assert found(other, "here", "session") is None
        assert found(other, "kept") == (1, "agent")
        up(other.call(DELETE, {"key": "kept"}))


def test_guests_have_private_keys_by_their_names(kernel: Kernel) -> None:
    with kernel.connect() as ada, kernel.connect() as again, kernel.connect() as bob, kernel.connect() as nameless:
        for wire, fields in ((ada, {"as": "ada"}), (again, {"as": "ada"}), (bob, {"as": "bob"}), (nameless, {})):
            up(wire.call(HELLO, {"level": "sandboxed", **fields}))
        stores(ada, "own", 1)

        assert found(again, "own") == (1, "agent")
        assert found(bob, "own") is None
        assert found(nameless, "own") is None


def test_private_state_belongs_to_the_name_and_its_parent_together(kernel: Kernel, client: AgentOSClient) -> None:
    """Attack: an agent takes the name of another parent's dead child, then of its own dead sibling."""
    one, other = kernel.spawn("one"), kernel.spawn("other")
    with kernel.connect_as(one) as first, kernel.connect_as(other) as second:
        heir = child_of(kernel, first, "heir")
        with kernel.connect_as(heir) as wire:
            stores(wire, "secret", "of one's heir")
            stores(wire, "secret", "again")
        end(client, heir)

        thief, sibling = child_of(kernel, second, "heir"), child_of(kernel, first, "sibling")
        with kernel.connect_as(thief) as wire:
            assert found(wire, "secret") is None
            assert up(wire.call(KEYS, {}))["keys"] == []
            assert stores(wire, "secret", "stolen?", if_version=0) == 1, "its versions tell nothing either"
        end(client, thief)
        with kernel.connect_as(sibling) as wire:
            below = child_of(kernel, wire, "heir")
            with kernel.connect_as(below) as taken:
                assert found(taken, "secret") is None
            end(client, below)
            assert found(wire, "secret") is None
        own = kernel.spawn("heir")
        with kernel.connect_as(own) as wire:
            assert found(wire, "secret") is None
        end(client, own)

        back = child_of(kernel, first, "heir")
        with kernel.connect_as(back) as wire:
            assert found(wire, "secret") == ("again", "agent")
        end(client, back, sibling, one, other)


def test_the_operator_reads_an_agents_own_keys_and_no_other_caller_does(kernel: Kernel, client: AgentOSClient) -> None:
    boss = kernel.spawn("boss", permissions={"level": "standard"})
    with kernel.connect_as(boss) as wire, kernel.connect() as guest:
        heir = child_of(kernel, wire, "heir")
        with kernel.connect_as(heir) as below:
            stores(below, "plan", "mine")
            stores(below, "short", 1, "session")
        up(guest.call(HELLO, {"as": "guest"}))

        fetched = up(client.fetch("plan", agent="heir"))
        assert (fetched["value"], fetched["scope"], fetched["version"]) == ("mine", "agent", 1)
        assert up(client.keys(agent="heir"))["keys"] == ["plan"]
        assert up(client.fetch("none", agent="heir"))["exists"] is False
        assert up(client.keys(agent="boss"))["keys"] == []
        with kernel.connect() as operator:
            assert code(operator.call(FETCH, {"key": "a", "scope": "global", "agent": "heir"})) == "bad_request"
            assert code(operator.call(KEYS, {"agent": ""})) == "bad_request"
        for op, fields in ((FETCH, {"key": "plan"}), (KEYS, {})):
            for caller in (wire, guest):
                for name in ("heir", "boss", "no such agent"):
                    assert code(caller.call(op, {**fields, "agent": name})) == "permission_denied"

        end(client, heir, boss)
        assert up(client.fetch("plan", agent="boss/heir"))["value"] == "mine"


def test_the_mail_of_a_dead_child_is_not_that_of_its_namesake(kernel: Kernel, client: AgentOSClient) -> None:
    one, other = kernel.spawn("one"), kernel.spawn("other")
    with kernel.connect_as(one) as first, kernel.connect_as(other) as second:
        heir = child_of(kernel, first, "heir")
        up(client.send_message("for one's heir", to=heir))
        end(client, heir)

        for parent in (first, second):
            namesake = child_of(kernel, parent, "heir")
            with kernel.connect_as(namesake) as wire:
                assert wire.call(RECV)["messages"] == []
            end(client, namesake)
        end(client, one, other)


def test_a_kept_workspace_is_not_that_of_an_agents_child_with_its_name(kernel: Kernel, client: AgentOSClient) -> None:
    """Attack: a child takes the name of an ended agent whose workspace is kept."""
    up(client.spawn("keeper", command=SLEEP, workspace="keep"))
    assert client.exec("echo mine > /workspace/note", name="keeper")["exit_code"] == 0
    end(client, info(client, "keeper")["id"])

    boss = kernel.spawn("boss", permissions={"level": "standard"})
    with kernel.connect_as(boss) as wire:
        refused = wire.call(SPAWN, {"name": "keeper", "command": SLEEP, "workspace": "keep"})
        assert code(refused) == "permission_denied"
        for path in ("/workspace", "."):
            assert not wire.call(SPAWN, {"name": "keeper", "command": SLEEP, "workspace": path})["success"]
        thief = child_of(kernel, wire, "keeper")
        listed = client.exec("ls -A /workspace; echo stolen > /workspace/note", name="keeper")
        assert (listed["exit_code"], listed["stdout"]) == (0, "")
        end(client, thief, boss)

    up(client.spawn("keeper", command=SLEEP, workspace="keep"))
    assert client.exec("cat /workspace/note", name="keeper")["stdout"] == "mine\n"
    end(client, info(client, "keeper")["id"])


def test_the_budget_of_a_dead_child_is_not_that_of_its_namesake(own_kernel: OwnKernel) -> None:
    """A namesake neither finds the budget used up, nor uses it up, nor learns what was used."""
    kernel = own_kernel('[llm]\nprovider = "offline"\n')
    tight = {"llm": {"budget": [{"calls": 1, "per": "31d"}]}}
    one, other = kernel.spawn("one"), kernel.spawn("other")
    with kernel.connect_as(one) as first, kernel.connect_as(other) as second, kernel.client() as client:

        def think_as_heir_of(parent: Wire) -> list[str]:
            heir = child_of(kernel, parent, "heir", **tight)
            with kernel.connect_as(heir) as wire:
                said = [code(wire.call(THINK, {"prompt": "how?"})) for _ in range(2)]
            end(client, heir)
            return said

        assert think_as_heir_of(first) == ["ok", "quota_exceeded"]
        assert think_as_heir_of(second) == ["ok", "quota_exceeded"], "the other's budget is its own"
        below = child_of(kernel, first, "heir", **tight)
        with kernel.connect_as(below) as wire:
            assert code(wire.call(THINK, {"prompt": "again?"})) == "quota_exceeded", "its own is kept"
        assert {row["name"]: row["calls"] for row in client.usage()["usage"] if row["calls"]} == {
            "one/heir": 1,
            "other/heir": 1,
        }
        end(client, below, one, other)
