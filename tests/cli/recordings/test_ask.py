"""Which question THINK is asked for a recorded one, and what it can't be asked."""

from typing import Any

import pytest

from agentos.access.think_request import parse_think
from agentos.llm.cassettes.recorded_question import record_question
from agentos.userland.cli.recordings.ask import describe
from agentos.userland.recordings.questions import CantAsk, build_question
from agentos_sdk.encoding import codec

CALL = {"id": "c1", "name": "read", "arguments": {"path": "a"}}
RECORDED: dict[str, Any] = {
    "model": "wise",
    "system": "be brief",
    "messages": [
        {"role": "user", "text": "read a"},
        {"role": "assistant", "calls": [CALL]},
        {"role": "tool", "text": "it is empty", "answers": "c1"},
    ],
    "tools": [{"name": "read", "description": "Reads", "parameters": {"type": "object"}}],
    "tool_choice": "auto",
    "temperature": 0.5,
    "stop": ["END"],
}


def test_the_question_that_is_asked_is_recorded_as_the_same_one() -> None:
    question, left_out = build_question(RECORDED)

    again = record_question(parse_think(codec.encode(question), "other").question)
    assert {key: value for key, value in again.items() if key in RECORDED} == RECORDED
    assert again.keys() == RECORDED.keys()
    assert left_out == []


def test_what_think_does_not_have_is_named() -> None:
    assert build_question({**RECORDED, "top_p": 0.1, "seed": 3, "timeout": 5})[1] == ["seed", "top_p"]


@pytest.mark.parametrize(
    ("more", "said"),
    [({"embed": True}, "vectors"), ({"messages": [{"role": "user", "images": [{"sha256": "0"}]}]}, "images")],
)
def test_a_question_that_can_not_be_asked_says_why(more: dict[str, Any], said: str) -> None:
    with pytest.raises(CantAsk, match=said):
        build_question({**RECORDED, **more})


def test_a_refusal_is_a_row_of_its_own() -> None:
    refused = {"success": False, "error": "no such model", "code": "not_found"}

    assert describe("nowhere", refused) == ["nowhere", "-", "-", "-", "-", "no such model"]
