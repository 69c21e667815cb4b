"""Calls about which a person is asked, and the answers that a client sends back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentos_sdk.client import Kernel as Operator
from tests.support.clients import mcp
from tests.userland.mcp.serving import Cell, TestEntry

ALLOWED = {"action": "accept", "content": {"allow": True}}


def asking(cell: Cell, name: str = "desk", elicitation: str = "decides") -> TestEntry:
    """A client about whose files a person is asked; its own answer decides, except over HTTP."""
    permissions = {"level": "standard", "ask": {"write": [f"{cell.kernel.place}/asked/**"]}}
    if cell.transport.kind == "http":
        elicitation = "off"
    return TestEntry(name, level=None, permissions=permissions, elicitation=elicitation, transport=cell.transport.kind)


def append(place: Path) -> dict[str, Any]:
    """Arguments of ``agentos_write``, by which a second call is noticed."""
    return {"path": str(place / "file"), "content": "x", "mode": "append"}


async def ask(client: mcp.Client, place: Path, **answer: Any) -> mcp.types.InputRequiredResult:
    """The first round trip of a call about which a person is asked."""
    found = await client.session.call_tool("agentos_write", append(place), **answer, allow_input_required=True)
    assert isinstance(found, mcp.types.InputRequiredResult)
    return found


def answered(first: mcp.types.InputRequiredResult) -> dict[str, Any]:
    """What the second round trip has besides the arguments."""
    responses = {key: mcp.types.ElicitResult.model_validate(ALLOWED) for key in first.input_requests or {}}
    return {"input_responses": responses, "request_state": first.request_state}


async def last_decision(operator: Operator) -> str:
    """What the audit log says of the last decision."""
    entries = await operator.get_audit_log(limit=50)
    return [str(one.about) for one in entries if one.call == "APPROVAL_DECIDED"][-1]
