"""Guests of MCP clients: names that no agent can have, EXPLAIN about them, and decisions bound to what was seen."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.wire import EXPLAIN, HELLO, PATIENCE, REGISTER, SPAWN, WRITE, Wire
from tests.system.agents import up


@pytest.fixture
def operator(kernel: Kernel) -> Iterator[AgentOSClient]:
    with kernel.client() as client:
        yield client
        for entry in client.approvals()["pending"]:
            client.decide(entry["id"], False)


def guest(kernel: Kernel, name: str, level: str = "standard") -> Wire:
    """A connection that asks a person about files, and doesn't wait for one."""
    (kernel.place / "asked").mkdir(exist_ok=True)
    wire = kernel.connect()
    permissions = {"level": level, "ask": {"write": [f"{kernel.place}/asked/**"]}}
    hello = {"protocol": 2, "as": name, "permissions": permissions, "approval_timeout": 0}
    assert up(wire.call(HELLO, hello))["name"] == name
    return wire


def asked(kernel: Kernel, content: str = "x") -> dict[str, Any]:
    return {"path": f"{kernel.place}/asked/file", "content": content}


def file_write(kernel: Kernel, wire: Wire, content: str = "x") -> int:
    """Queue a call for a person; the number of its approval."""
    refused = wire.call(WRITE, asked(kernel, content), 1)
    assert refused["code"] == "approval_required", refused
    return int(refused["approval_id"])


def test_no_agent_takes_the_name_of_an_mcp_client(kernel: Kernel, operator: AgentOSClient) -> None:
    assert operator.spawn("mcp:desk", command=["sleep", "1000"])["code"] == "bad_request"
    with kernel.connect_as(kernel.spawn("registers")) as agent:
        assert agent.call(REGISTER, {"name": "mcp:desk"})["code"] == "bad_request"
        assert agent.call(SPAWN, {"name": "mcp:desk", "command": ["sleep", "1000"]})["code"] == "bad_request"
    for name in ("mcp:", "mcp:mcp:x", "mcp:7", "mcp:operator", "other:x"):
        with kernel.connect() as wire:
            assert wire.call(HELLO, {"as": name})["code"] in ("bad_request", "already_exists"), name


def test_the_operator_is_told_what_the_approval_of_a_guest_will_show(kernel: Kernel, operator: AgentOSClient) -> None:
    with guest(kernel, "mcp:shown") as wire:
        told = up(operator.explain("mcp:shown", "WRITE", asked(kernel)))
        number = file_write(kernel, wire)
        [entry] = operator.approvals()["pending"]
        changed = up(operator.explain("mcp:shown", "WRITE", asked(kernel, "y")))

    assert (told["decision"], entry["id"]) == ("ask", number)
    assert (told["shown"], told["digest"]) == (entry["shown"], entry["digest"])
    assert changed["digest"] != entry["digest"]


def test_a_guest_is_told_about_itself_alone_and_never_what_a_person_sees(kernel: Kernel) -> None:
    (kernel.place / "asked").mkdir(exist_ok=True)
    (kernel.place / "asked" / "file").write_text("a text that the guest may not read\n")
    with guest(kernel, "mcp:curious") as wire, guest(kernel, "mcp:other", "unrestricted") as other:
        told = up(wire.call(EXPLAIN, {"agent": "mcp:curious", "call": "WRITE", "args": asked(kernel)}, 1))
        assert wire.call(EXPLAIN, {"agent": "mcp:other", "call": "LIST"}, 2)["code"] == "not_found"
        assert other.call(EXPLAIN, {"agent": "mcp:curious", "call": "LIST"}, 2)["code"] == "not_found"
    (kernel.place / "asked" / "file").unlink()

    assert told["decision"] == "ask"
    assert "may not read" not in str(told)
    assert told.get("shown") is None
    assert told.get("digest") is None


def test_nothing_is_explained_of_a_guest_that_has_gone(kernel: Kernel, operator: AgentOSClient) -> None:
    with guest(kernel, "mcp:gone"):
        assert up(operator.explain("mcp:gone", "LIST"))["decision"] == "allow"

    until(lambda: operator.explain("mcp:gone", "LIST").get("code") == "not_found", "it is gone")


def test_a_decision_holds_for_what_the_person_has_seen(kernel: Kernel, operator: AgentOSClient) -> None:
    with guest(kernel, "mcp:bound") as wire:
        number = file_write(kernel, wire)
        [entry] = operator.approvals()["pending"]

        other = operator.decide(number, True, digest="0" * 64)
        assert (other["code"], other["digest"]) == ("conflict", entry["digest"])
        assert operator.approvals()["pending"] == [entry]
        up(operator.decide(number, True, digest=entry["digest"]))
        assert wire.call(WRITE, asked(kernel), 2)["success"]

        assert file_write(kernel, wire, "another") > number


def test_audit_and_event_say_by_which_program_a_person_has_decided(kernel: Kernel, operator: AgentOSClient) -> None:
    with guest(kernel, "mcp:via") as wire:
        number = file_write(kernel, wire)
        up(operator.subscribe(["APPROVAL_DECIDED"]))
        bad = operator.decide(number, False, via="two\nlines")
        up(operator.decide(number, False, via="mcp:via (elicitation)"))

    assert "via: expected 1 to 100 printable ASCII characters" in bad["error"]
    [event] = operator.poll_events(timeout=PATIENCE)["events"]
    assert event["data"]["by"] == "mcp:via (elicitation)"
    said = [one["about"] for one in operator.get_audit_log(limit=20)["entries"] if one["call"] == "APPROVAL_DECIDED"]
    assert f"approval {number} refused (once) by mcp:via (elicitation), uid " in said[-1]
