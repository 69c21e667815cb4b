"""Streams of SUBSCRIBE and connections that end: what they leave behind, and slow readers."""

from agentos_sdk import AgentOSClient
from tests.conftest import Connect
from tests.support.kernel import Kernel, until
from tests.support.wire import (
    CANCEL,
    EMIT,
    NOOP,
    POLL_EVENTS,
    SUBSCRIBE,
    Wire,
)
from tests.system.agents import up
from tests.system.event_calls import STREAM, agent, emit, reply_to, stream, subscribe


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


def test_a_life_begins_without_the_subscriptions_of_the_one_before(kernel: Kernel, client: AgentOSClient) -> None:
    number = kernel.spawn("w", restart="permanent", backoff={"first": "10ms"})
    with kernel.connect() as wire, kernel.connect_as(number) as worker:
        subscribe(worker, "custom.*")
        assert emit(wire, "custom.x") == 1
        client.restart("w")
        assert emit(wire, "custom.x") == 0


def test_a_reader_that_stops_loses_the_oldest_and_harms_no_other(kernel: Kernel) -> None:
    with kernel.connect() as wire, kernel.connect() as stopped, kernel.connect() as reading:
        stream(stopped, "custom.*")
        stream(reading, "custom.last")
        for number in range(12_000):
            wire.send(EMIT, {"event_type": "custom.x", "data": [number, "x" * 100]})
            if not number % 100:
                wire.replies(100 if number else 1)
        wire.replies(99)
        emit(wire, "custom.last")
        assert reading.receive().json["events"][0]["type"] == "custom.last"

        got, missed = 0, 0
        while got + missed < 12_001:
            frame = stopped.receive()
            got, missed = got + frame.json["count"], missed + frame.json["missed"]
            assert len(frame.body) < 32 << 10
        assert got + missed == 12_001
        assert missed > 0


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
