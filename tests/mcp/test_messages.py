"""One line of a server's output: what becomes of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.mcp.connection.messages import (
    MAX_CONTENT_BYTES,
    MAX_DEPTH,
    MAX_TOOLS,
    TRUNCATED,
    UNREADABLE,
    Parsed,
    cut_result,
    parse_line,
)
from agentos.mcp.errors import BadServer
from tests.support.runs.rows import each_row


def parse(message: dict[str, Any]) -> Parsed:
    found = parse_line(json.dumps({"jsonrpc": "2.0", **message}).encode())
    assert isinstance(found, Parsed)
    return found


def test_replies_requests_and_withdrawals_are_told_apart() -> None:
    assert parse({"jsonrpc": "2.0", "id": 1, "result": {}}).request is None
    assert parse({"jsonrpc": "2.0", "id": "a", "method": "roots/list"}).request == "a"
    withdrawn = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    assert parse(withdrawn).withdrawn == 7


def test_notifications_that_no_caller_waits_for_are_dropped() -> None:
    for method in ("notifications/message", "notifications/progress", "x"):
        assert parse_line(json.dumps({"jsonrpc": "2.0", "method": method}).encode()) is None
    assert parse_line(b"  \n") is None


def test_a_byte_order_mark_before_a_message_is_passed_over() -> None:
    reply = {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}

    assert parse_line(json.dumps(reply).encode("utf-8-sig")) == Parsed(reply)


def test_what_is_no_json_is_text_for_the_log() -> None:
    assert parse_line(b"Server started\x1b[31m") == "Server started\\u{1b}[31m"
    assert parse_line(b"\xff\xfe") == "\\u{fffd}\\u{fffd}" or isinstance(parse_line(b"\xff\xfe"), str)


RPC = {"jsonrpc": "2.0"}
LINES: list[object] = [[1], 7, None, {"level": "info", "msg": "calling"}, {"id": 5, "result": "no version"}, RPC]
LINES += [{**RPC, "id": wrong, "result": {}} for wrong in (1.5, True, [1], None)]
LINES += [{**RPC, "id": 5}, {**RPC, "method": 7}, {**RPC, "id": 5, "version": "1"}]


@each_row("message", LINES)
def test_json_that_is_no_message_is_text_for_the_log(message: object) -> None:
    assert isinstance(parse_line(json.dumps(message).encode()), str)


@each_row("line", [b"[INFO] calling", b"{oops}", b"{'a': 1}", b"[" * 100, b'[1, {"a"', b"\xef\xbb\xbfready"])
def test_a_line_of_a_log_is_text_for_the_log(line: bytes) -> None:
    assert isinstance(parse_line(line), str)


def test_a_message_that_is_nested_too_deeply_is_not_parsed() -> None:
    deepest = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)  # in the message's own object
    assert isinstance(parse_line(b'{"jsonrpc": "2.0", "id": 5, "result": %s}' % deepest), Parsed)
    for result in (b"[%s]" % deepest, b"[" * MAX_DEPTH):
        with pytest.raises(BadServer, match="nested deeper than"):
            parse_line(b'{"jsonrpc": "2.0", "id": 5, "result": %s}' % result)


@each_row(
    ("given", "text"),
    [
        (b"half \\ud83d x", "half \ufffd x"),
        (b"\\ude00", "\ufffd"),
        (b"\\uD83D\\uDE00 \\\\ud83d", "\U0001f600 \\ud83d"),
        (b"latin \xe9", "latin \ufffd"),
    ],
)
def test_what_is_no_text_in_a_result_is_replaced(given: bytes, text: str) -> None:
    found = parse_line(b'{"jsonrpc": "2.0", "id": 5, "result": {"content": [{"type": "text", "text": "%s"}]}}' % given)

    assert isinstance(found, Parsed)
    assert found.message["result"]["content"][0]["text"] == text


@each_row("result", [b'{"content": [], "structuredContent": {"a": NaN}}', b'{"a": -Infinity', b'{"id": 9, oops'])
@each_row("number", [b"5", b'"a-1"'])
def test_a_reply_that_is_no_json_fails_its_request(result: bytes, number: bytes) -> None:
    for line in (
        b'{"jsonrpc": "2.0", "id": %s, "result": %s}' % (number, result),
        b'{"result": %s}, "jsonrpc": "2.0", "id": %s}' % (result, number),
    ):
        found = parse_line(line)

        assert isinstance(found, Parsed)
        assert found.message["id"] == json.loads(number)
        assert found.message["error"]["code"] == UNREADABLE


def test_schemas_of_outputs_and_too_many_tools_are_dropped() -> None:
    tools = [{"name": str(number), "inputSchema": {}, "outputSchema": {"pattern": "(a+)+$"}} for number in range(1000)]

    found = cut_result({"tools": tools, "nextCursor": "x"})

    assert len(found["tools"]) == MAX_TOOLS
    assert found["tools"][0] == {"name": "0", "inputSchema": {}}
    assert found["nextCursor"] == "x"


def test_a_small_result_is_unchanged() -> None:
    result = {"content": [{"type": "text", "text": "hi"}], "structuredContent": {"a": [1]}, "_meta": {"x": 1}}

    assert cut_result(dict(result)) == result


@given(
    st.lists(
        st.tuples(st.sampled_from(["text", "image", "odd"]), st.integers(0, 400_000), st.sampled_from('xé"\n')),
        max_size=4,
    ),
    st.integers(0, 300_000),
)
def test_no_result_is_larger_than_its_limit(parts: list[tuple[str, int, str]], structured: int) -> None:
    content: list[Any] = [
        {"type": kind, ("text" if kind == "text" else "data"): letter * size} for kind, size, letter in parts
    ]
    result = {"content": content, "structuredContent": {"a": "b" * structured}}

    cut = cut_result(dict(result))

    size = sum(len(json.dumps(part, ensure_ascii=False).encode()) for part in cut["content"])
    size += len(json.dumps(cut.get("structuredContent", ""), ensure_ascii=False).encode())
    assert size <= MAX_CONTENT_BYTES + 100 * len(parts)  # of spaces
    assert (cut == result) or cut["_meta"] == {TRUNCATED: True}


def test_a_large_reply_that_is_not_mostly_text_is_not_parsed_and_fails_its_request() -> None:
    """To make 1.4 million lists of it would hold up the event loop for seconds."""
    found = parse_line(
        b'{"jsonrpc": "2.0", "id": "a", "result": {"content": [], "more": [' + b"[]," * 1_300_000 + b"0]}}"
    )

    assert isinstance(found, Parsed)
    why = "the answer isn't read: all in it that isn't plain text may have no more than 256 KiB"
    assert found.message == {"jsonrpc": "2.0", "id": "a", "error": {"code": UNREADABLE, "message": why}}


@each_row("message", [b'"method": "ping", "id": 1', b'"method": "x"', b'"id": null', b'"id": [1]'])
def test_any_other_large_message_that_is_not_mostly_text_ends_the_server(message: bytes) -> None:
    with pytest.raises(BadServer, match="it sent a message that can't be read: all in it that isn't plain text"):
        parse_line(b'{"jsonrpc": "2.0", ' + message + b', "params": [' + b"[]," * 400_000 + b"0]}")


def test_a_large_text_or_image_is_parsed() -> None:
    data = "QUJD" * 800_000

    [image] = parse({"id": 1, "result": {"content": [{"type": "text", "text": data}]}}).message["result"]["content"]

    assert len(image["text"]) > MAX_CONTENT_BYTES // 2


def test_what_a_result_has_besides_its_content_is_limited() -> None:
    found = parse({"id": 7, "result": {"content": [], "_meta": {"x": ["y"] * 50_000}}})

    assert found.message["id"] == 7
    assert found.message["error"]["message"] == "the answer isn't read: it has more than 64 KiB besides its content"


@each_row("escaped", [r"a/b&\"c\\d-efgh", r"a\/b\u0026\"c\\d-efgh", r"\u0061/b&\u0022c\u005cd-efgh"])
def test_secrets_are_redacted_however_json_escapes_them(escaped: str) -> None:
    secret = json.loads(f'"{escaped}"')

    found = parse_line(
        b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [{"text": "it is %s!"}]}}' % escaped.encode(),
        [secret.encode()],
    )

    assert secret == 'a/b&"c\\d-efgh'
    assert isinstance(found, Parsed)
    assert found.message["result"]["content"] == [{"text": "it is [redacted]!"}]


def test_a_secret_is_redacted_in_what_is_no_json() -> None:
    assert parse_line(b"the token is 12345678", [b"12345678"]) == "the token is [redacted]"
