"""SUBSCRIBE, UNSUBSCRIBE, POLL_EVENTS and EMIT: what comes, in which order, to whom, and what is said of the rest."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import Connect, StartKernel
from tests.support.kernel import Kernel, until
from tests.support.wire import (
    CANCEL,
    CHUNK,
    DELETE,
    EMIT,
    HELLO,
    KEYS,
    NOOP,
    PATIENCE,
    POLL_EVENTS,
    SEND,
    SET_PERMS,
    SPAWN,
    STORE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Wire,
)
from tests.system.agents import up

SLEEP = ["sleep", "1000"]
GRANTED = {"level": "sandboxed", "allow": {"state_read": ["plan.*"], "state_write": ["*"], "events": ["w-*"]}}
STREAM = 9  # the request's id


def subscribe(wire: Wire, *types: str, **more: object) -> Any:
    return up(wire.call(SUBSCRIBE, {"event_types": types or ["*"], **more}))


def poll(wire: Wire, **more: object) -> list[dict[str, Any]]:
    """What has come; nothing may be missed."""
    page = up(wire.call(POLL_EVENTS, {"max": 1000, **more}))
    assert (page["count"], page["missed"]) == (len(page["events"]), 0)
    return list(page["events"])


def types(wire: Wire, **more: object) -> list[str]:
    return [event["type"] for event in poll(wire, **more)]


def emit(wire: Wire, kind: str = "CUSTOM", data: object = None) -> int:
    """The number of callers that it reaches."""
    given = {"data": data} if data is not None else {}
    return int(up(wire.call(EMIT, {"event_type": kind, **given}))["delivered_to"])


def stream(wire: Wire, *kinds: str, **more: object) -> Any:
    """Begin a stream; its first frame."""
    wire.hello()
    first = wire.ask(SUBSCRIBE, {"event_types": kinds or ["*"], "stream": True, **more}, STREAM)
    assert (first.op, first.id) == (CHUNK, STREAM), first
    return first.json


def code(reply: Any) -> str:
    return "ok" if reply["success"] else str(reply["code"])


@contextlib.contextmanager
def agent(kernel: Kernel, client: AgentOSClient, name: str, **more: object) -> Iterator[Wire]:
    """A connection that acts as a new agent; the agent is ended behind it."""
    number = kernel.spawn(name, SLEEP, **more)
    with kernel.connect_as(number) as wire:
        yield wire
    client.kill(agent_id=number, grace=0)


# -- Order and numbers -------------------------------------------------------------------------------------------------


def test_events_come_before_the_reply_to_what_caused_them(kernel: Kernel, client: AgentOSClient, wire: Wire) -> None:
    subscribe(wire)
    up(wire.call(STORE, {"key": "k", "value": {"secret": "s3cr3t"}}))
    assert types(wire) == ["STATE_CHANGED"]
    up(wire.call(DELETE, {"key": "k"}))
    [changed] = poll(wire)
    assert (changed["type"], changed["data"]["key"], changed["data"]["deleted"]) == ("STATE_CHANGED", "k", True)
    with agent(kernel, client, "w"):
        kinds = types(wire)
        assert kinds.index("AGENT_SPAWNED") < kinds.index("AGENT_READY")
        client.send_message({"text": "s3cr3t"}, to_name="w")
        [received] = poll(wire)
        assert received["type"] == "MESSAGE_RECEIVED"
        assert "s3cr3t" not in str(received)


def test_numbers_have_no_gaps(kernel: Kernel, client: AgentOSClient, wire: Wire) -> None:
    begun = subscribe(wire)
    for number in range(300):
        emit(wire, "custom.n", number)
        client.store(f"n.{number % 7}", number)

    events = poll(wire)

    assert [event["seq"] for event in events] == list(range(begun["seq"] + 1, begun["seq"] + 601))
    assert [event["data"] for event in events if event["type"] == "custom.n"] == list(range(300))
    assert {event["boot"] for event in events} == {begun["boot"]}
    for number in range(7):
        client.delete(f"n.{number}")


def test_since_gets_again_what_was_got(wire: Wire) -> None:
    begun = subscribe(wire, "custom.*")
    for number in range(5):
        emit(wire, "custom.x", number)

    assert [event["data"] for event in poll(wire)] == [0, 1, 2, 3, 4]
    assert poll(wire) == []
    assert [event["data"] for event in poll(wire, since=begun["seq"] + 2)] == [2, 3, 4]
    assert [event["data"] for event in poll(wire, since=begun["seq"] + 2, boot=begun["boot"])] == [2, 3, 4]
    page = up(wire.call(POLL_EVENTS, {"since": 2, "boot": "another"}))
    assert page["boot_changed"]
    assert code(wire.call(POLL_EVENTS, {"boot": "x"})) == "bad_request"


def test_a_poll_waits_for_the_first_event(wire: Wire, connect: Connect) -> None:
    other = connect()
    subscribe(wire, "custom.late")
    wire.send(POLL_EVENTS, {"timeout": PATIENCE})
    assert wire.is_silent()
    emit(other, "custom.other")
    assert wire.is_silent()

    emit(other, "custom.late", 7)

    assert [event["data"] for event in wire.receive().json["events"]] == [7]
    assert up(wire.call(POLL_EVENTS, {"timeout": 0.05}))["count"] == 0


# -- Restarts ----------------------------------------------------------------------------------------------------------


def test_since_over_an_orderly_restart_loses_nothing(start_kernel: StartKernel) -> None:
    kernel = start_kernel()
    with kernel.connect() as wire:
        begun = subscribe(wire)
        for number in range(20):
            emit(wire, "custom.x", number)
    kernel.stop()
    kernel.start_again()
    with kernel.connect() as wire:
        again = subscribe(wire, "custom.x", since=begun["seq"] + 5)
        events = poll(wire)

    assert again["boot"] != begun["boot"]
    assert (again["boot_changed"], again["cut_off"], again["missed"]) == (True, False, 0)
    assert [event["data"] for event in events] == list(range(5, 20))
    assert {event["boot"] for event in events} == {begun["boot"]}


def test_since_over_a_kill_says_that_the_kernel_changed(start_kernel: StartKernel) -> None:
    kernel = start_kernel()
    with kernel.connect() as wire:
        begun = subscribe(wire)
        for number in range(20):
            emit(wire, "custom.x", number)
        last = poll(wire)[-1]["seq"]
        time.sleep(0.5)  # these are written
        for number in range(20, 40):
            emit(wire, "custom.x", number)
        kernel.kill()
    kernel.start_again()
    with kernel.connect() as wire:
        page = stream(wire, "custom.x", "KERNEL_STARTED", since=last)
        assert (page["boot_changed"], page["cut_off"]) == (True, True)
        assert page["boot"] != begun["boot"]
        events = list[Any]()
        while not events or events[-1]["type"] != "KERNEL_STARTED":
            events += wire.receive().json["events"]
    survived = [event["data"] for event in events[:-1]]
    assert survived == list(range(20, 20 + len(survived)))
    assert events[-1]["seq"] > last + 20
    with kernel.connect() as wire:
        subscribe(wire, "custom.x", since=0)
        assert [event["data"] for event in poll(wire)][:20] == list(range(20))


def test_an_agent_does_not_see_what_one_with_its_id_did_before_the_restart(start_kernel: StartKernel) -> None:
    kernel = start_kernel()
    first = kernel.spawn("w")
    with kernel.connect_as(first) as wire:
        emit(wire, "custom.mine", "s3cr3t")
    kernel.stop()
    kernel.start_again()
    second = kernel.spawn("w")
    while second < first:
        second = kernel.spawn(f"w{second}")
    with kernel.connect_as(second) as wire:
        assert subscribe(wire, "custom.*", since=0)["boot_changed"] is False
        assert poll(wire) == []
        assert subscribe(wire, "custom.*", since=1)["boot_changed"] is True
        assert poll(wire) == []


# -- Who sees what -----------------------------------------------------------------------------------------------------


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


def test_nobody_emits_in_anothers_name_or_as_the_kernel(kernel: Kernel, client: AgentOSClient, wire: Wire) -> None:
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


# -- Bounds ------------------------------------------------------------------------------------------------------------


def test_subscriptions_are_bounded_and_end(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "w") as worker:
        for number in range(32):
            subscribe(worker, f"custom.n{number}")
            subscribe(worker, "custom.n0")
        assert code(worker.call(SUBSCRIBE, {"event_types": ["custom.more"]})) == "quota_exceeded"
        ended = up(worker.call(UNSUBSCRIBE, {"event_types": ["custom.n0", "custom.n1", "AGENT_*"]}))
        assert ended["unsubscribed"] == ["custom.n0", "custom.n1"]
        subscribe(worker, "custom.more")
        emit(worker, "custom.n0")
        emit(worker, "custom.n2")
        assert types(worker) == ["custom.n2"]
        assert len(up(worker.call(UNSUBSCRIBE, {"all": True}))["unsubscribed"]) == 31
        assert poll(worker) == []
        assert code(worker.call(POLL_EVENTS, {"timeout": 1})) == "bad_request"
        assert code(worker.call(UNSUBSCRIBE, {})) == "bad_request"


def test_an_agent_emits_no_faster_than_its_rate(kernel: Kernel, client: AgentOSClient, wire: Wire) -> None:
    with agent(kernel, client, "loud") as loud:
        begin = time.monotonic()
        replies = [loud.call(EMIT, {"event": "CUSTOM"}) for _ in range(1000)]
        took = time.monotonic() - begin
        allowed = sum(reply["success"] for reply in replies)

        assert allowed <= 500 + 100 * took + 1
        assert {code(reply) for reply in replies} <= {"ok", "quota_exceeded"}
        child = up(loud.call(SPAWN, {"name": "louder", "command": SLEEP}))["id"]
        with kernel.connect_as(child) as louder:
            assert "quota_exceeded" in {code(louder.call(EMIT, {"event": "CUSTOM"})) for _ in range(200)}
        for _ in range(1000):
            emit(wire)


@pytest.mark.parametrize(
    "request_",
    [
        {"event_types": []},
        {"event_types": ["AGENT_EXITD"]},
        {"event_types": ["*AGENT"]},
        {"event_types": ["*"] * 101},
        {"event_types": ["*"], "agents": list(range(101))},
        {"event_types": ["*"], "prefix": "\x00"},
        {"event_types": ["*"], "since": -1},
        {"event_types": ["*"], "stream": True},
        {"event_types": ["*"], "boot": "x"},
        {},
    ],
    ids=str,
)
def test_a_wrong_request_is_refused(wire: Wire, request_: object) -> None:
    assert code(wire.call(SUBSCRIBE, request_)) == "bad_request"


# -- Streams and connections -------------------------------------------------------------------------------------------


def test_a_stream_begins_at_once_and_ends_by_cancel(connect: Connect) -> None:
    streaming, other = connect(), connect()
    first = stream(streaming, "custom.*")
    assert (first["events"], first["subscribed"]) == ([], ["custom.*"])
    sent = 500
    for number in range(sent):
        emit(other, "custom.x", number)

    got, frames = list[int](), 0
    while len(got) < sent:
        frame = streaming.receive().json
        assert frame["missed"] == 0
        got, frames = [*got, *(event["data"] for event in frame["events"])], frames + 1
    assert got == list(range(sent))
    assert frames < sent / 2
    streaming.send(CANCEL, {"id": STREAM}, 10)
    replies = {reply.id: reply.json for reply in streaming.replies(2)}
    assert replies[STREAM]["code"] == "cancelled"
    assert emit(other, "custom.x") == 0


def test_what_an_ended_connection_wanted_is_forgotten(kernel: Kernel, client: AgentOSClient, wire: Wire) -> None:
    for _ in range(20):
        with kernel.connect() as gone, kernel.connect() as streaming:
            subscribe(gone, "custom.*")
            gone.send(POLL_EVENTS, {"timeout": 1000})
            stream(streaming, "custom.*")
    with agent(kernel, client, "w") as worker:
        subscribe(worker, "custom.*")
        until(lambda: emit(wire, "custom.x") == 1, "only the agent is left")
    until(lambda: emit(wire, "custom.x") == 0, "the agent has ended")


def test_a_life_begins_without_the_subscriptions_of_the_one_before(start_kernel: StartKernel) -> None:
    kernel = start_kernel()
    number = kernel.spawn("w", restart="permanent", backoff={"first": "10ms"})
    with kernel.connect() as wire, kernel.connect_as(number) as worker:
        subscribe(worker, "custom.*")
        assert emit(wire, "custom.x") == 1
        with kernel.client() as client:
            client.restart("w")
        assert emit(wire, "custom.x") == 0


def test_a_reader_that_stops_loses_the_oldest_and_harms_no_other(start_kernel: StartKernel) -> None:
    kernel = start_kernel()
    with kernel.connect() as wire, kernel.connect() as stopped, kernel.connect() as reading:
        stream(stopped, "custom.*")
        stream(reading, "custom.last")
        for number in range(12_000):
            wire.send(EMIT, {"event_type": "custom.x", "data": [number, "x" * 100]})
            if not number % 100:
                wire.replies(100 if number else 1)
        wire.replies(99)
        begin = time.monotonic()
        emit(wire, "custom.last")
        assert reading.receive().json["events"][0]["type"] == "custom.last"
        assert time.monotonic() - begin < PATIENCE / 2

        got, missed = 0, 0
        while got + missed < 12_001:
            frame = stopped.receive()
            got, missed = got + frame.json["count"], missed + frame.json["missed"]
            assert len(frame.body) < 32 << 10
        assert got + missed == 12_001
        assert missed > 0


def test_the_original_client_polls_what_it_has_emitted(wire: Wire) -> None:
    up(wire.call(SUBSCRIBE, {"event_types": ["CUSTOM", "AGENT_SPAWNED"]}))
    up(wire.call(EMIT, {"event": "CUSTOM", "data": {"n": 1}}))
    reply = up(wire.call(POLL_EVENTS, {"max": 10}))

    assert [(event["type"], event["data"]) for event in reply["events"]] == [("CUSTOM", {"n": 1})]
    assert {"source_agent_id", "age_ms"} <= set(reply["events"][0])
    assert up(wire.call(UNSUBSCRIBE, {"event_types": ["CUSTOM"]}))["unsubscribed"] == ["CUSTOM"]


def test_a_caller_that_reads_everything_again_and_again_holds_up_no_other(kernel: Kernel, wire: Wire) -> None:
    for _ in range(300):
        emit(wire, "custom.old", "x" * 100)
    with kernel.connect() as hostile:
        hostile.hello()
        for number in range(1, 31):
            body = {"event_types": ["custom.none", "custom.n*"], "since": 0, "stream": True}
            hostile.send(SUBSCRIBE, body, number)
        up(reply_to(hostile, 40, SUBSCRIBE, {"event_types": ["custom.none"]}))
        for number in range(100, 200):
            hostile.send(POLL_EVENTS, {"since": 0, "timeout": 100}, number)
        assert wire.ask(NOOP, b"still here").body == b"still here"
        assert emit(wire, "custom.none") == 1
        assert emit(wire, "custom.other") == 0


def reply_to(wire: Wire, number: int, op: int, body: object) -> Any:
    """The reply to a request among the frames of streams."""
    wire.send(op, body, number)
    while (reply := wire.receive()).id != number:
        pass
    return reply.json


def test_a_message_to_a_full_mailbox_is_no_event(kernel: Kernel, client: AgentOSClient, wire: Wire) -> None:
    with agent(kernel, client, "full"):
        for _ in range(1000):
            up(wire.call(SEND, {"to_name": "full", "message": 1}))
        subscribe(wire, "MESSAGE_RECEIVED")
        assert code(wire.call(SEND, {"to_name": "full", "message": 1})) == "busy"
        assert poll(wire) == []


def test_what_narrows_itself_sees_no_more(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "w", permissions=GRANTED) as worker, agent(kernel, client, "w-3") as other:
        subscribe(worker, "custom.*")
        emit(other, "custom.x")
        up(worker.call(SET_PERMS, {"level": "sandboxed"}))
        emit(other, "custom.x")

        assert poll(worker) == []
