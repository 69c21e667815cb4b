"""Which tools a client is shown, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.clients import mcp
from tests.support.kernel import Kernel
from tests.userland.mcp.serving import TRANSPORTS, Cell, TestEntry, value_of

ORIGINAL: Mapping[str, tuple[set[str], set[str]]] = {  # required and optional arguments of the original's server
    "agentos_read": ({"path"}, set()),
    "agentos_write": ({"path", "content"}, {"mode"}),
    "agentos_exec": ({"command"}, {"cwd", "timeout"}),
    "agentos_think": ({"prompt"}, {"system_instruction"}),
    "agentos_spawn": ({"name"}, {"script", "sandboxed"}),
    "agentos_list_agents": (set(), set()),
    "agentos_kill": ({"name"}, set()),
    "agentos_http": ({"url"}, {"method", "headers", "body"}),
}


def every() -> set[str]:
    """The names of all tools, without their prefix."""
    from agentos.userland.mcp.tools import TOOLS

    return {tool.name.removeprefix("agentos_") for tool in TOOLS}


async def shown_to(kernel: Kernel, entry: TestEntry) -> set[str]:
    async with Cell(TRANSPORTS["memory"], "auto", kernel).connect(entry) as client:
        return {tool.name.removeprefix("agentos_") for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("minimal", lambda: {"recv", "send", "approvals"}),
        ("readonly", lambda: {"recv", "send", "approvals", "read", "list_agents", "state_get"}),
        ("sandboxed", lambda: every() - {"http", "restart"}),
        ("standard", lambda: every() - {"restart"}),
        ("unrestricted", every),
    ],
)
async def test_a_tool_that_the_level_never_allows_is_not_listed(
    kernel: Kernel, level: str, shown: Callable[[], set[str]]
) -> None:
    assert await shown_to(kernel, TestEntry("listed", level=level)) == shown()


async def test_a_call_that_only_a_grant_allows_is_listed(kernel: Kernel) -> None:
    permissions = {"level": "minimal", "allow": {"write": ["/tmp/x"]}, "ask": {"commands": ["git *"]}}

    shown = await shown_to(kernel, TestEntry("granted", level=None, permissions=permissions))

    assert shown & {"read", "write", "exec", "think"} == {"write", "exec"}


async def test_a_denied_call_is_not_listed(kernel: Kernel) -> None:
    denied = {"calls": ["SPAWN"], "commands": ["*"], "domains": ["*:*"], "write": ["/**"], "read": ["/etc/**"]}
    permissions = {"level": "standard", "deny": denied}

    shown = await shown_to(kernel, TestEntry("denied", level=None, permissions=permissions))

    assert shown & {"spawn", "exec", "http", "write", "read", "kill"} == {"read", "kill"}


async def test_each_tool_has_exact_schemas_and_annotations(kernel: Kernel) -> None:
    async with Cell(TRANSPORTS["memory"], "auto", kernel).connect(TestEntry("all", level="unrestricted")) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}

    assert {name.removeprefix("agentos_") for name in tools} == every()
    for tool in tools.values():
        assert tool.description
        assert tool.output_schema
        assert tool.output_schema["type"] == "object"
        assert tool.annotations
        assert tool.input_schema["additionalProperties"] is False
        hints = tool.annotations
        assert None not in (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint)
        for field in tool.input_schema["properties"].values():
            assert "type" in field or "anyOf" in field or field["title"] in ("Message", "Value"), field
    assert tools["agentos_read"].annotations.read_only_hint  # type: ignore[union-attr]
    assert tools["agentos_kill"].annotations.destructive_hint  # type: ignore[union-attr]
    assert tools["agentos_http"].annotations.open_world_hint  # type: ignore[union-attr]
    for name, (required, optional) in ORIGINAL.items():
        schema = tools[name].input_schema
        assert set(schema.get("required", [])) == required, name
        assert required | optional <= set(schema["properties"]), name


async def test_every_tool_works(kernel: Kernel) -> None:
    place = kernel.place / "granted"
    place.mkdir(exist_ok=True)
    async with Cell(TRANSPORTS["memory"], "auto", kernel).connect(TestEntry("worker", level="unrestricted")) as client:
        found = {name: await use(client, name, arguments) for name, arguments in steps(str(place)).items()}

    assert found["agentos_write"] == {"bytes_written": 6}
    assert found["agentos_read"] == {"content": "hello\n", "size": 6}
    assert found["agentos_exec"] == {
        "stdout": "in\n",
        "stderr": "err\n",
        "exit_code": 3,
        "timed_out": False,
        "truncated": False,
    }
    assert found["agentos_spawn"]["name"] == "made"
    assert [one["name"] for one in found["agentos_list_agents"]["agents"]] == ["made"]
    assert found["agentos_pause"]["paused"]
    assert found["agentos_resume"]["resumed"]
    assert found["agentos_send"]["delivered_to"] == found["agentos_spawn"]["id"]
    assert found["agentos_recv"] == {"messages": []}
    assert found["agentos_state_set"] == {"key": "mcp.key", "version": 1}
    assert found["agentos_state_get"]["value"] == [1, None]
    assert found["agentos_state_list"] == {"keys": ["mcp.key"], "next": None}
    assert found["agentos_state_delete"] == {"deleted": True}
    assert [line["text"] for line in found["agentos_logs"]["lines"] if line["stream"] == "stdout"] == ["up"]
    assert found["agentos_kill"]["killed"]
    assert found["agentos_wait"]["signal"] in (9, 15)
    assert found["agentos_approvals"] == {"approvals": []}


def steps(place: str) -> dict[str, dict[str, Any]]:
    """Arguments of each tool, in an order in which each one has what it needs; see below for the others."""
    made = {"name": "made"}
    return {
        "agentos_write": {"path": f"{place}/file", "content": "hello\n"},
        "agentos_read": {"path": f"{place}/file"},
        "agentos_exec": {"command": "cat; echo err >&2; exit 3", "stdin": "in\n"},
        "agentos_spawn": {**made, "command": ["sh", "-c", "echo up; sleep 1000"]},
        "agentos_list_agents": {},
        "agentos_pause": made,
        "agentos_resume": made,
        "agentos_send": {"to": "made", "message": {"any": "json"}},
        "agentos_recv": {},
        "agentos_state_set": {"key": "mcp.key", "value": [1, None]},
        "agentos_state_get": {"key": "mcp.key"},
        "agentos_state_list": {"prefix": "mcp."},
        "agentos_state_delete": {"key": "mcp.key"},
        "agentos_logs": made,
        "agentos_kill": {**made, "grace": 0},
        "agentos_wait": made,
        "agentos_approvals": {},
    }


async def use(client: mcp.Client, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return value_of(await client.call_tool(name, arguments))
