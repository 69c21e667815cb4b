"""Tool calls as text: what models write, and what is wrong with it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos_sdk.loop.text_protocol import MAX_UNREADABLE, is_only_json, parse_calls
from tests.support.call_counts import count_calls
from tests.support.runs.rows import each_row

LS = {"name": "exec", "arguments": {"command": "ls"}}


@each_row(
    "text",
    [
        '{"action": "exec", "args": {"command": "ls"}}',
        '{"tool": "exec", "arguments": {"command": "ls"}}',
        '{"name": "exec", "parameters": {"command": "ls"}}',
        '{"action": "exec", "command": "ls", "thought": "I look"}',
        'I look {first}.\n```json\n{"action": "exec", "args": {"command": "ls"}}\n```\nThen we see.',
        '[{"action": "exec", "input": {"command": "ls"}}]',
    ],
)
def test_a_call_is_found(text: str) -> None:
    assert parse_calls(text) == ([LS], None)


def test_several_calls_are_found_in_order() -> None:
    other = {"name": "done", "arguments": {"summary": "{}"}}
    text = '{"action": "exec", "args": {"command": "ls"}}\n{"action": "done", "args": {"summary": "{}"}}'

    assert parse_calls(text) == ([LS, other], None)


def test_broken_json_is_a_mistake_only_where_a_call_was_meant() -> None:
    calls, mistake = parse_calls('{"action": "exec", "args": {"command": "ls}}')

    assert calls == []
    assert mistake is not None
    assert mistake.startswith("the JSON can't be read: Unterminated string")
    assert parse_calls("a set {1, 2} and [nothing") == ([], None)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    calls, _ = parse_calls(text)

    assert all(isinstance(call["name"], str) for call in calls)


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.text(alphabet="ab {["))
def test_a_call_survives_text_around_it(arguments: dict[str, Any], around: str) -> None:
    calls, _ = parse_calls(f"{around}\n{json.dumps({'action': 'exec', 'args': arguments})}")

    assert calls[-1:] == [{"name": "exec", "arguments": arguments}]


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 50_000, "{[" * 100_000, '{"action": "x"} ' + "[" * 100_000])
def test_brackets_that_never_end_are_not_all_tried(text: str) -> None:
    calls = count_calls(lambda: parse_calls(text))

    assert 1 <= calls["JSONDecoder.raw_decode"] <= MAX_UNREADABLE + 1


@pytest.mark.parametrize("value", ["NaN", "-Infinity", '"\\ud800"', "[" * 40 + "]" * 40])
def test_a_value_that_no_json_can_have_is_a_mistake(value: str) -> None:
    calls, mistake = parse_calls('{"action": "exec", "args": {"x": ' + value + "}}")

    assert calls == []
    assert mistake is not None


@each_row(
    ("text", "only"),
    [
        ('{"action": "done"}', True),
        ('```json\n{"action": "done"}\n```\n', True),
        ('```\n[{"action": "done"}]\n```', True),
        ('```JSON\r\n{"action": "done"}\r\n```', True),
        ('```json {"action": "done"} ```', True),
        ('```\n{"action": "done"}\n```\n```\n{"action": "done"}\n```', False),
        ('Models answer {"action": "done"} to end.', False),
        ('To end:\n```json\n{"action": "done"}\n```', False),
        ('{"action": "done"} {"action": "done"}', False),
        ("[" * 100_000, False),
    ],
)
def test_a_text_that_quotes_a_call_is_not_only_json(text: str, only: bool) -> None:
    assert is_only_json(text) == only
