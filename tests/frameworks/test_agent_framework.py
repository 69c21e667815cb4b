"""Programs of Microsoft's Agent Framework on AgentOS: in jails, against a real kernel."""

from collections.abc import Mapping
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.frameworks.programs import audited, need, report_of
from tests.support.kernel import Kernel


@pytest.fixture(scope="module")
def report(kernel: Kernel, client: AgentOSClient) -> Mapping[str, Any]:
    need("agent_framework")
    return report_of(kernel, client, "uses_agent_framework.py")


def test_the_chat_client_answers_whole_streamed_and_structured(report: Mapping[str, Any]) -> None:
    assert report["asked"] == ["Hello yourself.", "Hello yourself.", True, True]
    assert report["stopped"] == ["Hello your"] * 2
    assert report["structured"] is True


def test_an_agent_works_by_system_calls_and_reads_why_one_was_denied(
    report: Mapping[str, Any], client: AgentOSClient
) -> None:
    wrote, stolen, rain = report["ran"]

    assert wrote == "It says: wrote 10 bytes to notes.md"
    assert stolen.startswith("It says: error: permission_denied: ")
    assert rain == "It says: rain in Rome"
    assert {("WRITE", "allow"), ("READ", "deny")} <= audited(client, "uses-agent-framework")


def test_an_agent_calls_tools_in_a_streamed_run(report: Mapping[str, Any]) -> None:
    assert report["streamed"] == "It says: rain in Paris"


def test_a_setting_that_the_model_lacks_is_named(report: Mapping[str, Any]) -> None:
    assert "seed: the kernel's model has no such setting" in report["wrong setting"]
