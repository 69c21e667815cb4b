"""Version 2: many requests in flight over one connection, each with an id of its own."""

import pytest

from tests.conftest import Connect
from tests.support.kernel import Kernel
from tests.support.runs.rounds import rounds
from tests.support.wire import (
    CANCEL,
    CHUNK,
    EXIT,
    HELLO,
    KILL,
    LIST,
    LOGS,
    NOOP,
    READ,
    RECV,
    SEND,
    WAIT,
    Wire,
    frame,
    settle,
)


@pytest.fixture
def two(wire: Wire) -> Wire:
    wire.hello()
    return wire


def test_hello_names_the_caller_and_what_the_connection_can_do(wire: Wire) -> None:
    own = wire.ask(NOOP).id

    welcome = wire.hello()

    assert welcome["protocol"] == 2
    assert welcome["agent_id"] == own
    assert welcome["features"]["streams"] is True
    assert isinstance(welcome["name"], str)


def test_the_version_changes_from_the_frame_after_hello_on_also_within_one_write(wire: Wire) -> None:
    own = wire.ask(NOOP).id

    wire.write(
        frame(NOOP, b"v1", 50)
        + frame(HELLO, {"protocol": 2}, 51)
        + frame(NOOP, b"v2", 52)
        + frame(RECV, {"timeout": 1000}, 53)
        + frame(NOOP, b"not held back", 54)
    )

    got = wire.replies(4)
    assert [(reply.id, reply.op) for reply in got] == [(own, NOOP), (own, HELLO), (52, NOOP), (54, NOOP)]


def test_hello_in_the_middle_of_a_write_waits_for_the_waiting_call_before_it(wire: Wire) -> None:
    wire.write(frame(RECV, {"timeout": 0.2}) + frame(HELLO, {"protocol": 2}) + frame(NOOP, b"", 9))

    assert [reply.op for reply in wire.replies(3)] == [RECV, HELLO, NOOP]


def test_replies_come_when_they_are_ready_each_with_its_requests_id(connect: Connect) -> None:
    two, other = connect(), connect()
    own = two.hello()["agent_id"]

    two.write(frame(RECV, {"timeout": 1000}, 1) + frame(RECV, {"timeout": 0.1}, 2) + frame(LIST, b"", 3))

    assert [two.receive().id, two.receive().id] == [3, 2]
    other.call(SEND, {"to": own, "message": 1})
    last = two.receive()
    assert last.id == 1
    assert last.json["count"] == 1


