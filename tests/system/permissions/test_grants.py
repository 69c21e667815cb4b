"""What agents hold, tried over the wire: levels, children, who gives what to whom."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kernel import Kernel, until
from tests.support.wire import (
    BROADCAST,
    EXEC,
    EXIT,
    EXPLAIN,
    GET_AUDIT_LOG,
    GET_PERMS,
    HELLO,
    INSPECT,
    LIST,
    NOOP,
    READ,
    RECV,
    SEND,
    SET_AUDIT_CONFIG,
    SET_PERMS,
    SPAWN,
    THINK,
    TREE,
    WRITE,
    Wire,
    frame,
    settle,
)
from tests.system.agents import use_up_burst

SLEEP = ["sleep", "1000"]


@pytest.fixture
def operator(kernel: Kernel) -> Iterator[Wire]:
    with kernel.connect() as connection:
        yield connection


def spawn(wire: Wire, name: str, **more: Any) -> int:
    reply = wire.call(SPAWN, {"name": name, "command": SLEEP, **more})
    assert reply["success"], reply
    return int(reply["id"])


def level_of(wire: Wire, agent: int) -> str:
    return str(wire.call(GET_PERMS, {"agent_id": agent})["permissions"]["level"])


def test_at_level_minimal_only_its_parent_can_be_written_to(kernel: Kernel, operator: Wire) -> None:
    parent, stranger = spawn(operator, "its-parent"), spawn(operator, "stranger")
    with kernel.connect_as(parent) as above:
        child = spawn(above, "writer", permissions="minimal")

    with kernel.connect_as(child) as wire:
        assert wire.call(SEND, {"to": parent, "message": 1})["success"]
        assert wire.call(SEND, {"to": stranger, "message": 1})["code"] == "permission_denied"
        for op in (LIST, TREE, SPAWN, READ, WRITE, EXPLAIN, SET_PERMS, THINK):
            assert wire.call(op)["code"] == "permission_denied"
        assert wire.call(GET_PERMS)["permissions"]["level"] == "minimal"
        assert wire.ask(NOOP, b"x").body == b"x"
        assert wire.ask(EXIT).body == b"goodbye"


def test_a_refusal_says_which_rule_it_was(kernel: Kernel, operator: Wire) -> None:
    agent = spawn(operator, "denied", permissions={"level": "sandboxed", "deny": {"calls": ["TREE"]}})

    with kernel.connect_as(agent) as wire:
        reply = wire.call(TREE)

    assert reply["code"] == "permission_denied"
    assert "deny calls TREE" in reply["rule"]


def test_what_a_person_has_to_agree_to_is_refused_if_the_caller_does_not_wait(kernel: Kernel, operator: Wire) -> None:
    agent = spawn(operator, "asking", permissions={"level": "sandboxed", "ask": {"calls": ["TREE"]}})

    with kernel.connect_as(agent) as wire:
        assert wire.call(HELLO, {"approval_timeout": 0})["success"]
        assert wire.call(TREE)["code"] == "approval_required"


def test_a_child_gets_no_level_above_its_parents(kernel: Kernel, operator: Wire) -> None:
    parent = spawn(operator, "modest", permissions={"level": "sandboxed"})

    with kernel.connect_as(parent) as wire:
        for wider in ("standard", "unrestricted"):
            reply = wire.call(SPAWN, {"name": "wider", "command": SLEEP, "permissions": wider})
            assert reply["code"] == "permission_denied", reply
            assert reply["error"].startswith("permissions: ")


def test_a_childs_rules_hold_within_its_parents_only(kernel: Kernel, operator: Wire) -> None:
    parent = spawn(operator, "narrow", permissions={"level": "sandboxed", "deny": {"calls": ["TREE"]}})

    with kernel.connect_as(parent) as wire:
        child = spawn(wire, "narrow-child", permissions={"level": "sandboxed", "allow": {"read": ["/etc/**"]}})
    with kernel.connect_as(child) as wire:
        assert wire.call(TREE)["code"] == "permission_denied"
        assert wire.call(READ, {"path": "/etc/hostname"})["code"] == "permission_denied"


def test_an_agent_that_is_narrowed_narrows_all_below_it(kernel: Kernel, operator: Wire) -> None:
    parent = spawn(operator, "above")
    with kernel.connect_as(parent) as wire:
        child = spawn(wire, "below")
    with kernel.connect_as(child) as wire:
        assert wire.call(TREE)["success"]

        assert operator.call(SET_PERMS, {"agent_id": parent, "level": "readonly"})["success"]
        assert wire.call(TREE)["success"]
        assert wire.call(WRITE, {"path": "x", "content": ""})["code"] == "permission_denied"

        assert operator.call(SET_PERMS, {"agent_id": parent, "level": "sandboxed"})["success"]
        assert wire.call(WRITE, {"path": "x", "content": ""})["success"]


def test_an_agent_narrows_its_own_rights_and_does_not_widen_them(kernel: Kernel, operator: Wire) -> None:
    agent = spawn(operator, "ambitious")

    with kernel.connect_as(agent) as wire:
        for body in ({"level": "unrestricted"}, {"agent_id": agent, "level": "standard"}):
            assert wire.call(SET_PERMS, body)["code"] == "permission_denied"
        assert level_of(operator, agent) == "sandboxed"
        assert wire.call(SET_PERMS, {"level": "readonly"}) == {"success": True, "agent_id": agent}
    assert level_of(operator, agent) == "readonly"


def test_an_ancestor_sets_the_rights_of_those_below_within_its_own(kernel: Kernel, operator: Wire) -> None:
    parent, stranger = spawn(operator, "setter"), spawn(operator, "not-its-own")

    with kernel.connect_as(parent) as wire:
        child = spawn(wire, "set")
        assert wire.call(SET_PERMS, {"agent_id": child, "level": "minimal"})["success"]
        assert wire.call(SET_PERMS, {"agent_id": child, "level": "unrestricted"})["code"] == "permission_denied"
        assert wire.call(SET_PERMS, {"agent_id": stranger, "level": "minimal"})["code"] == "permission_denied"
        assert level_of(wire, child) == "minimal"
    with kernel.connect_as(child) as wire:
        assert wire.call(LIST)["code"] == "permission_denied"


def test_no_rule_lets_an_agent_set_the_rights_of_an_agent_that_it_did_not_spawn(kernel: Kernel, operator: Wire) -> None:
    manager = spawn(operator, "manager", permissions={"level": "sandboxed", "allow": {"agents": ["*"]}})
    other = spawn(operator, "managed")

    with kernel.connect_as(manager) as wire:
        child = spawn(wire, "managers-child")
        assert wire.call(INSPECT, {"id": other})["success"]
        assert wire.call(SET_PERMS, {"agent_id": other, "level": "minimal"})["code"] == "permission_denied"
    with kernel.connect_as(child) as wire:
        assert wire.call(SET_PERMS, {"agent_id": manager, "level": "sandboxed"})["code"] == "permission_denied"


def test_not_even_an_unrestricted_agent_sets_what_the_log_keeps(kernel: Kernel, operator: Wire) -> None:
    agent = spawn(operator, "mighty", permissions="unrestricted")

    with kernel.connect_as(agent) as wire:
        assert wire.call(SET_AUDIT_CONFIG, {"log_files": False})["code"] == "permission_denied"


def test_what_the_kernel_keeps_is_read_and_written_by_no_caller(kernel: Kernel, operator: Wire) -> None:
    for path in (kernel.state_dir / "agentos.db", kernel.state_dir / "run.json", kernel.runtime / "1.sock"):
        assert operator.call(READ, {"path": str(path)})["code"] == "permission_denied"
        assert operator.call(WRITE, {"path": str(path), "content": ""})["code"] == "permission_denied"


def test_rights_outlive_a_restart(kernel: Kernel, operator: Wire) -> None:
    agent = spawn(operator, "reborn", restart="permanent", permissions="readonly")
    before = operator.call(INSPECT, {"id": agent})["pid"]
    assert operator.call(SET_PERMS, {"agent_id": agent, "level": "minimal"})["success"]

    os.kill(before, signal.SIGKILL)
    until(lambda: operator.call(INSPECT, {"id": agent})["restarts"] == 1, "it is restarted")
    until(lambda: operator.call(INSPECT, {"id": agent})["state"] == "running", "it is back")

    with kernel.connect_as(agent) as wire:
        assert wire.call(LIST)["code"] == "permission_denied"


def test_a_childs_limits_are_cut_to_what_its_spawner_may_give(kernel: Kernel, operator: Wire) -> None:
    given = {"level": "sandboxed", "spawn": {"limits": {"max_pids": 7, "memory": "64M"}}}
    parent = spawn(operator, "stingy", permissions=given)

    with kernel.connect_as(parent) as wire:
        child = spawn(wire, "poor", limits={"max_pids": 30})

    limits = operator.call(INSPECT, {"id": child})["limits"]
    assert (limits["max_pids"], limits["memory"]) == (7, 64 << 20)


def test_limits_that_are_narrowed_while_a_spawn_waits_for_the_audit_log_hold_for_the_child(
    kernel: Kernel, operator: Wire
) -> None:
    parent = spawn(operator, "patient")
    narrower = {"level": "sandboxed", "spawn": {"limits": {"memory": "64M"}}}

    with kernel.connect_as(parent) as wire:
        wire.hello()
        use_up_burst(wire)
        wire.write(b"".join(frame(EXEC, {"command": ["true"]}, n) for n in range(1, 201)))
        settle(operator)
        wire.send(SPAWN, {"name": "late", "command": SLEEP}, 1000)
        settle(operator)
        assert operator.call(SET_PERMS, {"agent_id": parent, "permissions": narrower})["success"]
        announced = operator.call(GET_AUDIT_LOG, {"agent_id": parent, "category": "agents"})["entries"]
        child = next(reply for reply in iter(wire.receive, None) if reply.id == 1000).json["id"]

    assert not [entry for entry in announced if entry["call"] == "SPAWN"]
    assert operator.call(INSPECT, {"id": child})["limits"]["memory"] == 64 << 20


@pytest.mark.parametrize(
    ("permissions", "field"),
    [
        ("emperor", "permissions"),
        ({"level": "emperor"}, "permissions.level"),
        ({"allow": {"reed": ["/a"]}}, "permissions.allow"),
        ({"allow": {"read": ["a/b"]}}, "permissions.allow.read[0]"),
        ({"allow": {"read": ["/a/**", "/a/b"]}}, "permissions.allow.read[1]"),
        ({"allow": {"calls": ["REED"]}}, "permissions.allow.calls[0]"),
        ({"allow": {"commands": ["sudo *"]}}, "permissions.allow.commands[0]"),
        ({"deny": {"calls": ["EXIT"]}}, "permissions.deny.calls[0]"),
        ({"examples": {"allow": ["READ /etc/shadow"]}}, "permissions.examples.allow[0]"),
        (7, "permissions"),
    ],
    ids=str,
)
def test_bad_permissions_are_refused_with_the_field(operator: Wire, permissions: object, field: str) -> None:
    reply = operator.call(SPAWN, {"name": "never", "command": SLEEP, "permissions": permissions})

    assert reply["code"] == "bad_request"
    assert field in reply["error"]


def test_a_broadcast_reaches_no_agent_that_its_sender_may_not_send_to(kernel: Kernel, operator: Wire) -> None:
    hears, deaf = spawn(operator, "hears"), spawn(operator, "deaf")
    agent = spawn(operator, "crier", permissions={"level": "sandboxed", "deny": {"send": ["deaf"]}})

    with kernel.connect_as(agent) as wire:
        assert wire.call(SEND, {"to": deaf, "message": 1})["code"] == "permission_denied"
        assert wire.call(BROADCAST, {"message": "all"})["success"]

    with kernel.connect_as(hears) as one, kernel.connect_as(deaf) as other:
        assert one.call(RECV)["count"] == 1
        assert other.call(RECV)["count"] == 0


def test_a_question_is_not_evaded_by_another_spelling(kernel: Kernel, operator: Wire) -> None:
    asked = {"level": "sandboxed", "ask": {"commands": ["git *"]}}
    agent = spawn(operator, "speller", permissions=asked)

    with kernel.connect_as(agent) as wire:
        assert wire.call(HELLO, {"approval_timeout": 0})["success"]
        for line in ("git status", "/usr/bin/git status", "$(echo git) status"):
            assert wire.call(EXEC, {"command": line})["code"] == "approval_required", line
