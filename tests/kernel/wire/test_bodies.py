"""Bodies that are not what their call takes: refused with a sentence that names the field, and no harm done."""

import json

import pytest

from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row
from tests.support.wire import (
    BROADCAST,
    CANCEL,
    HELLO,
    KILL,
    LIST,
    LOGS,
    NOOP,
    PAUSE,
    RECV,
    REGISTER,
    RESUME,
    SEND,
    SPAWN,
    TREE,
    WAIT,
    Wire,
)

JSON_CALLS = [SPAWN, KILL, LIST, WAIT, PAUSE, RESUME, TREE, LOGS, SEND, RECV, BROADCAST, REGISTER, CANCEL, HELLO]


@each_row("op", JSON_CALLS)
@each_row(
    "body",
    [
        *(b"\xff", b"{\xff}", b'{"name": "\xc3"}', b"\x00", b"\xef\xbb\xbf{}"),
        *(b"{", b"}", b"{}{}", b"nonsense", b'{"a" 1}', b"{'a': 1}", b'{"a": 1,}'),
    ],
)
def test_what_is_no_json_is_a_bad_request(kernel: Kernel, op: int, body: bytes) -> None:
    with kernel.connect() as wire:
        reply = wire.call(op, body)

        assert reply["code"] == "bad_request"
        assert "JSON" in reply["error"]


@each_row("op", JSON_CALLS)
@each_row("body", [b"[]", b"[{}]", b"1", b"null", b"true", b'"text"', b"1.5"])
def test_a_body_must_be_an_object(kernel: Kernel, op: int, body: bytes) -> None:
    with kernel.connect() as wire:
        reply = wire.call(op, body)

        assert reply["code"] == "bad_request"
        assert reply["error"]


@each_row("op", JSON_CALLS)
def test_unknown_fields_are_named(kernel: Kernel, op: int) -> None:
    with kernel.connect() as wire:
        assert "flavour: unknown field" in wire.call(op, {"flavour": "sour"})["error"]


@each_row("op", [LIST, TREE, RECV, HELLO])
@each_row("body", [b"", b"{}", b" {\n} "])
def test_an_empty_body_stands_for_an_empty_object(kernel: Kernel, op: int, body: bytes) -> None:
    with kernel.connect() as wire:
        reply = wire.call(op, body)

        assert isinstance(reply, list) or reply["success"]


