"""The page of the MCP server has each tool with its arguments, results and annotations, and each cell of the eras."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, signature
from typing import TYPE_CHECKING

from tests.docs.blocks import ROOT
from tests.userland.mcp import test_eras

if TYPE_CHECKING:
    from agentos.userland.mcp.tools import Tool

PAGE = (ROOT / "docs" / "reference" / "mcp-server.md").read_text()
CELLS = {
    "progress": "test_output_of_a_command_arrives_as_progress",
    "cancellation": "test_a_cancelled_call_ends_its_command",
    "elicitation": "test_the_answer_to_an_elicitation_decides_where_the_operator_has_let_it",
    "change notifications": "test_a_client_hears_of_agents_that_come_and_go",
    "identity": "test_a_client_is_the_guest_of_its_entry_and_gets_the_kernels_codes_and_sentences",
    "errors": "test_a_client_is_the_guest_of_its_entry_and_gets_the_kernels_codes_and_sentences",
    "restart of the server": "test_a_server_that_restarts_before_the_answer_acts_once",
}


def rows(first: str) -> Sequence[Sequence[str]]:
    """The cells of the table whose header begins with ``first``."""
    lines = PAGE[PAGE.index(f"\n| {first} |") :].splitlines()[3:]
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def row_of(tool: Tool) -> list[str]:
    hints = tool.hints
    words = {
        "reads": hints.read_only_hint,
        "destructive": hints.destructive_hint,
        "idempotent": hints.idempotent_hint and not hints.read_only_hint,
        "open world": hints.open_world_hint,
    }
    arguments = (describe(one) for one in signature(tool.plan).parameters.values())
    results = (f"`{name}`" for name in tool.result.model_fields)
    return [
        f"`{tool.name}`",
        tool.request.op.name,
        ", ".join(arguments),
        ", ".join(results),
        ", ".join(word for word, holds in words.items() if holds),
    ]


def describe(parameter: Parameter) -> str:
    if parameter.default is Parameter.empty:
        return f"**`{parameter.name}`**"
    value = parameter.default
    default = "" if value in (None, "", ()) else f"={str(value).lower() if isinstance(value, bool) else value}"
    return f"`{parameter.name}{default}`"


def test_the_page_has_each_tool() -> None:
    from agentos.userland.mcp.tools import TOOLS

    assert rows("tool") == [row_of(tool) for tool in TOOLS]


def test_the_page_has_each_resource() -> None:
    from agentos.userland.mcp.resources import LOG

    assert [row[0] for row in rows("resource")] == ["`agentos://agents`", "`agentos://tree`", f"`{LOG}`"]


def test_each_row_of_the_table_of_eras_is_a_test() -> None:
    assert {row[0] for row in rows("what")} == set(CELLS)
    for name in CELLS.values():
        assert callable(getattr(test_eras, name))
