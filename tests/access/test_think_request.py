"""The question in a THINK: what models send in their calls can be sent back to them."""

import base64
import json
from hashlib import sha256

import pytest

from agentos.access.think_request import digest_question, parse_think
from agentos_sdk.errors import BadRequest

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


def test_what_starts_like_no_object_is_the_prompt_itself_in_utf_8() -> None:
    assert [message.text for message in parse_think(' "é'.encode(), "m").question.messages] == [' "é']
    with pytest.raises(BadRequest, match="prompt: expected text in UTF-8, or a JSON object"):
        parse_think(b"\xff", "m")
    with pytest.raises(BadRequest, match="prompt: expected some text, got none"):
        parse_think(b" ", "m")


def test_a_question_is_to_the_model_that_it_names_or_else_to_the_configured_one() -> None:
    for body, model in ((b"x", "m"), (b'{"prompt": "x"}', "m"), (b'{"prompt": "x", "model": "n"}', "n")):
        assert parse_think(body, "m").question.model == model


def test_equal_questions_are_told_by_the_sha_256_of_their_texts_and_images_as_the_audit_log_documents_it() -> None:
    image = {"type": "image", "data": base64.b64encode(b"pixels").decode()}
    said = {"role": "user", "content": [{"type": "text", "text": "a b"}, image]}
    fields = {"messages": [{"role": "system", "content": "é"}, said]}

    digest = digest_question(parse_think(json.dumps(fields).encode(), "m").question)

    hashed = f'[["system","é"],["user","a b"],["image","{sha256(b"pixels").hexdigest()}"]]'
    assert digest == sha256(hashed.encode()).hexdigest()
