"""Version 1: what a client gets that never says HELLO."""

import time

import pytest

from tests.conftest import Connect
from tests.support.wire import (
    CANCEL,
    EXIT,
    HELLO,
    LIST,
    LOGS,
    NOOP,
    RECV,
    REGISTER,
    SEND,
    TREE,
    Wire,
    frame,
)


def test_the_id_in_every_reply_is_the_callers_whatever_the_request_said(wire: Wire) -> None:
    own = wire.call(HELLO)["agent_id"]

    for number in (0, 1, own + 1, 0xFFFFFFFF):
        assert wire.ask(NOOP, b"", number).id == own
        assert wire.ask(LIST, b"", number).id == own
        assert wire.ask(RECV, b"", number).id == own
        assert wire.ask(0x99, b"", number).id == own


def test_an_operator_is_a_caller_too_and_has_an_id(wire: Wire) -> None:
    welcome = wire.call(HELLO, {"protocol": 1})

    assert welcome["agent_id"] > 0
    assert welcome["protocol"] == 1
    assert welcome["kernel_version"]
    assert wire.call(REGISTER, {"name": "v1-op"})["agent_id"] == welcome["agent_id"]


def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    bodies = [b"%d" % n for n in range(2000)]
    asked = [frame(LIST) if n % 7 == 0 else frame(NOOP, body) for n, body in enumerate(bodies)]

    wire.write(b"".join(asked))

    for n, body in enumerate(bodies):
        reply = wire.receive()
        assert reply.op == (LIST if n % 7 == 0 else NOOP)
        assert n % 7 == 0 or reply.body == body


def test_calls_that_may_wait_keep_their_place_among_those_that_never_do(wire: Wire) -> None:
    ops = [NOOP, RECV, NOOP, TREE, LOGS, NOOP, RECV, LIST, 0x99, NOOP]

    wire.write(b"".join(frame(op, b"{}") for op in ops))

    assert [reply.op for reply in wire.replies(len(ops))] == ops


def test_a_waiting_call_holds_back_what_is_behind_it(connect: Connect) -> None:
    waiting, other = connect(), connect()
    own = waiting.call(HELLO)["agent_id"]

    waiting.write(frame(RECV, {"timeout": 1000}) + frame(NOOP, b"behind"))
    assert waiting.is_silent()
    assert other.call(SEND, {"to": own, "message": "now"})["success"]

    assert [message["message"] for message in waiting.receive().json["messages"]] == ["now"]
    assert waiting.receive().body == b"behind"


def test_a_waiting_call_ends_at_its_own_timeout(wire: Wire) -> None:
    begin = time.monotonic()

    wire.write(frame(RECV, {"timeout": 0.3}) + frame(NOOP, b"behind"))

    assert wire.receive().json == {"success": True, "count": 0, "messages": []}
    assert time.monotonic() - begin > 0.25
    assert wire.receive().body == b"behind"


@pytest.mark.parametrize("protocol", [{}, {"protocol": 1}])
def test_hello_with_protocol_1_changes_nothing(wire: Wire, protocol: dict[str, int]) -> None:
    own = wire.call(HELLO, protocol)["agent_id"]

    assert wire.ask(NOOP, b"", number=77).id == own


def test_cancel_finds_nothing_to_cancel_for_all_before_it_is_answered(wire: Wire) -> None:
    assert wire.call(CANCEL, {"id": 1}) == {"success": True, "cancelled": False}


def test_a_refused_hello_leaves_the_connection_in_version_1(wire: Wire) -> None:
    own = wire.ask(NOOP).id

    for body in ({"protocol": 3}, {"protocol": 0}, {"protocol": "2"}, {"protocol": None}, {"protocol": True}):
        reply = wire.ask(HELLO, body, number=5)
        assert reply.json["code"] == "bad_request"
        assert reply.json["error"].startswith("protocol: ")
        assert reply.id == own

    assert wire.ask(NOOP, b"", number=5).id == own


def test_exit_says_goodbye_after_what_was_asked_before_and_closes(wire: Wire) -> None:
    wire.write(frame(NOOP, b"one") + frame(RECV, b"{}") + frame(EXIT, b"{}") + frame(NOOP, b"too late"))

    assert wire.receive().body == b"one"
    assert wire.receive().op == RECV
    goodbye = wire.receive()
    assert (goodbye.op, goodbye.body) == (EXIT, b"goodbye")
    assert wire.ends()
