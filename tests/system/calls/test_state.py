"""STORE, FETCH, DELETE and KEYS: scopes, rules, limits, and a kernel that is killed."""

import contextlib
import threading

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row
from tests.support.wire import DELETE, FETCH, KEYS, PATIENCE, SET_PERMS, STORE
from tests.system.agents import up
from tests.system.state_calls import GRANTED, child_of, code, end, found, stores


def test_a_client_stores_globally_and_fetches_without_a_scope(kernel: Kernel) -> None:
    with kernel.connect() as one, kernel.connect() as other:
        next_version = stores(one, "shared", "the last value", "global") + 1
        assert up(one.call(STORE, {"key": "shared", "value": [1, {"b": None}]})) == {
            "success": True,
            "key": "shared",
            "version": next_version,
        }
        assert up(other.call(FETCH, {"key": "shared"})) == {
            "success": True,
            "exists": True,
            "value": [1, {"b": None}],
            "scope": "global",
            "version": next_version,
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


# -- Limits and trouble ------------------------------------------------------------------------------------------------


def test_an_agent_and_what_it_spawned_have_one_quota(own_kernel: OwnKernel) -> None:
    kernel = own_kernel('[kernel]\nmax_state_keys = 3\nmax_state_bytes = "1K"\n')
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


@each_row(
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
def test_what_is_no_key_no_time_and_no_scope(kernel: Kernel, fields: dict[str, object]) -> None:
    with kernel.connect() as wire:
        assert code(wire.call(STORE, {"value": 1, **fields})) == "bad_request"


def test_nothing_acknowledged_is_lost_when_the_kernel_is_killed_under_load(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
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
    assert enough.wait(PATIENCE)
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
