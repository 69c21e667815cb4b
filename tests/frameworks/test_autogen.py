"""AutoGen's programs on AgentOS: in jails, against a real kernel."""

from collections.abc import Mapping
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.frameworks.programs import audited, need, report_of
from tests.support.kernel import Kernel


@pytest.fixture(scope="module")
def report(kernel: Kernel, client: AgentOSClient) -> Mapping[str, Any]:
    need("autogen_agentchat")
    return report_of(kernel, client, "uses_autogen.py")


def test_the_model_client_answers_whole_streamed_and_structured(report: Mapping[str, Any]) -> None:
    assert report["asked"] == ["Hello yourself.", "Hello yourself.", True, "Hello yourself.", True]


def test_a_cancelled_token_ends_a_stream(report: Mapping[str, Any]) -> None:
    assert report["cancelled stream"] == 1


def test_an_assistant_writes_by_system_calls(report: Mapping[str, Any], client: AgentOSClient) -> None:
    [answer, kinds] = report["assisted"]["write notes.md"]

    assert answer == "It says: wrote 10 bytes to notes.md"
    assert kinds == ["TextMessage", "ToolCallRequestEvent", "ToolCallExecutionEvent", "TextMessage"]
    assert ("WRITE", "allow") in audited(client, "uses-autogen")


def test_an_assistant_reads_why_a_call_was_denied(report: Mapping[str, Any], client: AgentOSClient) -> None:
    assert report["assisted"]["steal /etc/shadow"][0].startswith("It says: permission_denied: ")
    assert ("READ", "deny") in audited(client, "uses-autogen")


def test_an_assistant_is_a_component(report: Mapping[str, Any]) -> None:
    assert report["components"].startswith("It says: wrote 10 bytes to notes.md")


def test_tools_of_mcp_servers_that_are_denied_are_an_error(report: Mapping[str, Any]) -> None:
    assert report["mcp"] == "permission_denied"


def test_code_runs_in_a_jail_of_its_own(report: Mapping[str, Any], client: AgentOSClient) -> None:
    executed = report["executed"]

    assert executed["python"] == [0, "42\n"]
    assert executed["bash"] == [3, "one\n"]
    assert executed["read"] == [0, "text\n"]
    assert executed["network"] == [0, "ENETUNREACH\n"]
    assert executed["apart"][0] == 1  # notes.md is the program's, and isn't in that jail
    assert executed["other"] == [1, "ruby: expected code in one of python, py, bash, sh, shell"]


def test_code_ends_by_cancellation_and_after_its_time(report: Mapping[str, Any]) -> None:
    assert report["executed"]["cancelled"] == "ended"
    assert report["executed"]["slow"] == [124, "\nstopped after 0.5 s"]
    assert report["executed"]["restarted"] == [0, ""]


def test_no_jail_of_code_outlives_its_executor(report: Mapping[str, Any], client: AgentOSClient) -> None:
    assert [agent["name"] for agent in client.list_agents() if agent["name"].startswith("code-")] == []


def test_a_user_proxy_runs_the_code_of_a_coder(report: Mapping[str, Any]) -> None:
    [_, coded, ran] = report["talk"]

    assert coded[0] == "coder"
    assert ran == ["user_proxy", "42\n"]