@each_row("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"01", b"+1", b".5", b"1."])
def test_a_number_that_json_has_no_word_for_is_refused(kernel: Kernel, number: bytes) -> None:
    with kernel.connect() as wire:
        own = str(wire.ask(NOOP).id).encode()

        for body in (
            b'{"to": ' + own + b', "message": ' + number + b"}",
            b'{"to": ' + own + b', "message": {"a": [' + number + b"]}}",
            b'{"to": ' + number + b', "message": 1}',
        ):
            assert wire.call(SEND, body)["code"] == "bad_request"
        assert wire.call(RECV, b'{"timeout": ' + number + b"}")["code"] == "bad_request"
        assert wire.call(RECV)["count"] == 0


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"]":', b"}]")])
def test_64_levels_are_taken_and_65_are_not(wire: Wire, opening: bytes, closing: bytes) -> None:
    own = wire.ask(NOOP).id
    levels = opening.count(b"[") + opening.count(b"{")

    def send(depth: int) -> dict[str, object]:
        times, odd = divmod(depth - 1, levels)  # the body itself is the first level
        message = b"[" * odd + opening * times + b"1" + closing * times + b"]" * odd
        reply: dict[str, object] = wire.call(SEND, b'{"to": %d, "message": %b}' % (own, message))
        return reply

    assert send(64)["success"]
    assert wire.call(RECV)["count"] == 1
    assert send(65)["code"] == "bad_request"
    assert send(50_000)["code"] == "bad_request"
    assert wire.call(RECV)["count"] == 0


def test_brackets_in_strings_are_no_levels(wire: Wire) -> None:
    message = {"[" * 100: ["\\", '"[[[' * 40, "{" * 100]}

    assert wire.call(SEND, {"to": wire.ask(NOOP).id, "message": message})["success"]
    assert wire.call(RECV)["messages"][0]["message"] == message


@each_row(
    ("op", "body", "field"),
    [
        (SEND, {"message": 1}, "to"),
        (SEND, {"to": 1, "to_name": "a", "message": 1}, "to"),
        (SEND, {"to": "1", "message": 1}, "to"),
        (SEND, {"to": 1.0, "message": 1}, "to"),
        (SEND, {"to": True, "message": 1}, "to"),
        (SEND, {"to": 1 << 80, "message": 1}, "to"),
        (SEND, {"to_name": 1, "message": 1}, "to_name"),
        (SEND, {"to_name": "a\0b", "message": 1}, "to_name"),
        (SEND, {"to": 1}, "message"),
        (RECV, {"max": "10"}, "max"),
        (RECV, {"max": 0}, "max"),
        (RECV, {"max": -1}, "max"),
        (RECV, {"max": 1.5}, "max"),
        (RECV, {"timeout": "soon"}, "timeout"),
        (RECV, {"timeout": -1}, "timeout"),
        (RECV, {"timeout": []}, "timeout"),
        (BROADCAST, {}, "message"),
        (BROADCAST, {"message": 1, "include_self": 1}, "include_self"),
        (REGISTER, {}, "name"),
        (REGISTER, {"name": 5}, "name"),
        (REGISTER, {"name": None}, "name"),
        (HELLO, {"protocol": "2"}, "protocol"),
        (HELLO, {"protocol": 7}, "protocol"),
        (KILL, {"id": "x"}, "id"),
        (KILL, {"name": []}, "name"),
        (WAIT, {"id": None, "name": 7}, "name"),
        (PAUSE, {"id": 1.5}, "id"),
        (RESUME, {"name": {}}, "name"),
        (LOGS, {"id": 1, "tail": "all"}, "tail"),
        (LOGS, {"id": 1, "follow": "yes"}, "follow"),
        (SPAWN, {"command": ["true"]}, "name"),
        (SPAWN, {"name": "a", "command": "true"}, "command"),
        (SPAWN, {"name": "a", "command": ["true", 1]}, "command[1]"),
        (SPAWN, {"name": "a", "command": ["true"], "limits": {"memory": "lots"}}, "limits.memory"),
        (SPAWN, {"name": "a", "command": ["true"], "env": {"A": 1}}, "env.A"),
        (SPAWN, {"name": "a", "command": ["true"], "restart": "always"}, "restart"),
    ],
)
def test_a_wrong_field_is_named(kernel: Kernel, op: int, body: object, field: str) -> None:
    with kernel.connect() as wire:
        reply = wire.call(op, body)

        assert reply["code"] == "bad_request"
        assert reply["error"].startswith(f"{field}: ")


def test_the_usual_keys_of_a_call_are_there_when_it_failed_too(wire: Wire) -> None:
    assert wire.call(KILL, {"id": 10**9})["killed"] is False
    assert wire.call(PAUSE, {"id": 10**9})["paused"] is False
    assert wire.call(RESUME, {"id": 10**9})["resumed"] is False


@each_row(
    "message",
    [
        b'"\xc3\xa9\xf0\x9f\x98\x80"',
        b'"\\ud83d"',  # half of a pair: JSON can say it, UTF-8 can't
        b'"\\u0000\\n\\/"',
        b"123456789012345678901234567890123456789012345678901234567890",
        b"-0.0",
        b"1E5",
        b'{"a":1,"a":2}',
        b'[[],{},"",0,null,true,false]',
        b'"1e999 and NaN in a string are text"',
    ],
)
def test_a_message_comes_out_as_it_went_in(kernel: Kernel, message: bytes) -> None:
    with kernel.connect() as sender, kernel.connect() as receiver:
        own = receiver.ask(NOOP).id
        body = b'{"message": %b, "to": %d}' % (message, own)

        reply = sender.call(SEND, body)

        assert reply["success"], reply
        assert receiver.call(RECV)["messages"][0]["message"] == json.loads(message)