def test_any_32_bit_id_but_0_may_be_chosen(two: Wire) -> None:
    for number in (1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        assert two.ask(NOOP, b"x", number) == (number, NOOP, b"x")


def test_id_0_is_refused_and_nothing_else_happens(two: Wire) -> None:
    reply = two.ask(LIST, b"", 0)

    assert reply.id == 0
    assert reply.json["code"] == "bad_request"
    assert two.ask(NOOP, b"fine", 1).body == b"fine"


def test_an_id_in_flight_is_refused_and_the_first_call_goes_on(connect: Connect) -> None:
    two, other = connect(), connect()
    own = two.hello()["agent_id"]
    two.send(RECV, {"timeout": 1000}, 7)

    for op in (NOOP, RECV, LIST):
        assert two.call(op, b"{}", 7)["code"] == "bad_request"
    other.call(SEND, {"to": own, "message": "for the first"})

    assert two.receive().json["messages"][0]["message"] == "for the first"
    assert two.ask(NOOP, b"free again", 7) == (7, NOOP, b"free again")


def test_a_waiting_call_can_be_cancelled(two: Wire) -> None:
    two.send(RECV, {"timeout": 1000}, 7)
    two.send(CANCEL, {"id": 7}, 8)

    got = {reply.id: reply for reply in two.replies(2)}

    assert got[8].json == {"success": True, "cancelled": True}
    assert (got[7].op, got[7].json["code"]) == (RECV, "cancelled")
    assert two.ask(NOOP, b"free again", 7).body == b"free again"


def test_a_cancelled_recv_takes_no_message_with_it(connect: Connect) -> None:
    two, other = connect(), connect()
    own = two.hello()["agent_id"]
    two.write(frame(RECV, {"timeout": 1000}, 1) + frame(CANCEL, {"id": 1}, 2))
    two.replies(2)

    other.call(SEND, {"to": own, "message": "kept"})

    assert two.call(RECV, {}, 3)["messages"][0]["message"] == "kept"


@pytest.mark.parametrize("number", [3, 0, -1, 0xFFFFFFFF, 1 << 40])
def test_cancelling_what_is_finished_or_never_was_cancels_nothing(two: Wire, number: int) -> None:
    two.ask(NOOP, b"", 3)

    assert two.call(CANCEL, {"id": number}, 4) == {"success": True, "cancelled": False}


def test_a_call_cannot_be_cancelled_from_another_connection(connect: Connect) -> None:
    two, other = connect(), connect()
    two.hello()
    other.hello()
    two.send(RECV, {"timeout": 1000}, 7)

    assert other.call(CANCEL, {"id": 7}, 1)["cancelled"] is False
    assert two.is_silent()


@pytest.mark.parametrize("body", [{}, {"id": "7"}, {"id": None}, {"id": 7.0}])
def test_cancel_wants_an_id(two: Wire, body: object) -> None:
    reply = two.call(CANCEL, body, 1)

    assert reply["code"] == "bad_request"
    assert reply["error"].startswith("id: ")


def test_hello_again_is_fine_but_there_is_no_way_back(two: Wire) -> None:
    assert two.call(HELLO, {"protocol": 2}, 1)["protocol"] == 2
    assert two.call(HELLO, {"protocol": 1}, 2)["code"] == "bad_request"
    assert two.ask(NOOP, b"", 3).id == 3


def test_goodbye_is_the_last_word_even_when_calls_wait(connect: Connect) -> None:
    other = connect()
    for _ in range(10):
        two = connect()
        two.hello()
        two.write(frame(RECV, {"timeout": 1000}, 1) + frame(RECV, {"timeout": 1000}, 2))
        settle(other)

        two.send(EXIT, b"", 3)

        assert two.receive() == (3, EXIT, b"goodbye")
        assert two.ends()


def test_hundreds_of_waiting_calls_are_all_answered(connect: Connect) -> None:
    two, other = connect(), connect()
    own = two.hello()["agent_id"]
    two.write(b"".join(frame(RECV, {"max": 1, "timeout": 1000}, n) for n in range(1, 201)))

    for n in range(200):
        other.call(SEND, {"to": own, "message": n})
    got = two.replies(200)

    assert [reply.json["messages"][0]["message"] for reply in got] == list(range(200))
    assert sorted(reply.id for reply in got) == list(range(1, 201))


def test_a_number_is_refused_while_its_call_goes_on_also_to_frames_that_the_call_does_not_take(two: Wire) -> None:
    two.send(RECV, {"timeout": 1000}, 5)

    for op, number in ((CHUNK, 5), (NOOP, 5), (CHUNK, 0)):
        two.send(op, b"{}", number)
        reply = two.receive()
        assert (reply.id, reply.op, reply.json["code"]) == (number, op, "bad_request")
        assert reply.json["error"] == f"request id {number}: expected one that is not 0 and not in flight"

    two.send(CANCEL, {"id": 5}, 6)
    assert {reply.id: reply.op for reply in two.replies(2)} == {5: RECV, 6: CANCEL}


def test_followed_logs_are_chunks_and_then_the_reply_itself(kernel: Kernel, two: Wire) -> None:
    script = "echo first; until [ -e go-on ]; do sleep 0.02; done; echo last"
    agent = kernel.spawn("talker", ["sh", "-c", script], cwd=str(kernel.place), sandboxed=False)
    two.send(LOGS, {"id": agent, "follow": True}, 5)
    chunk = two.receive()
    assert (chunk.id, chunk.op) == (5, CHUNK)
    assert [line["text"] for line in chunk.json["lines"]] == ["first"]

    (kernel.place / "go-on").touch()
    got = []
    while (reply := two.receive()).op == CHUNK:
        got += reply.json["lines"]
    got += reply.json["lines"]

    assert (reply.id, reply.op, reply.json["success"]) == (5, LOGS, True)
    assert [line["text"] for line in got if line["stream"] == "stdout"] == ["last"]


def test_other_calls_are_answered_between_the_chunks_of_a_stream(kernel: Kernel, two: Wire) -> None:
    agent = kernel.spawn("ticker", ["sh", "-c", "while :; do echo tick; sleep 0.02; done"])
    two.send(LOGS, {"id": agent, "follow": True}, 5)
    two.send(WAIT, {"id": agent}, 6)
    two.receive()

    two.send(NOOP, b"between", 7)
    while (reply := two.receive()).op == CHUNK:
        assert reply.id == 5
    assert reply == (7, NOOP, b"between")

    two.send(KILL, {"id": agent}, 8)
    ended: set[int] = set()
    while ended != {5, 6, 8}:
        reply = two.receive()
        ended |= {reply.id} if reply.op != CHUNK else set()


def test_a_followed_log_can_be_cancelled(kernel: Kernel, two: Wire) -> None:
    agent = kernel.spawn("quiet")
    two.send(LOGS, {"id": agent, "follow": True}, 5)
    two.send(CANCEL, {"id": 5}, 6)

    got = {reply.id: reply for reply in two.replies(2)}

    assert got[5].json["code"] == "cancelled"
    assert got[6].json["cancelled"] is True
    assert two.call(KILL, {"id": agent}, 7)["killed"]


def test_following_needs_version_2(kernel: Kernel, wire: Wire) -> None:
    agent = kernel.spawn("unfollowed")

    reply = wire.call(LOGS, {"id": agent, "follow": True})

    assert reply["code"] == "bad_request"
    assert reply["error"].startswith("follow: ")
    assert wire.call(KILL, {"id": agent})["killed"]


def test_a_request_id_may_be_used_again_as_soon_as_its_reply_is_there(kernel: Kernel) -> None:
    agent = kernel.spawn("writer")
    with kernel.connect_as(agent) as two:
        two.hello()
        for _ in range(rounds(10)):  # a reply arrives before its task in the kernel has ended, sometimes by far
            two.write(b"".join(frame(READ, {"path": "/workspace/none"}, number) for number in range(1, 101)))
            assert {reply.json["code"] for reply in two.replies(100)} == {"not_found"}
