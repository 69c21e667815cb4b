"""What an MCP server asks a person: to which question an answer belongs."""

import itertools
from typing import Any

from agentos.mcp.connection.requests import build_elicitation

ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("notes.drop", "Are you sure?", {"sure": True}),
    ("notes.drop", "Are you sure?", {"sure": True, "all": True}),
    ("notes.drop", "Are you sure?", {"sure": "yes"}),
    ("notes.drop", "Are you sure?", {}),
    ("notes.drop", "Sure?", {"sure": True}),
    ("notes.add", "Are you sure?", {"sure": True}),
]


def test_an_answer_belongs_to_one_tool_message_and_form() -> None:
    for one, other in itertools.product(ASKED, ASKED):
        asked, again = build_elicitation(*one), build_elicitation(*other)
        [(right, _)], [(same, _)] = asked.asked, again.asked

        assert (asked.digest == again.digest) == (right == same) == (one == other), (one, other)
