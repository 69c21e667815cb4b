"""SUBSCRIBE, UNSUBSCRIBE, POLL_EVENTS and EMIT: order and numbers of events, restarts of the kernel, and bounds."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.client import connect
from tests.conftest import Connect, OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.runs.rows import each_row
from tests.support.wire import (
    DELETE,
    EMIT,
    PATIENCE,
    POLL_EVENTS,
    SEND,
    SPAWN,
    STORE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Wire,
    frame,
)
from tests.system.agents import up
from tests.system.event_calls import SLEEP, agent, code, emit, poll, stream, subscribe, types

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


def test_since_over_an_orderly_restart_loses_nothing_and_shows_no_agent_what_one_with_its_id_did(
    own_kernel: OwnKernel,
) -> None:
    kernel = own_kernel()
    first = kernel.spawn("w")
    with kernel.connect_as(first) as wire:
        emit(wire, "custom.mine", "s3cr3t")
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

    second = kernel.spawn("w")
    while second < first:
        second = kernel.spawn(f"w{second}")
    with kernel.connect_as(second) as wire:
        assert subscribe(wire, "custom.*", since=0)["boot_changed"] is False
        assert poll(wire) == []
        assert subscribe(wire, "custom.*", since=1)["boot_changed"] is True
        assert poll(wire) == []


def test_since_over_a_kill_says_that_the_kernel_changed(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.connect() as wire:
        begun = subscribe(wire)
        for number in range(20):
            emit(wire, "custom.x", number)
        last = poll(wire)[-1]["seq"]
        files = kernel.state_dir / "events"
        until(lambda: any(f'"seq":{last},' in file.read_text() for file in files.iterdir()), "these are written")
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


def emit_hundred(wire: Wire) -> Sequence[dict[str, Any]]:
    """The replies to 100 events of an agent that doesn't wait for one before the next."""
    wire.write(frame(EMIT, {"event": "CUSTOM"}) * 100)
    return [reply.json for reply in wire.replies(100)]


def test_an_agent_emits_no_faster_than_its_rate(kernel: Kernel, client: AgentOSClient, wire: Wire) -> None:
    with agent(kernel, client, "loud") as loud:
        begin = time.monotonic()
        replies = [reply for _ in range(10) for reply in emit_hundred(loud)]
        took = time.monotonic() - begin
        allowed = sum(reply["success"] for reply in replies)

        assert allowed <= 500 + 100 * took + 1
        assert {code(reply) for reply in replies} <= {"ok", "quota_exceeded"}
        child = up(loud.call(SPAWN, {"name": "louder", "command": SLEEP}))["id"]
        with kernel.connect_as(child) as louder:
            more = [reply for _ in range(3) for reply in emit_hundred(louder)]
        assert allowed + sum(reply["success"] for reply in more) <= 500 + 100 * (time.monotonic() - begin) + 1
        for _ in range(1000):
            emit(wire)


@each_row(
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
def test_a_wrong_request_is_refused(kernel: Kernel, request_: object) -> None:
    with kernel.connect() as wire:
        assert code(wire.call(SUBSCRIBE, request_)) == "bad_request"


def test_a_caller_says_by_task_step_how_far_its_task_is(wire: Wire) -> None:
    up(wire.call(SUBSCRIBE, {"event_types": ["TASK_STEP"]}))
    up(wire.call(EMIT, {"event_type": "TASK_STEP", "data": {"step": 1}}))

    assert [(event["type"], event["data"]) for event in poll(wire)] == [("TASK_STEP", {"step": 1})]
    assert code(wire.call(EMIT, {"event_type": "AGENT_EXITED"})) == "bad_request"


async def test_data_as_deep_as_a_request_may_be_reach_a_subscriber_and_deeper_ones_are_refused(
    kernel: Kernel, wire: Wire
) -> None:
    def emit_nested(levels: int) -> Any:
        return wire.call(EMIT, b'{"event_type": "CUSTOM", "data": %b%b}' % (b"[" * levels, b"]" * levels))

    async with connect(kernel.socket) as subscriber:
        await subscriber.subscribe(["CUSTOM"])
        up(emit_nested(63))
        refused = emit_nested(64)
        up(emit_nested(1))

        events = (await subscriber.poll_events()).events

    assert [event.data for event in events] == [json.loads("[" * 63 + "]" * 63), []]
    assert (refused["code"], refused["error"]) == ("bad_request", "nested deeper than 64")


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (rb'"\ud800"', "\ufffd"),
        (rb'{"\udc00x": 1.5}', {"\ufffdx": 1.5}),
        (rb'["\uD83D \uDE00", "\ud83d\ude00"]', ["\ufffd \ufffd", "\U0001f600"]),
    ],
)
def test_half_a_surrogate_pair_in_data_is_replaced(wire: Wire, data: bytes, seen: object) -> None:
    subscribe(wire, "CUSTOM")
    up(wire.call(EMIT, b'{"event_type": "CUSTOM", "data": %b}' % data))

    [event] = poll(wire)
    assert event["data"] == seen


def test_data_with_escapes_of_a_whole_pair_or_of_a_backslash_is_emitted(wire: Wire) -> None:
    subscribe(wire, "CUSTOM")
    up(wire.call(EMIT, rb'{"event_type": "CUSTOM", "data": ["\ud83d\ude00", "\\ud800"]}'))

    assert [event["data"] for event in poll(wire)] == [["\U0001f600", "\\ud800"]]


def test_the_original_client_polls_what_it_has_emitted(wire: Wire) -> None:
    up(wire.call(SUBSCRIBE, {"event_types": ["CUSTOM", "AGENT_SPAWNED"]}))
    up(wire.call(EMIT, {"event": "CUSTOM", "data": {"n": 1}}))
    reply = up(wire.call(POLL_EVENTS, {"max": 10}))

    assert [(event["type"], event["data"]) for event in reply["events"]] == [("CUSTOM", {"n": 1})]
    assert {"source_agent_id", "age_ms"} <= set(reply["events"][0])
    assert up(wire.call(UNSUBSCRIBE, {"event_types": ["CUSTOM"]}))["unsubscribed"] == ["CUSTOM"]


def test_a_message_to_a_full_mailbox_is_no_event(kernel: Kernel, client: AgentOSClient, wire: Wire) -> None:
    with agent(kernel, client, "full"):
        wire.write(frame(SEND, {"to_name": "full", "message": 1}) * 1000)
        assert all(reply.json["success"] for reply in wire.replies(1000))
        subscribe(wire, "MESSAGE_RECEIVED")
        assert code(wire.call(SEND, {"to_name": "full", "message": 1})) == "busy"
        assert poll(wire) == []
