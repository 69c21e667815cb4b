"""Which events a caller sees: its own, its descendants', what rules grant, and nothing else."""

import json

from agentos_sdk import AgentOSClient
from tests.conftest import Connect
from tests.support.kernel import Kernel, until
from tests.support.wire import (
    CHUNK,
    DELETE,
    EMIT,
    HELLO,
    KEYS,
    LIST,
    SET_PERMS,
    SPAWN,
    STORE,
    SUBSCRIBE,
    Wire,
)
from tests.system.agents import in_state, up
from tests.system.event_calls import GRANTED, SLEEP, STREAM, agent, code, emit, poll, stream, subscribe, types


def test_an_agent_sees_itself_and_its_subtree_and_no_sibling(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "boss") as boss, agent(kernel, client, "other") as other:
        for each in (boss, other):
            subscribe(each)
        child = int(up(boss.call(SPAWN, {"name": "child", "command": SLEEP}))["id"])
        with kernel.connect_as(child) as below:
            subscribe(below)
            emit(below, "custom.low")
            up(below.call(STORE, {"key": "own", "value": 1, "scope": "agent"}))
            emit(boss, "custom.high")
            emit(other, "custom.other")

            assert types(below) == ["custom.low", "STATE_CHANGED", "custom.high"]
            seen = poll(boss)
            assert {event["source_agent_id"] for event in seen} == {child, seen[-1]["source_agent_id"]}
            assert [event["type"] for event in seen][-2:] == ["custom.low", "custom.high"]
            assert "AGENT_READY" in [event["type"] for event in seen]
            assert types(other) == ["custom.other"]
        reply = other.call(SUBSCRIBE, {"event_types": ["*"], "agents": ["child"]})
        assert (code(reply), "no rule" in reply["error"]) == ("permission_denied", True)
        assert code(other.call(SUBSCRIBE, {"event_types": ["*"], "agents": [child]})) == "permission_denied"
        assert code(boss.call(SUBSCRIBE, {"event_types": ["*"], "agents": ["child"]})) == "ok"


def test_rules_grant_events_of_others_by_name_and_of_global_keys(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "reader", permissions=GRANTED) as reader, agent(kernel, client, "blind") as blind:
        for each in (reader, blind):
            subscribe(each)
        with agent(kernel, client, "w-1") as one, agent(kernel, client, "x-1") as two:
            emit(one, "custom.one")
            emit(two, "custom.two")
            client.store("plan.a", 1)
            client.store("other", 1)

            seen = poll(reader)
            names = {event["data"]["name"] for event in seen if "name" in event["data"]}
            assert names == {"w-1"}
            assert [event["data"]["key"] for event in seen if event["type"] == "STATE_CHANGED"] == ["plan.a"]
            assert "custom.one" in [event["type"] for event in seen]
            assert "custom.two" not in [event["type"] for event in seen]
            assert poll(blind) == []
    for key in ("plan.a", "other"):
        client.delete(key)


def test_what_the_operator_emits_reaches_every_agent(kernel: Kernel, client: AgentOSClient, wire: Wire) -> None:
    with agent(kernel, client, "one") as one, agent(kernel, client, "two") as two:
        for each in (one, two):
            subscribe(each, "custom.*")

        assert emit(wire, "custom.all") == 2
        assert types(one) == types(two) == ["custom.all"]


def test_no_agent_emits_in_anothers_name_or_as_the_kernel(kernel: Kernel, client: AgentOSClient, wire: Wire) -> None:
    subscribe(wire)
    with agent(kernel, client, "liar") as liar:
        number = client.inspect("liar")["id"]
        poll(wire)
        for kind in (
            "AGENT_EXITED",
            "KERNEL_STARTED",
            "custom.",
            "custom.a b",
            "custom.*",
            "CUSTOMS",
            "custom." + "x" * 65,
        ):
            assert code(liar.call(EMIT, {"event_type": kind})) == "bad_request", kind
        assert code(liar.call(EMIT, {"event": "CUSTOM", "source_agent_id": 1})) == "bad_request"
        assert code(liar.call(EMIT, {"event": "CUSTOM", "data": "x" * (16 << 10)})) == "bad_request"
        emit(liar, "CUSTOM", {"type": "AGENT_EXITED", "source_agent_id": 1, 'x","source_agent_id":1,"': "\n"})

        [event] = poll(wire)
        assert (event["type"], event["source_agent_id"]) == ("CUSTOM", number)


def test_a_guest_sees_nothing_of_others_also_where_it_was_the_operator(
    kernel: Kernel, client: AgentOSClient, connect: Connect
) -> None:
    begun, guest, late = connect(), connect(), connect()
    subscribe(begun)
    up(guest.call(HELLO, {"as": "ada"}))
    up(begun.call(HELLO, {"as": "bea", "level": "unrestricted"}))
    up(late.call(HELLO, {"as": "ada"}))
    subscribe(guest)
    subscribe(late)
    with agent(kernel, client, "w") as worker:
        emit(worker, "custom.x")
        client.store("k", 1)
        spawned = up(guest.call(SPAWN, {"name": "own", "command": SLEEP, "sandboxed": True}))["id"]

        assert "custom.x" in types(begun)  # `unrestricted` grants all events
        for one in (guest, late):
            assert {event["data"]["name"] for event in poll(one)} == {"own"}
    client.kill(agent_id=spawned, grace=0)
    client.delete("k")
    up(begun.call(HELLO, {"level": "sandboxed"}))
    emit(guest, "custom.y")
    assert poll(begun) == []


