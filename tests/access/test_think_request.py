"""The question in a THINK: what models send in their calls can be sent back to them."""

import json

import pytest

from agentos.access.think_request import parse_think

CALL = {"id": "c1", "name": "ls", "arguments": {"path": ["\ud83d x", "\ud83d\ude00"]}}
SAID = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "y"},
]


@pytest.mark.parametrize("size", [0, 100_000])
def test_half_of_a_character_in_json_of_a_question_is_replaced(size: int) -> None:
    schema = {"type": "object", "description": "a \ude00"}
    tools = [{"name": "ls", "parameters": {"type": "object", "properties": {"path": {"description": "\ud83d"}}}}]
    fields = {"messages": [*SAID, {"role": "user", "content": "z" * size or "z"}], "tools": tools}

    question = parse_think(json.dumps({**fields, "response_schema": schema}).encode(), "m").question

    assert question.messages[1].calls[0].arguments == {"path": ["� x", "😀"]}
    assert question.tools[0].parameters["properties"] == {"path": {"description": "�"}}
    assert question.response_schema == {"type": "object", "description": "a �"}
