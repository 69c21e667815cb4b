"""STORE, FETCH, DELETE and KEYS: whose a key is, how long it lasts, and what may be done to it."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import StartKernel
from tests.support.kernel import Kernel, until
from tests.support.wire import DELETE, FETCH, HELLO, KEYS, RECV, SET_PERMS, SPAWN, STORE, THINK, Wire
from tests.system.agents import in_state, info, up

SLEEP = ["sleep", "1000"]
CHILD = """
[[supervisor.children]]
name = "kept"
command = ["sleep", "1000"]
restart = "permanent"

[[supervisor.children]]
name = "once"
command = ["sleep", "1000"]
restart = "temporary"
"""
GRANTED = {"level": "sandboxed", "allow": {"state_read": ["plan.*", "note"], "state_write": ["plan.*"]}}


def stores(wire: Wire, key: str, value: object, scope: str = "agent", **more: object) -> int:
    return int(up(wire.call(STORE, {"key": key, "value": value, "scope": scope, **more}))["version"])


def found(wire: Wire, key: str, scope: str | None = "agent") -> Any:
    """The value of a key, and where it was found."""
    reply = up(wire.call(FETCH, {"key": key, **({"scope": scope} if scope else {})}))
    return (reply["value"], reply["scope"]) if reply["exists"] else None


def code(reply: Any) -> str:
    return "ok" if reply["success"] else str(reply["code"])


@contextlib.contextmanager
def acting_as(kernel: Kernel, name: str) -> Iterator[Wire]:
    with kernel.client() as client:
        number = info(client, name)["id"]
    with kernel.connect_as(number) as wire:
        yield wire


def child_of(kernel: Kernel, parent: Wire, name: str, **more: object) -> int:
    return int(up(parent.call(SPAWN, {"name": name, "command": SLEEP, **more}))["id"])


def end(client: AgentOSClient, *numbers: int) -> None:
    for number in numbers:
        client.kill(agent_id=number, grace=0)


def test_a_client_stores_globally_and_fetches_without_a_scope(kernel: Kernel) -> None:
    with kernel.connect() as one, kernel.connect() as other:
        assert up(one.call(STORE, {"key": "shared", "value": [1, {"b": None}]})) == {
            "success": True,
            "key": "shared",
            "version": 1,
        }
        assert up(other.call(FETCH, {"key": "shared"})) == {
            "success": True,
            "exists": True,
            "value": [1, {"b": None}],
            "scope": "global",
            "version": 1,
            "expires_in": None,
        }
        assert up(other.call(DELETE, {"key": "shared"}))["scope"] == "global"


def test_without_a_scope_the_nearest_one_counts(kernel: Kernel, client: AgentOSClient) -> None:
    number = kernel.spawn("near", permissions={"level": "sandboxed", "allow": {"state_read": ["*"]}})
    client.store("x", "all of us")
    with kernel.connect_as(number) as wire:
        assert found(wire, "x", None) == ("all of us", "global")
        stores(wire, "x", "mine")
        assert found(wire, "x", None) == ("mine", "agent")
        stores(wire, "x", "now", "session")
        stores(wire, "y", "now", "session")
        assert found(wire, "x", None) == ("now", "session")
        listed = up(wire.call(KEYS, {}))
        assert (listed["keys"], listed["scopes"]) == (["x", "y"], ["session", "session"])

        assert [up(wire.call(DELETE, {"key": "x"}))["scope"] for _ in range(2)] == ["session", "agent"]
        assert code(wire.call(DELETE, {"key": "x"})) == "permission_denied"
    assert client.delete("x")["deleted"]


def test_keys_come_in_pages_over_all_scopes(kernel: Kernel, client: AgentOSClient) -> None:
    for number in range(7):
        client.store(f"page.{number}", number, scope=("global", "agent", "session")[number % 3])
    pages, after = [], ""
    while True:
        page = up(client.keys("page.", limit=3, after=after))
        pages.append(page["keys"])
        if page["next"] is None:
            break
        after = page["next"]

    assert pages == [["page.0", "page.1", "page.2"], ["page.3", "page.4", "page.5"], ["page.6"]]
    for number in range(7):
        assert client.delete(f"page.{number}")["deleted"]


# -- Rules -------------------------------------------------------------------------------------------------------------


def test_a_level_without_grants_has_no_global_key_and_its_own_all_the_same(
    kernel: Kernel, client: AgentOSClient
) -> None:
    client.store("note", 1)
    with kernel.connect_as(kernel.spawn("plain")) as wire:
        for op, fields in ((STORE, {"key": "note", "value": 1}), (FETCH, {"key": "note"}), (DELETE, {"key": "note"})):
            assert code(wire.call(op, {**fields, "scope": "global"})) == "permission_denied"
        assert code(wire.call(FETCH, {"key": "note"})) == code(wire.call(FETCH, {"key": "nothing"}))
        assert up(wire.call(KEYS, {}))["keys"] == []
        assert stores(wire, "note", "mine") == 1
        assert found(wire, "note", None) == ("mine", "agent")
    client.delete("note")


def test_rules_grant_reading_and_writing_of_global_keys_by_pattern(kernel: Kernel, client: AgentOSClient) -> None:
    for key in ("note", "plan.a", "secret"):
        client.store(key, key)
    with kernel.connect_as(kernel.spawn("clerk", permissions=GRANTED)) as wire:
        assert found(wire, "note", "global") == ("note", "global")
        assert code(wire.call(STORE, {"key": "note", "value": 1})) == "permission_denied"
        assert code(wire.call(STORE, {"key": "plan.b", "value": 1})) == "ok"
        assert code(wire.call(FETCH, {"key": "secret"})) == "permission_denied"
        assert up(wire.call(KEYS, {"scope": "global"}))["keys"] == ["note", "plan.a", "plan.b"]
        assert up(wire.call(KEYS, {"scope": "global", "limit": 2}))["next"] == "plan.a"
    explained = client.explain("clerk", "DELETE", {"key": "secret", "scope": "global"})
    assert (explained["decision"], explained["reason"].partition(":")[0]) == ("deny", "DELETE secret")
    assert client.explain("clerk", "DELETE", {"key": "plan.a", "scope": "global"})["decision"] == "allow"
    assert client.explain("clerk", "STORE", {"key": "secret", "scope": "agent"})["decision"] == "allow"
    assert client.fetch("plan.a")["exists"], "EXPLAIN does nothing"
    for key in ("note", "plan.a", "plan.b", "secret"):
        client.delete(key)


def test_a_caller_narrows_its_grants_of_keys_and_never_widens_them(kernel: Kernel) -> None:
    with kernel.connect_as(kernel.spawn("narrow", permissions=GRANTED)) as wire:
        wider = {"level": "sandboxed", "allow": {"state_read": ["plan*"]}}
        assert code(wire.call(SET_PERMS, {"permissions": wider})) == "permission_denied"
        narrower = {"level": "sandboxed", "allow": {"state_read": ["plan.a*"]}}
        assert code(wire.call(SET_PERMS, {"permissions": narrower})) == "ok"

        assert found(wire, "plan.a", "global") is None
        assert code(wire.call(FETCH, {"key": "plan.b", "scope": "global"})) == "permission_denied"
        assert code(wire.call(STORE, {"key": "plan.a", "value": 1})) == "permission_denied"


def test_keys_reads_only_what_each_of_its_grants_may_match(kernel: Kernel, client: AgentOSClient) -> None:
    keys = ["a", "note", "plan.a", "plan.b", "plan.z", "zoo"]
    for key in keys:
        client.store(key, key)
    allow = {"state_read": ["plan.*", "n?te", "[ab]*"]}
    boss = kernel.spawn("boss", permissions={"level": "standard", "allow": allow})
    with kernel.connect_as(boss) as wire:
        narrow = {"level": "sandboxed", "allow": {"state_read": ["plan.b*", "plan.z*"]}, "deny": {"state_read": ["*z"]}}
        below = child_of(kernel, wire, "below", permissions=narrow)
        assert up(wire.call(KEYS, {"scope": "global"}))["keys"] == keys[:5]
        assert up(wire.call(KEYS, {"scope": "global", "prefix": "pl", "limit": 2}))["next"] == "plan.b"
        with kernel.connect_as(below) as narrowed:
            assert up(narrowed.call(KEYS, {"scope": "global"}))["keys"] == ["plan.b"]
            assert up(narrowed.call(KEYS, {"scope": "global", "prefix": "note"}))["keys"] == []
        end(client, below, boss)
    for key in keys:
        client.delete(key)


# -- Whose it is, and how long it lasts --------------------------------------------------------------------------------


def test_an_agents_own_keys_outlive_its_restart_and_its_kernels(start_kernel: StartKernel) -> None:
    kernel = start_kernel(CHILD)
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


def test_a_session_outlives_stop_and_start_and_ends_with_the_agent(start_kernel: StartKernel) -> None:
    kernel = start_kernel(CHILD)
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


def test_the_budget_of_a_dead_child_is_not_that_of_its_namesake(start_kernel: StartKernel) -> None:
    """A namesake neither finds the budget used up, nor uses it up, nor learns what was used."""
    kernel = start_kernel('[llm]\nprovider = "offline"\n')
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


# -- Limits and trouble ------------------------------------------------------------------------------------------------


def test_an_agent_and_what_it_spawned_have_one_quota(start_kernel: StartKernel) -> None:
    kernel = start_kernel('[kernel]\nmax_state_keys = 3\nmax_state_bytes = "1K"\n')
    boss = kernel.spawn("boss")
    with kernel.connect_as(boss) as wire, kernel.client() as client:
        with kernel.connect_as(child_of(kernel, wire, "w")) as below:
            stores(below, "a", 1)
            stores(below, "b", 1, "session")
            stores(wire, "c", 1)
            refused = below.call(STORE, {"key": "d", "value": 1, "scope": "agent"})
            assert (refused["code"], refused["name"], refused["what"]) == ("quota_exceeded", "boss", "keys")
            assert "kernel.max_state_keys" in refused["error"]
        assert code(wire.call(STORE, {"key": "c", "value": "x" * 1024, "scope": "agent"})) == "quota_exceeded"
        assert client.store("the operator's", "x" * 2000)["success"]


def test_a_value_may_have_a_mebibyte_and_its_text_stays_as_it_was(kernel: Kernel, client: AgentOSClient) -> None:
    large = "x" * ((1 << 20) - 60)
    assert client.store("large", large)["success"]
    assert client.fetch("large")["value"] == large
    client.delete("large")
    with kernel.connect() as wire:
        body = b'{"key": "text", "value": {"a": 1.50, "a": 123456789012345678901234567890}}'
        up(wire.ask(STORE, body).json)
        assert b'"value":{"a": 1.50, "a": 123456789012345678901234567890}' in wire.ask(FETCH, b'{"key":"text"}').body
        up(wire.call(DELETE, {"key": "text"}))


@pytest.mark.parametrize(
    "fields",
    [
        {"key": ""},
        {"key": "a\nb"},
        {"key": "\x7f"},
        {"key": "ü" * 257},
        {"key": "\ud800"},
        {"key": "x", "ttl": 0},
        {"key": "x", "scope": "mine"},
        {"key": "x", "if_version": -1},
    ],
)
def test_what_is_no_key_no_time_and_no_scope(wire: Wire, fields: dict[str, object]) -> None:
    assert code(wire.call(STORE, {"value": 1, **fields})) == "bad_request"


def test_nothing_acknowledged_is_lost_when_the_kernel_is_killed_under_load(start_kernel: StartKernel) -> None:
    kernel = start_kernel()
    acknowledged: dict[str, tuple[int, int]] = {}
    enough = threading.Event()

    def write(number: int) -> None:
        with contextlib.suppress(OSError), kernel.connect() as wire:
            for count in range(1_000_000):
                key = f"load.{number}.{count % 10}"
                version = stores(wire, key, count, "global")
                acknowledged[key] = (count, version)
                if len(acknowledged) >= 60 and count > 30:
                    enough.set()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    assert enough.wait(60)
    kernel.kill()
    for writer in writers:
        writer.join(60)
    kernel.start_again()

    with kernel.connect() as wire:
        for key, (count, version) in acknowledged.items():
            kept = up(wire.call(FETCH, {"key": key}))
            # One more may have been written that was not acknowledged.
            assert (kept["value"], kept["version"]) == (count, version) or kept["version"] > version
        newest = max(version for _, version in acknowledged.values())
        assert stores(wire, "after", 1, "global") > newest