def test_a_guest_that_was_the_operator_does_not_see_the_keys_of_the_operator(connect: Connect) -> None:
    operator, guest = connect(), connect()
    for one in (operator, guest):
        up(one.call(STORE, {"key": "own", "value": 1, "scope": "session"}))
    up(guest.call(HELLO, {"as": "eve"}))
    subscribe(guest)

    up(operator.call(STORE, {"key": "secret-plan", "value": 1, "scope": "agent"}))
    assert poll(guest) == []
    up(guest.call(STORE, {"key": "mine", "value": 1, "scope": "session"}))
    assert [event["data"]["key"] for event in poll(guest)] == ["mine"]
    assert up(guest.call(KEYS, {"scope": "session"}))["keys"] == ["mine"]
    up(operator.call(DELETE, {"key": "secret-plan", "scope": "agent"}))


def test_each_connection_of_a_guest_owns_its_changes_and_sees_those_of_the_shared_keys(connect: Connect) -> None:
    operator, one, other = connect(), connect(), connect()
    for wire in (one, other):
        up(wire.call(HELLO, {"as": "ada", "level": "sandboxed"}))
    for wire in (operator, one, other):
        subscribe(wire, "STATE_CHANGED")
    for wire in (one, other):
        for scope in ("session", "agent"):
            up(wire.call(STORE, {"key": f"{scope}-key", "value": 1, "scope": scope}))

    first, _, second, _ = (event["data"]["owner_id"] for event in poll(operator))
    shared = [("agent-key", first), ("agent-key", second)]
    assert owned_keys(one) == [("session-key", first), *shared]
    assert owned_keys(other) == [shared[0], ("session-key", second), shared[1]]

    other.socket.close()
    up(one.call(STORE, {"key": "agent-key", "value": 2, "scope": "agent"}))
    assert owned_keys(one) == [("agent-key", first)]


def owned_keys(wire: Wire) -> list[tuple[str, int]]:
    return [(event["data"]["key"], event["data"]["owner_id"]) for event in poll(wire)]


def test_all_connections_and_agents_of_a_guest_are_one_family_of_the_ring(
    kernel: Kernel, client: AgentOSClient, connect: Connect
) -> None:
    one, other = connect(), connect()
    for wire in (one, other):
        up(wire.call(HELLO, {"as": "flood", "permissions": GRANTED | {"level": "standard"}}))
        up(wire.call(STORE, {"key": "plan.flood", "value": 1}))
        emit(wire, "custom.flood")
    spawned = int(up(one.call(SPAWN, {"name": "flooded", "command": SLEEP}))["id"])
    with kernel.connect_as(spawned) as wire:
        emit(wire, "custom.flood")
        up(wire.call(STORE, {"key": "flood", "value": 1, "scope": "agent"}))
        client.kill(agent_id=spawned, grace=0)

    def families() -> list[str]:
        text = "".join(file.read_text() for file in (kernel.state_dir / "events").iterdir())
        lines = [json.loads(line) for line in text.rpartition("\n")[0].splitlines() if line]
        return [
            line["share"][0]
            for line in lines
            if line.get("type") == "custom.flood" or "flood" in (line.get("key") or "")
        ]

    until(lambda: len(families()) == 6, "the log's file has them")
    assert set(families()) == {"guest flood"}
    up(client.delete("plan.flood"))


def test_rules_that_change_end_a_stream_and_hide_what_has_come(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "w", permissions=GRANTED) as worker:
        number = client.inspect("w")["id"]
        with kernel.connect_as(number) as streaming, agent(kernel, client, "w-2") as other:
            subscribe(worker)
            stream(streaming, "custom.*")
            emit(other, "custom.before")
            assert streaming.receive().json["events"][0]["type"] == "custom.before"
            emit(other, "custom.hidden")
            client.set_permissions("sandboxed", agent_id=number)
            emit(other, "custom.after")
            emit(worker, "custom.own")

            seen = streaming.receive().json
            assert [event["type"] for event in seen["events"]] in (["custom.own"], ["custom.hidden"])
            assert [event["type"] for event in poll(worker) if event["source_agent_id"] != number] == []
            client.set_permissions({"level": "sandboxed", "deny": {"calls": ["SUBSCRIBE"]}}, agent_id=number)
            reply = streaming.receive()
            while reply.op == CHUNK:
                reply = streaming.receive()
            assert (reply.id, reply.op, reply.json["code"]) == (STREAM, SUBSCRIBE, "permission_denied")


def test_what_narrows_itself_sees_no_more(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "w", permissions=GRANTED) as worker, agent(kernel, client, "w-3") as other:
        subscribe(worker, "custom.*")
        emit(other, "custom.x")
        up(worker.call(SET_PERMS, {"level": "sandboxed"}))
        emit(other, "custom.x")

        assert poll(worker) == []


def test_why_an_agent_ended_is_told_where_its_events_are_seen(kernel: Kernel, client: AgentOSClient) -> None:
    for name in ("w-1", "x-1"):
        client.spawn(name, command=["sh", "-c", "exit 3"])  # which may be told as its reply, too
        in_state(client, name, "exited")
    with agent(kernel, client, "reader", permissions=GRANTED) as reader, agent(kernel, client, "blind") as blind:
        ends = {row["name"]: row["end"] for row in reader.call(LIST, {"all": True})}
        assert "exit status 3" in str(ends["w-1"])
        assert ends["x-1"] is None
        ends = {row["name"]: row["end"] for row in blind.call(LIST, {"all": True})}
        assert (ends["w-1"], ends["x-1"]) == (None, None)
