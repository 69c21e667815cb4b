"""JSON mode: what each vendor is sent, and what becomes of answers that aren't JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from agentos.llm.answers.json_mode import find_object, has_free_object, is_any_object
from agentos.llm.providers.provider import Answer, Delta, Message, NoJSON, Question
from tests.contracts.worlds import VendorWorld, anthropic, gemini, openai
from tests.llm.vendors.script import Says, Text
from tests.support.runs.rows import each_row

ANY: Mapping[str, Any] = {"type": "object"}
NESTED: Mapping[str, Any] = {"type": "object", "properties": {"labels": ANY}, "required": ["labels"]}
MAPPED: Mapping[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
CLOSED: Mapping[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
ASKED = Question("model", [Message("user", "three colours")], response_schema=ANY)


@pytest.fixture
async def claude(nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made = await anthropic(nursery)
    yield made
    await made.aclose()


def system_of(body: Mapping[str, Any]) -> str:
    """The instructions, which stand in blocks since the last is marked for the prompt cache."""
    return "\n\n".join(block["text"] for block in body["system"])


async def answer(world: VendorWorld, question: Question, *texts: str, finish: str = "stop") -> tuple[Answer, str]:
    """The answer, and the text of all pieces."""
    pieces: list[Delta] = []
    provider = await world.meet(Says([Text(text) for text in texts or ("{}",)], finish=finish))
    found = await provider.answer(question, pieces.append)
    return found, "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(
    "texts",
    [['{"a": ', "[1]}"], ["```json\n", '{"a": [1]}', "\n```"], ['Here it is: {"a": [1]} as you asked.']],
    ids=["plain", "fenced", "in a sentence"],
)
async def test_claude_is_instructed_and_its_json_taken_out_of_its_wrapping(
    claude: VendorWorld, texts: list[str]
) -> None:
    found, heard = await answer(claude, replace(ASKED, system="Be brief."), *texts)

    assert (found.text, heard) == ('{"a": [1]}', '{"a": [1]}')
    [exchange] = claude.vendor.exchanges
    assert "output_config" not in exchange.body
    assert system_of(exchange.body).startswith("Be brief.\n\nAnswer with a JSON object")


@pytest.mark.parametrize("text", ["Red, green and blue.", "[1]", '{"a": 1'], ids=["prose", "array", "broken"])
async def test_an_answer_of_claude_without_a_json_object_is_a_failure(claude: VendorWorld, text: str) -> None:
    with pytest.raises(NoJSON, match="was asked for a JSON object"):
        await answer(claude, ASKED, text)


async def test_an_answer_that_was_cut_off_stays_as_it_is(claude: VendorWorld) -> None:
    found, heard = await answer(claude, ASKED, '{"a": 1', finish="length")

    assert (found.text, heard, found.finish_reason) == ('{"a": 1', '{"a": 1', "length")


@pytest.mark.parametrize("schema", [NESTED, MAPPED], ids=["nested", "mapped"])
async def test_claude_is_told_a_schema_with_objects_that_it_would_close(
    claude: VendorWorld, schema: Mapping[str, Any]
) -> None:
    await answer(claude, replace(ASKED, response_schema=schema))

    body = claude.vendor.exchanges[0].body
    assert "output_config" not in body
    assert "has to match this JSON schema" in system_of(body)


async def test_claude_gets_other_schemas_as_such(claude: VendorWorld) -> None:
    await answer(claude, replace(ASKED, response_schema=CLOSED))

    assert claude.vendor.exchanges[0].body["output_config"]["format"]["type"] == "json_schema"


@pytest.mark.parametrize(("said", "is_added"), [("three colours", True), ("three colours as JSON", False)])
async def test_openai_has_a_json_mode_that_needs_the_word(nursery: trio.Nursery, said: str, is_added: bool) -> None:
    world = await openai(nursery)
    await answer(world, replace(ASKED, messages=[Message("user", said)]))
    await world.aclose()

    body = world.vendor.exchanges[0].body
    assert body["response_format"] == {"type": "json_object"}
    assert ("JSON" in str(body["messages"][:-1])) is is_added


async def test_gemini_has_a_json_mode(nursery: trio.Nursery) -> None:
    world = await gemini(nursery)
    await answer(world, ASKED)
    await world.aclose()

    config = world.vendor.exchanges[0].body["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert "responseJsonSchema" not in config


@each_row(
    ("schema", "is_any", "is_free"),
    [
        (ANY, True, True),
        ({"type": "object", "description": "x", "additionalProperties": True}, True, True),
        (MAPPED, False, True),
        (NESTED, False, True),
        ({"type": "array", "items": {"type": ["object", "null"]}}, False, True),
        (CLOSED, False, False),
        ({"type": "object", "additionalProperties": False}, False, False),
        ({"type": "object", "properties": {"type": {"type": "string"}}}, False, False),
    ],
)
def test_kinds_of_schemas(schema: Mapping[str, Any], is_any: bool, is_free: bool) -> None:
    assert (is_any_object(schema), has_free_object(schema)) == (is_any, is_free)


@each_row("text", ["", "{", "}{", "null", "NaN {} }", '{"a": NaN}'])
def test_what_is_no_object_is_none(text: str) -> None:
    assert find_object(text) is None
