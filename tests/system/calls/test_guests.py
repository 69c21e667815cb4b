"""A connection of the operator's that gives rights away, for good."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.services.mail.mailbox import MAX_MESSAGES
from tests.support.kernel import Kernel, until
from tests.support.wire import (
    EXEC,
    EXIT,
    GET_PERMS,
    HELLO,
    INSPECT,
    KILL,
    LIST,
    MAIL,
    NOOP,
    PATIENCE,
    READ,
    RECV,
    REGISTER,
    SEND,
    SET_PERMS,
    SPAWN,
    Wire,
    frame,
)
from tests.system.agents import use_up_burst

CHILD = {"command": ["sleep", "1000"]}


@pytest.fixture
def wire(kernel: Kernel) -> Iterator[Wire]:
    with kernel.connect() as connection:
        yield connection


def guest(wire: Wire, **gives: Any) -> Any:
    reply = wire.call(HELLO, gives)
    assert reply["success"], reply
    return reply


def test_a_guest_has_the_level_that_it_kept_and_a_name(kernel: Kernel, wire: Wire) -> None:
    kernel.spawn("seen")
    reply = guest(wire, **{"as": "visitor", "level": "readonly"})

    assert reply["name"] == "visitor"
    assert "seen" in [agent["name"] for agent in wire.call(LIST)]
    refused = wire.call(SPAWN, {"name": "never", **CHILD})
    assert refused["code"] == "permission_denied"
    assert "level readonly" in refused["rule"]


def test_it_keeps_the_level_standard_if_it_says_no_other(wire: Wire) -> None:
    guest(wire, **{"as": "plain"})

    assert wire.call(GET_PERMS)["permissions"]["level"] == "standard"


def test_it_never_gets_its_rights_back(wire: Wire) -> None:
    guest(wire, level="minimal")

    for again in ({"level": "unrestricted"}, {"permissions": {"level": "unrestricted"}}, {"as": "operator"}):
        wire.call(HELLO, again)
        assert wire.call(LIST)["code"] == "permission_denied"


def test_frames_that_were_sent_together_with_its_hello_are_judged_after_it(wire: Wire) -> None:
    wire.send(HELLO, {"level": "minimal"})
    wire.send(LIST)
    wire.send(NOOP, b"x")

    assert wire.receive().json["success"]
    assert wire.receive().json["code"] == "permission_denied"
    assert wire.receive().body == b"x"


def test_nor_do_those_that_are_sent_after_a_change_of_version(kernel: Kernel) -> None:
    with kernel.connect() as wire:
        wire.send(HELLO, {"protocol": 2, "level": "minimal"})
        wire.send(LIST, number=7)

        assert wire.receive().json["success"]
        assert wire.receive().json["code"] == "permission_denied"


def test_what_it_spawns_is_its_own_also_when_it_comes_again(kernel: Kernel) -> None:
    with kernel.connect() as first:
        guest(first, **{"as": "regular", "level": "sandboxed"})
        spawned = first.call(SPAWN, {"name": "its-own", **CHILD})
        assert spawned["success"], spawned
        assert first.call(GET_PERMS, {"agent_id": spawned["id"]})["permissions"]["level"] == "sandboxed"

    with kernel.connect() as other, kernel.connect() as again:
        guest(other, **{"as": "stranger", "level": "sandboxed"})
        assert other.call(INSPECT, {"name": "its-own"})["code"] == "permission_denied"
        guest(again, **{"as": "regular", "level": "sandboxed"})
        assert again.call(INSPECT, {"name": "its-own"})["success"]
        assert again.call(KILL, {"name": "its-own", "grace": 0})["killed"]


@pytest.mark.parametrize(
    "beyond",
    [
        {"isolation": "none"},
        {"sandboxed": False},
        {"network": True},
        {"network": "host"},
        {"permissions": "unrestricted"},
        {"workspace": "keep"},
        {"workspace": "/srv"},
        {"code": "/srv"},
        {"python": "/usr/bin/python3"},
    ],
    ids=str,
)
def test_it_cannot_spawn_what_has_more_than_itself(wire: Wire, beyond: dict[str, Any]) -> None:
    guest(wire, **{"as": "greedy", "level": "sandboxed"})

    reply = wire.call(SPAWN, {"name": "more", **CHILD, **beyond})

    assert reply["code"] == "permission_denied"
    assert next(iter(beyond)).replace("sandboxed", "isolation") in reply["error"]


@pytest.mark.parametrize(
    "place",
    [{"script": "/etc/hostname"}, {"script": "/nowhere.py"}, {"command": ["/etc/hostname"]}],
    ids=str,
)
def test_it_cannot_name_places_of_the_hosts_that_it_has_no_grant_for(wire: Wire, place: dict[str, Any]) -> None:
    guest(wire, **{"as": "curious", "level": "sandboxed"})

    reply = wire.call(SPAWN, {"name": "peek", **place})

    assert reply["code"] == "permission_denied", reply


def test_a_link_leads_it_nowhere_that_it_has_no_grant_for(kernel: Kernel, wire: Wire) -> None:
    pub, secret = kernel.place / "pub", kernel.place / "secret"
    for directory in (pub, secret):
        directory.mkdir()
        (directory / "s.py").write_text("import time\ntime.sleep(1000)")
    (pub / "link.py").symlink_to(secret / "s.py")
    guest(wire, **{"as": "linked", "permissions": {"level": "sandboxed", "allow": {"read": [f"{pub}/**"]}}})

    refused = wire.call(SPAWN, {"name": "led", "script": str(pub / "link.py")})
    assert refused["code"] == "permission_denied"
    assert "secret" not in refused["error"]
    assert wire.call(SPAWN, {"name": "straight", "script": str(pub / "s.py")})["success"]


def test_a_script_that_becomes_a_link_while_its_spawn_waits_for_the_audit_log_is_refused(
    tmp_path: Path, wire: Wire
) -> None:
    pub, secret = tmp_path / "pub", tmp_path / "secret.py"
    pub.mkdir()
    becomes = {1001: ("symlink", Path.symlink_to), 1002: ("hard-link", Path.hardlink_to)}
    scripts = {number: pub / f"{how}.py" for number, (how, _) in becomes.items()}
    for script in (secret, *scripts.values()):
        script.write_text("import time\ntime.sleep(1000)")
    grants = {"level": "sandboxed", "allow": {"read": [f"{pub}/**"], "write": [f"{pub}/**"]}}
    guest(wire, **{"as": "patient", "permissions": grants})
    wire.hello()

    use_up_burst(wire)
    wire.write(b"".join(frame(EXEC, {"command": ["true"]}, n) for n in range(1, 201)))
    for number, script in scripts.items():
        wire.send(SPAWN, {"name": script.stem, "script": str(script)}, number)
    early = wire.replies(20)
    for number, (_, make) in becomes.items():
        scripts[number].unlink()
        make(scripts[number], secret)
    late = {reply.id: reply.json for reply in wire.replies(200 + len(scripts) - 20)}

    for number, (how, _) in becomes.items():
        assert number not in [reply.id for reply in early]
        assert late[number]["code"] == "permission_denied", (how, late[number])
        assert "secret" not in late[number]["error"]


def test_two_guests_of_a_name_give_no_more_than_each_holds(kernel: Kernel) -> None:
    grants = {"level": "sandboxed", "allow": {"read": ["/etc/**"]}}
    with kernel.connect() as wide, kernel.connect() as narrow:
        guest(wide, **{"as": "twin", "level": "unrestricted"})
        agent = wide.call(SPAWN, {"name": "twins-agent", **CHILD})["id"]
        guest(narrow, **{"as": "twin", "level": "sandboxed"})

        assert narrow.call(SET_PERMS, {"agent_id": agent, "permissions": grants})["success"]
        with kernel.connect_as(agent) as wire:
            assert wire.call(READ, {"path": "/etc/hostname"})["code"] == "permission_denied"

        assert wide.call(SET_PERMS, {"agent_id": agent, "permissions": grants})["success"]
        with kernel.connect_as(agent) as wire:
            assert wire.call(READ, {"path": "/etc/hostname"})["success"]


def test_its_name_is_none_of_the_kernels_own(kernel: Kernel) -> None:
    for name in ("kernel", "root", "operator"):
        with kernel.connect() as wire:
            assert wire.call(HELLO, {"as": name})["code"] == "already_exists"


def test_it_cannot_go_by_the_name_of_an_agent(kernel: Kernel, wire: Wire) -> None:
    kernel.spawn("somebody")

    assert wire.call(HELLO, {"as": "somebody"})["code"] == "already_exists"
    assert wire.call(HELLO, {"as": "no name"})["code"] == "bad_request"


def test_an_agent_is_no_guest(kernel: Kernel) -> None:
    agent = kernel.spawn("host")

    with kernel.connect_as(agent) as wire:
        assert wire.call(HELLO, {"as": "guest"})["code"] == "permission_denied"


def test_guests_get_messages_by_their_names(kernel: Kernel, wire: Wire) -> None:
    guest(wire, **{"as": "mailbox", "level": "minimal"})
    with kernel.connect() as operator:
        assert operator.call(SEND, {"to_name": "mailbox", "message": "hello"})["success"]

    assert wire.call(RECV, {"timeout": PATIENCE})["messages"][0]["message"] == "hello"
    wire.send(EXIT)
    assert wire.receive().body == b"goodbye"


def test_one_connection_at_a_time_has_the_kept_mailbox_of_a_guests_name(kernel: Kernel, wire: Wire) -> None:
    kept = {"as": "sole", "mailbox": "kept"}
    with kernel.connect() as first, kernel.connect() as operator:
        guest(first, **kept)
        guest(first, **kept)
        assert wire.call(HELLO, kept)["code"] == "busy"
        assert operator.call(SEND, {"to_name": "sole", "message": "for the first"})["success"]
        guest(wire, **{"as": "sole"})
        assert wire.call(RECV)["count"] == 0, "one of its own, in memory"

        first.send(EXIT)
        gone = {"to_name": "sole", "message": "for none"}
        until(lambda: operator.call(MAIL, {"name": "sole"})["success"] is False, "the first has ended")
        assert operator.call(SEND, gone)["code"] == "not_found"
        guest(wire, **kept)
        assert operator.call(SEND, {"to_name": "sole", "message": "for the other"})["success"]
        assert [one["message"] for one in wire.call(RECV, {"max": 2})["messages"]] == ["for the first", "for the other"]


def test_no_connection_of_a_guest_adds_to_its_kept_mailbox_beyond_the_limit(kernel: Kernel, wire: Wire) -> None:
    kept = {"as": "greedy", "mailbox": "kept"}
    with kernel.connect() as first:
        guest(first, **{"as": "greedy"})
        for _ in range(MAX_MESSAGES):
            assert first.call(SEND, {"to_name": "greedy", "message": 0})["success"]
        guest(first, **kept)
        first.send(EXIT)
    until(lambda: wire.call(MAIL, {"name": "greedy"})["success"] is False, "the first has ended")

    assert wire.call(SEND, {"to": wire.call(HELLO)["agent_id"], "message": 1})["success"]
    refused = wire.call(HELLO, kept)
    assert (refused["code"], "read them first" in refused["error"]) == ("busy", True)
    assert wire.call(GET_PERMS)["permissions"]["level"] == "unrestricted", "nothing has changed"
    assert [one["message"] for one in wire.call(RECV)["messages"]] == [1]
    guest(wire, **kept)
    assert wire.call(MAIL, {"name": "greedy"})["count"] == MAX_MESSAGES


def test_a_kept_mailbox_is_a_named_guests(kernel: Kernel, wire: Wire) -> None:
    agent = kernel.spawn("keeper")
    with kernel.connect_as(agent) as own:
        assert own.call(HELLO, {"mailbox": "memory"})["success"]
        assert own.call(HELLO, {"mailbox": "kept"})["code"] == "permission_denied"
        assert own.call(HELLO, {"as": "visitor", "mailbox": "kept"})["code"] == "permission_denied"
    for wrong in ({}, {"level": "minimal"}, {"as": "two words"}, {"as": "operator#7"}):
        reply = wire.call(HELLO, {**wrong, "mailbox": "kept"})
        assert reply["code"] == "bad_request", (wrong, reply)
    for taken in ("keeper", "operator"):
        assert wire.call(HELLO, {"as": taken, "mailbox": "kept"})["code"] == "already_exists"
    assert wire.call(GET_PERMS)["permissions"]["level"] == "unrestricted", "it is still the operator's"


def test_its_agents_have_no_more_than_the_defaults(kernel: Kernel, wire: Wire) -> None:
    guest(wire, **{"as": "bounded", "level": "sandboxed"})

    agent = wire.call(SPAWN, {"name": "huge", **CHILD, "limits": {"memory": "100G", "max_pids": 4000}})["id"]

    limits = wire.call(INSPECT, {"id": agent})["limits"]
    assert (limits["memory"], limits["max_pids"]) == (512 << 20, 64)


def test_an_operator_that_becomes_a_guest_narrows_the_agents_it_spawned(kernel: Kernel, wire: Wire) -> None:
    agent = wire.call(SPAWN, {"name": "spawned-before", **CHILD})["id"]
    guest(wire, level="readonly")

    with kernel.connect_as(agent) as inside:
        assert inside.call(SPAWN, {"name": "below", **CHILD})["code"] == "permission_denied"


def test_a_guest_cant_take_the_name_that_an_agent_has_registered(kernel: Kernel, wire: Wire) -> None:
    agent = kernel.spawn("imposter")
    with kernel.connect_as(agent) as inside:
        assert inside.call(REGISTER, {"name": "deploy-bot"})["success"]

    assert wire.call(HELLO, {"as": "deploy-bot"})["code"] == "already_exists"


def test_what_a_guest_spawned_may_write_to_it_also_on_its_next_connection(kernel: Kernel, wire: Wire) -> None:
    with kernel.connect() as first:
        guest(first, **{"as": "boss"})
        child = first.call(SPAWN, {"name": "reporter", "permissions": "minimal", **CHILD})["id"]
    with kernel.connect() as again, kernel.connect() as other, kernel.connect_as(child) as below:
        guest(other, **{"as": "another"})
        # Until its former connection has ended, that one has the mailbox of the name.
        number = guest(again, **{"as": "boss"})["agent_id"]
        assert below.call(SEND, {"to": number, "message": "done"})["success"]
        assert again.call(RECV, {"timeout": PATIENCE})["messages"][0]["message"] == "done"
        assert below.call(SEND, {"to_name": "another", "message": "done"})["code"] == "permission_denied"
        wire.call(KILL, {"id": child})
