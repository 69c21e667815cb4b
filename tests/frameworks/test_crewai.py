"""Programs of CrewAI on AgentOS: in jails, against a real kernel."""

from collections.abc import Mapping
from typing import Any

import pytest

from agentos.presets import read_preset
from agentos_sdk import AgentOSClient
from tests.frameworks.programs import audited, need, report_of
from tests.support.kernel import Kernel


@pytest.fixture(scope="module")
def report(kernel: Kernel, client: AgentOSClient) -> Mapping[str, Any]:
    python = need("crewai", "crewai")
    return report_of(kernel, client, "uses_crewai.py", python=str(python), env=read_preset("crewai").environment())


def test_the_model_answers_whole_streamed_and_structured(report: Mapping[str, Any]) -> None:
    assert report["asked"] == ["Hello yourself."] * 3
    assert report["usage"] is True
    assert report["structured"] is True
    assert report["failed"].startswith("BadRequest: temperature: ")


def test_members_of_a_crew_work_by_system_calls_and_read_why_one_was_denied(
    report: Mapping[str, Any], client: AgentOSClient
) -> None:
    wrote, stolen, rain, _ = report["ran"]

    assert wrote == "It says: wrote 10 bytes to notes.md"
    assert stolen.startswith("It says: error: permission_denied: ")
    assert rain == "It says: rain in Rome"
    assert {("WRITE", "allow"), ("READ", "deny")} <= audited(client, "uses-crewai")


def test_a_member_of_its_own_process_does_a_task_in_a_jail_of_its_own(
    report: Mapping[str, Any], client: AgentOSClient
) -> None:
    assert report["ran"][3] == "two words"
    [spawned] = [entry for entry in client.get_audit_log(limit=1000)["entries"] if is_spawn_of_crew(entry)]
    assert spawned["outcome"] == "ok"


def is_spawn_of_crew(entry: Mapping[str, Any]) -> bool:
    return (entry["name"], entry["call"], entry["phase"]) == ("uses-crewai", "SPAWN", "outcome")


def test_each_role_has_tools_of_its_own(report: Mapping[str, Any]) -> None:
    assert report["tools"][:2] == ["spawn_subagent", "send_message"]
    assert report["unknown"].startswith("error: permission_denied: ")
